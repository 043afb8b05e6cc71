"""Written text beside a person's: windows that text.synthetic puts in the place of some of the training windows."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..config import TextConfig
from ..errors import TextError
from .encoding import EncodedDocument
from .sources import Document, documents, is_known
from .windows import Windows, window


def with_synthetic(
    train: Windows, text: TextConfig, encode: Callable[[Document], EncodedDocument], seen: set[bytes], *, pad_id: int
) -> tuple[Windows, int, list[str]]:
    """(training windows, how many of them are of text.synthetic, notes): real ones first, shuffled only when they are trained on.

    `seen`: the documents of text.source that were read, on either side; the same ones are left out. Raises TextError where
    nothing of text.synthetic is left, and whatever documents() and encode() raise.
    """
    assert text.synthetic is not None
    num_wanted = max(1, round(text.synthetic_share * text.num_windows))
    source = (
        text.changed(source=text.synthetic, column="text") if text.synthetic.startswith("written:") else text.changed(source=text.synthetic)
    )
    num_read = num_known = 0

    def encoded() -> Iterator[EncodedDocument]:
        nonlocal num_read, num_known
        for document in documents(source):
            num_read += 1
            if document.is_blank or is_known(document, seen):
                num_known += 1
                continue
            yield encode(document)

    written = window(encoded(), window_tokens=text.window_tokens, packing=text.packing, num_windows=num_wanted, pad_id=pad_id)
    if not len(written):
        raise TextError(
            f"text.synthetic '{text.synthetic}': none of its {num_read:,} documents can be used; {num_known:,} are blank, or the same as "
            "documents of text.source or as earlier ones. Write more (python -m distill_core write), or leave it out."
        )
    num_real = min(len(train), text.num_windows - num_wanted)
    notes = [f"{len(written):,} of the {num_real + len(written):,} training windows are of text.synthetic '{text.synthetic}'."]
    if len(written) < num_wanted:
        notes.append(
            f"text.synthetic gives {len(written):,} of the {num_wanted:,} windows asked for: write more, or lower text.synthetic_share."
        )
    if num_known:
        notes.append(f"Documents of text.synthetic that are blank, or the same as others, left out: {num_known:,}.")
    return _joined(train, num_real, written), len(written), notes


def _joined(train: Windows, num_real: int, written: Windows) -> Windows:
    """The first num_real windows of the one, then all of the other."""
    names = ("input_ids_NL", "targets_NP", "token_bytes_NL")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(train, name)[:num_real], getattr(written, name)]) for name in names}
    num_left_out = train.num_left_out + written.num_left_out
    views = None if train.views is None or written.views is None else [*train.views[:num_real], *written.views]
    return Windows(**arrays, doc_lens=[*train.doc_lens[:num_real], *written.doc_lens], num_left_out=num_left_out, views=views)
