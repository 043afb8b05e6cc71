"""Windows: fixed lengths of tokens that keep documents apart, so that a model can be trained on them in batches."""
# N: windows   L: tokens in a window   P = L - 1: positions that predict; row t is about token t + 1

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .encoding import EncodedDocument
from .view import View

OPEN_WINDOWS = 16
"""How many windows wait for a document that still fits. Stories of 68 tokens in windows of 256: 96 % filled; with one open window 85 %."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """N windows of L tokens, padded at the right."""

    input_ids_NL: np.ndarray
    """uint32."""
    targets_NP: np.ndarray
    """bool; row t says whether token t + 1 is learned: never on padding, never across documents, never where a chat mask forbids it."""
    token_bytes_NL: np.ndarray
    """uint16; UTF-8 bytes of the text under each token."""
    doc_lens: list[list[int]]
    """Per window, the tokens of each document in it, in order; what is missing to L is padding."""
    num_left_out: int = 0
    """Documents, or pieces of long ones, with no token to learn; they take no place."""
    views: list[list[View]] | None = None
    """Per window, what the teacher reads in place of each document; none: the documents themselves."""

    def __len__(self) -> int:
        return len(self.doc_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(map(sum, self.doc_lens))

    @property
    def num_targets(self) -> int:
        return int(self.targets_NP.sum())


def window(encoded: Iterable[EncodedDocument], *, window_tokens: int, packing: bool, num_windows: int, pad_id: int) -> Windows:
    """At most num_windows windows from documents in their order; reads no further than it must.

    With packing, each document goes whole into the oldest window that has room for it; without, each gets a window of its own.
    Only documents longer than a window are cut, into pieces that see each other as little as documents do.
    """
    packer = Packer(window_tokens=window_tokens, packing=packing, num_windows=num_windows, pad_id=pad_id)
    for each in encoded:
        packer.add(each)
        if packer.is_full:
            break
    return packer.windows()


@dataclass(kw_only=True)
class Packer:
    """Takes documents one by one until num_windows windows are full."""

    window_tokens: int
    packing: bool
    num_windows: int
    pad_id: int
    is_full: bool = field(default=False, init=False)
    """A document came for which no window had room; nothing is taken any more."""
    num_left_out: int = field(default=0, init=False)
    num_documents: int = field(default=0, init=False)
    """Documents of which at least a piece has found a place."""

    def __post_init__(self) -> None:
        # np.empty: memory is only taken by windows that are written
        shape = (self.num_windows, self.window_tokens)
        self._input_ids_NL, self._token_bytes_NL = np.empty(shape, np.uint32), np.empty(shape, np.uint16)
        self._is_target_NL = np.empty(shape, bool)
        self._doc_lens: list[list[int]] = []
        self._views: list[list[View]] = []
        self._free: list[int] = []

    @property
    def num_started(self) -> int:
        """Windows with something in them."""
        return len(self._doc_lens)

    def add(self, document: EncodedDocument) -> None:
        """Place a document, in pieces if it is longer than a window."""
        has_place = False
        for piece in _pieces(document, self.window_tokens):
            # the first token of a piece has nothing before it to be predicted from
            if not piece.is_target[1:].any():
                self.num_left_out += 1
                continue
            row = self._row_for(len(piece))
            if row is None:
                self.is_full = True
                break
            self._write(row, piece)
            has_place = True
        self.num_documents += has_place

    def _row_for(self, length: int) -> int | None:
        """The oldest open window with room, else a new one, else None."""
        if self.packing:
            for row in range(max(0, self.num_started - OPEN_WINDOWS), self.num_started):
                if self._free[row] >= length:
                    return row
        if self.is_full or self.num_started == self.num_windows:
            return None
        row = self.num_started
        self._input_ids_NL[row], self._token_bytes_NL[row], self._is_target_NL[row] = self.pad_id, 0, False
        self._doc_lens.append([])
        self._views.append([])
        self._free.append(self.window_tokens)
        return row

    def _write(self, row: int, piece: EncodedDocument) -> None:
        start = self.window_tokens - self._free[row]
        here = slice(start, start + len(piece))
        self._input_ids_NL[row, here] = piece.token_ids
        self._token_bytes_NL[row, here] = piece.token_bytes
        self._is_target_NL[row, here] = piece.is_target
        self._is_target_NL[row, start] = False
        self._doc_lens[row].append(len(piece))
        if piece.view is not None:
            self._views[row].append(piece.view)
        self._free[row] -= len(piece)

    def windows(self) -> Windows:
        """What has been packed so far."""
        started = self.num_started
        return Windows(
            input_ids_NL=self._input_ids_NL[:started],
            targets_NP=self._is_target_NL[:started, 1:],
            token_bytes_NL=self._token_bytes_NL[:started],
            doc_lens=[list(lengths) for lengths in self._doc_lens],
            num_left_out=self.num_left_out,
            views=self._views if any(self._views) else None,
        )


def _pieces(document: EncodedDocument, window_tokens: int) -> Iterator[EncodedDocument]:
    for first in range(0, len(document), window_tokens):
        here = slice(first, first + window_tokens)
        is_target = document.is_target[here]
        view = document.view.piece(first, first + len(is_target)) if document.view else None
        if document.view is not None and view is None:
            is_target = np.zeros_like(is_target)  # nothing to learn where the teacher's words cannot be aligned
        yield EncodedDocument(token_ids=document.token_ids[here], is_target=is_target, token_bytes=document.token_bytes[here], view=view)
