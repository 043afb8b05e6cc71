"""A batch as a model is fed it, in text: which tokens are learned, where documents begin, what is padding."""
# B: windows   L: tokens in a window   P = L - 1: positions that predict

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHOWN_TOKENS = 40
"""Tokens shown of each document."""
SHOWN_DOCUMENTS = 4
"""Documents shown of each window."""
LEGEND = "Each line is a document, at its positions in the window; it begins at position 0 again. (in brackets): read, not learned."


def show_batch(
    input_ids_BL: NDArray[Any],
    targets_BP: NDArray[np.bool_],
    doc_lens: Sequence[Sequence[int]],
    tokenizer: Any,
    *,
    numbers: Sequence[int] | None = None,
) -> str:
    """The windows for a terminal or a log. `numbers`: what the windows are called; none: 0, 1, …"""
    lines = [LEGEND]
    for place, (ids_L, targets_P, lengths) in enumerate(zip(input_ids_BL, targets_BP, doc_lens, strict=True)):
        padding = len(ids_L) - sum(lengths)
        lines.append(
            f"window {numbers[place] if numbers is not None else place}: {len(ids_L)} tokens, {int(targets_P.sum())} of them learned, "
            f"{len(lengths)} document{'s' if len(lengths) != 1 else ''}, {padding} of padding"
        )
        is_target_L = np.concatenate([[False], targets_P])
        starts = np.cumsum([0, *lengths])[:-1]
        for start, length in list(zip(starts, lengths, strict=True))[:SHOWN_DOCUMENTS]:
            here = slice(start, start + min(length, SHOWN_TOKENS))
            more = f" … {length - SHOWN_TOKENS} more" if length > SHOWN_TOKENS else ""
            lines.append(f"  {start:>5}-{start + length - 1:<5} {_line(ids_L[here], is_target_L[here], tokenizer)}{more}")
        if len(lengths) > SHOWN_DOCUMENTS:
            lines.append(f"  … {len(lengths) - SHOWN_DOCUMENTS} more documents")
    return "\n".join(lines)


def _line(ids: NDArray[Any], is_target: NDArray[np.bool_], tokenizer: Any) -> str:
    """Runs of tokens that are learned, and in brackets those that are not; special tokens under their names."""
    special = set(tokenizer.all_special_ids)
    pieces = []
    for run in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(is_target)) + 1):
        text = "".join(_text(ids[run], special, tokenizer))
        pieces.append(text if is_target[run[0]] else f"({text})")
    return " ".join(pieces).replace("\n", "\\n")


def _text(ids: NDArray[Any], special: set[int], tokenizer: Any) -> list[str]:
    parts: list[str] = []
    plain: list[int] = []
    for token_id in ids.tolist():
        if token_id in special:
            parts += [tokenizer.decode(plain)] if plain else []
            parts.append(str(tokenizer.convert_ids_to_tokens([token_id])[0]))
            plain = []
        else:
            plain.append(token_id)
    return parts + ([tokenizer.decode(plain)] if plain else [])


def document_lengths(position_ids_BL: NDArray[Any], targets_BP: NDArray[np.bool_]) -> list[list[int]]:
    """Tokens of each document, from positions that restart: the last stretch is padding where nothing in it is learned, since a
    document of which nothing is learned has no place in a window."""
    found = []
    for positions_L, targets_P in zip(position_ids_BL, targets_BP, strict=True):
        starts = np.flatnonzero(positions_L == 0)
        lengths = np.diff([*starts, len(positions_L)]).tolist()
        is_padding = len(starts) > 1 and not targets_P[max(0, starts[-1] - 1) :].any()
        found.append(lengths[:-1] if is_padding else lengths)
    return found
