"""A whole cache cut anew: the student's documents of each of its windows, and which rows speak of the same token."""
# L: tokens in a window   P = L - 1: positions   T: tokens of a document

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from ..cache import Cache
from ..corpus import EncodedDocument
from ..merging.windows import begins, frames
from ..progress import Progress
from .byte_strings import ByteStrings
from .documents import align, placed, rebuilt

WINDOWS_AT_ONCE = 256
"""Windows cut anew at a time, in the first look over the whole cache."""
TEXT_COLUMNS = ("input_ids", "doc_lens", "token_bytes", "targets")


@dataclass
class Found:
    """What the first look over the cache gave."""

    num_documents: int = 0
    num_lost: int = 0
    """Documents that could not be rebuilt, or that the student's tokenizer does not keep."""
    source_positions: int = 0
    """Places that the teacher's cache speaks of."""
    positions: int = 0
    """Tokens of the student's that may be learned; of documents that are lost, the teacher's rows."""
    aligned: int = 0
    hard: int = 0
    """Other tokens that are trained on: as hard labels, or not at all."""
    window_tokens: int = 2
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def coverage(self) -> float:
        """Share of the student's tokens of the text that have a row."""
        return self.aligned / max(1, self.positions)

    def words(self, unaligned: str) -> str:
        """`unaligned`: 'hard' or 'skip', what becomes of the others."""
        share = self.aligned / max(1, self.source_positions)
        lost = f" {self.num_lost:,} of {self.num_documents:,} documents could not be rebuilt, and teach nothing." if self.num_lost else ""
        return (
            f"{self.aligned:,} of the student's {self.positions:,} tokens ({self.coverage:.1%}) are cut as the teacher cuts them, and keep "
            f"{share:.1%} of its {self.source_positions:,} rows; {self._others(unaligned)}.{lost}"
        )

    def _others(self, unaligned: str) -> str:
        if unaligned == "skip":
            return "the others are not learned"
        return f"the other {self.hard:,} that are trained on are hard labels, which the teacher's line leaves out"

    def to_record(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "digest"}


@dataclass(frozen=True)
class Window:
    """One window in the student's tokens."""

    documents: list[EncodedDocument]
    source_rows: np.ndarray
    """Rows of the source window, and beside them those of this one, that speak of the same token."""
    rows: np.ndarray
    learned: np.ndarray
    """Rows of this window whose token may be learned, aligned or not: those of documents that the teacher's cache learns all of."""


@dataclass(frozen=True)
class Work:
    """A cache, and the tokenizer that it is to speak."""

    source: Cache
    tokenizer: Any
    theirs: ByteStrings
    ours: ByteStrings
    progress: Progress

    def look(self) -> Found:
        """Everything cut anew once, to know how long windows get and how much is covered, before anything is written."""
        found = Found()
        total = sum(shard.num_windows for shard in self.source.plan.shards)
        self.progress.phase(f"cutting the text of {total:,} windows anew")
        done = 0
        for shard in self.source.plan.shards:
            begin = begins(self.source.plan)[shard.name]
            for first in range(0, shard.num_windows, WINDOWS_AT_ONCE):
                self.progress.stop_if_asked()
                count = min(WINDOWS_AT_ONCE, shard.num_windows - first)
                for window in self.windows(frames(self.source, shard.split, begin + first, count, TEXT_COLUMNS), found):
                    found.window_tokens = max(found.window_tokens, sum(map(len, window.documents)))
                    found.positions += sum(max(0, len(document) - 1) for document in window.documents)
                    found.aligned += len(window.rows)
                    found.hard += len(np.setdiff1d(window.learned, window.rows)) if shard.split == "train" else 0
                    for document in window.documents:
                        found.digest.update(document.token_ids.tobytes() + b";")
                    found.digest.update(window.rows.tobytes() + b"|")
                done += count
                self.progress.at(done, total, "windows")
        return found

    def windows(self, frame: pl.DataFrame, found: Found) -> Iterator[Window]:
        """The student's documents of each window, in order, and the rows that are kept."""
        ids_nL, bytes_nL, targets_nP = (frame[name].to_numpy() for name in ("input_ids", "token_bytes", "targets"))
        for ids_L, bytes_L, targets_P, lengths in zip(ids_nL, bytes_nL, targets_nP, frame["doc_lens"].to_list(), strict=True):
            found.source_positions += int(targets_P.sum())
            start, there, documents, pairs, learned = 0, 0, [], [], [np.zeros(0, np.int64)]
            for length in lengths:
                found.num_documents += 1
                here = slice(start, start + length)
                made = self._document(ids_L[here], bytes_L[here])
                if made is None:
                    found.num_lost += 1
                    found.positions += int(targets_P[here].sum())
                else:
                    encoded, aligned = made
                    pairs.append(np.stack([aligned.teacher_rows + start, aligned.student_rows + there]))
                    documents.append(encoded)
                    if targets_P[start : start + length - 1].all():  # of a chat some is not: which of the student's tokens is not known
                        learned.append(np.arange(there, there + len(encoded) - 1))
                    there += len(encoded)
                start += length
            rows = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int64)
            rows = rows[:, targets_P[rows[0]]]
            yield Window(documents, rows[0], rows[1], np.concatenate(learned))

    def _document(self, ids_T: np.ndarray, bytes_T: np.ndarray) -> Any:
        teacher = placed(ids_T, bytes_T.astype(np.int64), self.theirs)
        made = None if teacher is None else rebuilt(teacher, self.tokenizer, self.ours)
        if teacher is None or made is None:
            return None
        encoded, student = made
        return encoded, align(teacher, student)
