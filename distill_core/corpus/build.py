"""The text of a run: train and held-out windows from one stream of documents, and a first look at it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import polars as pl

from ..config import TextConfig
from ..errors import TextError
from .encoding import EncodedDocument, Tokenizer, encode, how_the_assistant_is_found, padding_id, text_of
from .mixed import with_synthetic
from .sources import Document, documents, is_known
from .view import View
from .windows import Packer, Windows

PATIENCE = 10_000
"""Documents that bring nothing (blank, known, no token to learn) for each that does, before reading stops: a dataset may be endless."""

PREVIEW_TOKENS = 120
"""Tokens shown of each document."""


@dataclass(frozen=True, kw_only=True)
class SplitText:
    """Windows to train on, and windows of other documents to judge by."""

    train: Windows
    heldout: Windows
    num_documents: int
    """Documents in the windows of either."""
    heldout_documents: int
    num_duplicates: int
    """Documents dropped because the very same text came before."""
    notes: list[str]
    """What the user should know, in sentences."""
    num_synthetic: int = 0
    """Training windows of text.synthetic."""

    @property
    def share_trained(self) -> float:
        """Learned tokens among all positions of the training windows; the rest is padding, other speakers and first tokens."""
        return self.train.num_targets / self.train.targets_NP.size


class Aligner(Protocol):
    """Gives documents their views (view.py), one by one."""

    def aligned(self, document: Document, encoded: EncodedDocument) -> EncodedDocument:
        """The document with its view; with nothing to learn where it cannot be aligned, and counted."""

    def notes(self) -> list[str]:
        """What the user should know once all documents have gone through. Raises TextError if none could be aligned."""

    def fields(self) -> dict[str, str]:
        """What enters the cache's fingerprint."""

    def to_record(self) -> dict[str, Any]:
        """What the cache's manifest keeps."""

    def inputs(self, views: Sequence[View], ids_BS: Any) -> dict[str, Any]:
        """What the teacher is called with besides the views' tokens ids_BS [B, S]."""


def build_windows(
    text: TextConfig, tokenizer: Tokenizer, progress: Callable[[int, int], None] | None = None, *, aligner: Aligner | None = None
) -> SplitText:
    """Read until text.num_windows training and text.num_heldout_windows held-out windows are full.

    The second document of every k goes to the held-out side, k by the ratio of the two sizes; when one side is full the other takes
    all. Windows of text.synthetic take the place of the last training windows, so the held-out side is the same with and without it.
    `progress(windows_done, windows_wanted)` is called as they fill. `aligner`: the teacher reads something else than the windows. Too
    little text is used as it is, with a note. Raises TextError if one side stays empty or nothing in the text may be learned, and
    whatever documents() and encode() raise.
    """
    wanted = text.num_windows + text.num_heldout_windows
    every = max(2, round(wanted / text.num_heldout_windows))
    train, heldout = (_packer(text, tokenizer, size) for size in (text.num_windows, text.num_heldout_windows))
    seen: set[bytes] = set()
    num_blank = num_duplicates = 0
    is_chat = False

    def encoded(document: Document) -> EncodedDocument:
        made = encode(document, tokenizer, assistant_only_loss=text.assistant_only_loss)
        return made if aligner is None else aligner.aligned(document, made)

    for document in documents(text):
        if num_blank + num_duplicates + train.num_left_out + heldout.num_left_out >= PATIENCE * (1 + train.num_documents):
            break
        if document.is_blank:
            num_blank += 1
            continue
        if is_known(document, seen):
            num_duplicates += 1
            continue
        is_chat |= document.messages is not None
        goes_to_heldout = train.is_full or (len(seen) % every == 2 % every and not heldout.is_full)
        (heldout if goes_to_heldout else train).add(encoded(document))
        if progress is not None:
            progress(train.num_started + heldout.num_started, wanted)
        if train.is_full and heldout.is_full:
            break
    split = SplitText(
        train=train.windows(),
        heldout=heldout.windows(),
        num_documents=train.num_documents + heldout.num_documents,
        heldout_documents=heldout.num_documents,
        num_duplicates=num_duplicates,
        notes=aligner.notes() if aligner else [],
    )
    _refuse_empty(split, text, len(seen))
    split.notes.extend(_notes(split, text, num_blank))
    if is_chat and text.assistant_only_loss:
        split.notes.append(how_the_assistant_is_found(tokenizer))
    if text.synthetic is None:
        return split
    mixed, num_synthetic, notes = with_synthetic(split.train, text, encoded, seen, pad_id=padding_id(tokenizer))
    return replace(split, train=mixed, num_synthetic=num_synthetic, notes=[*split.notes, *notes])


def _packer(text: TextConfig, tokenizer: Tokenizer, num_windows: int) -> Packer:
    return Packer(window_tokens=text.window_tokens, packing=text.packing, num_windows=num_windows, pad_id=padding_id(tokenizer))


def _refuse_empty(split: SplitText, text: TextConfig, num_different: int) -> None:
    """TextError unless both sides have at least one window."""
    num_train, num_heldout = len(split.train), len(split.heldout)
    if num_train and num_heldout:
        return
    found = f"text '{text.source}': {num_different:,} different documents read, {split.num_duplicates:,} duplicates dropped"
    if num_left_out := split.train.num_left_out + split.heldout.num_left_out:
        found += f", {num_left_out:,} documents or pieces left out because no token in them may be learned"
    if not num_train and not num_heldout and num_left_out:
        raise TextError(
            f"{found}: nothing is left. Chats need messages with the role 'assistant', or text.assistant_only_loss set to false; "
            "texts need at least two tokens."
        )
    raise TextError(
        f"{found}. Windows of {text.window_tokens} tokens: {num_train} for training, {num_heldout} held out; both need at least 1, from "
        "different documents. Give more text; in a .txt file, documents are separated by a blank line."
    )


def _notes(split: SplitText, text: TextConfig, num_blank: int) -> list[str]:
    notes = []
    for windows, wanted, what in ((split.train, text.num_windows, "training"), (split.heldout, text.num_heldout_windows, "held-out")):
        if len(windows) < wanted:
            notes.append(f"The text gives {len(windows):,} of the {wanted:,} {what} windows asked for.")
    counts = {
        "Exact duplicates, dropped": split.num_duplicates,
        "Blank documents, skipped": num_blank,
        "Documents or pieces without a token to learn, left out": split.train.num_left_out + split.heldout.num_left_out,
    }
    return notes + [f"{what}: {count:,}." for what, count in counts.items() if count]


def preview(text: TextConfig, tokenizer: Tokenizer, num_documents: int = 3) -> pl.DataFrame:
    """First tokens of the first documents: [document, position, token_id, token, is_target, num_bytes].

    `token` is the piece of text under the token, its name if it is a special one, '…' if it goes on with the character before. Raises
    what documents() and encode() raise.
    """
    frames = []
    readable = (document for document in documents(text) if not document.is_blank)
    for number, document in enumerate(islice(readable, num_documents)):
        encoded = encode(document, tokenizer, assistant_only_loss=text.assistant_only_loss)
        shown = slice(0, PREVIEW_TOKENS)
        token_ids, token_bytes, is_target = encoded.token_ids[shown].tolist(), encoded.token_bytes[shown].tolist(), encoded.is_target[shown]
        content = text_of(document, tokenizer).encode("utf-8", "surrogatepass")
        tokens, start = [], 0
        for token_id, name, size in zip(token_ids, tokenizer.convert_ids_to_tokens(token_ids), token_bytes, strict=True):
            without_text = name if token_id in tokenizer.all_special_ids else "…"
            tokens.append(content[start : start + size].decode("utf-8", "replace") if size else without_text)
            start += size
        # nothing stands before the first token, so it is never learned
        learned = [False, *is_target[1:].tolist()]
        frames.append(
            pl.DataFrame(
                {"token_id": token_ids, "token": tokens, "is_target": learned, "num_bytes": token_bytes},
                schema_overrides={"token_id": pl.UInt32, "num_bytes": pl.UInt16},
            ).select(pl.lit(number, pl.UInt32).alias("document"), pl.row_index("position"), pl.all())
        )
    if not frames:
        raise TextError(f"text '{text.source}': no document in it. Give a file with text, or use 'builtin'.")
    return pl.concat(frames)


def show_preview(table: pl.DataFrame) -> str:
    """The table of preview() for a terminal: '|' between tokens, those that are not learned in (parentheses)."""
    lines = []
    for (number,), tokens in table.group_by("document", maintain_order=True):
        lines.append(f"document {number + 1}: {tokens['is_target'].sum()} of the first {tokens.height} tokens are learned")
        shown = zip(tokens["token"].to_list(), tokens["is_target"].to_list(), strict=True)
        lines.append("|".join(token if is_target else f"({token})" for token, is_target in shown).replace("\n", "\\n") + "\n")
    return "\n".join(lines).rstrip("\n")
