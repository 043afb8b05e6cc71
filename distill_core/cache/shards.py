"""One shard: windows and what the teacher said of them, as a Parquet file written and read by Polars."""
# n: windows in the shard   L: tokens in a window   P = L - 1: positions   K: stored entries   A: temperatures

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..config import Codec
from ..paths import file_sha256, sync_folder
from . import codecs

GROUP_TOKENS = 2048
"""Tokens in one row group: small enough that a random window is read in milliseconds (measured: README, "Cache")."""


@dataclass(frozen=True)
class ShardColumns:
    window_ids_n: NDArray[np.uint64]
    input_ids_nL: NDArray[np.uint32]
    doc_lens: list[list[int]]
    """Lengths of the documents in each window; what is left of L is padding."""
    token_bytes_nL: NDArray[np.uint16]
    targets_nP: NDArray[np.bool_]
    """Whether token t+1 may be learned or judged at position t; elsewhere the other columns hold nothing."""
    teacher_ids_nPK: NDArray[np.uint32]
    teacher_logprobs_nPK: NDArray[np.float32]
    """Natural log at T = 1, falling; equal values by rising id."""
    tail_logsumexp_nPA: NDArray[np.float32]
    """log of the sum over the tokens outside the K of exp(logprob / T), at the plan's temperatures."""
    tail_mean_logprob_nPA: NDArray[np.float16]
    """Mean log-probability (T = 1) of those tokens, weighted by exp(logprob / T): the slope of the number above in 1/T."""
    gold_logprob_nP: NDArray[np.float32]
    teacher_entropy_nP: NDArray[np.float16]
    mixture_slack_nP3A: NDArray[np.float16] | None = None
    """A mixture of teachers only: how far the truth may be from what is stored; see bounds.py."""
    hidden: dict[str, NDArray] | None = None
    """Hidden states: column of HiddenPlan -> its values, [n, P, W] or [n, P]; 0 where nothing is learned."""
    as_stored: dict[str, pl.Series] | None = None
    """The columns of the file, where they come from another cache's shard as they are."""

    def series(self, codec: Codec, *, vocab_size: int) -> dict[str, pl.Series]:
        """The columns of the file, by name."""
        if self.as_stored is not None:
            return self.as_stored
        only_some = {} if self.mixture_slack_nP3A is None else {"mixture_slack": pl.Series(self.mixture_slack_nP3A)}
        for name, values in (self.hidden or {}).items():
            only_some[name] = codecs.blobs(values) if values.dtype == np.int8 else pl.Series(values)  # Parquet has no type of one byte
        shas = [hashlib.sha256(row.tobytes()).digest()[:16] for row in self.input_ids_nL]
        return {
            "window_id": pl.Series(self.window_ids_n, dtype=pl.UInt64),
            "window_sha": pl.Series(shas, dtype=pl.Binary),
            "input_ids": pl.Series(self.input_ids_nL),
            "doc_lens": pl.Series(self.doc_lens, dtype=pl.List(pl.UInt32)),
            "token_bytes": pl.Series(self.token_bytes_nL),
            "targets": pl.Series(self.targets_nP),
            **codecs.encode(codec, self.teacher_ids_nPK, self.teacher_logprobs_nPK, vocab_size=vocab_size),
            "tail_logsumexp": pl.Series(self.tail_logsumexp_nPA),
            "tail_mean_logprob": pl.Series(self.tail_mean_logprob_nPA),
            "gold_logprob": pl.Series(self.gold_logprob_nP),
            "teacher_entropy": pl.Series(self.teacher_entropy_nP),
            **only_some,
        }


def rows_per_group(window_tokens: int) -> int:
    return max(1, GROUP_TOKENS // window_tokens)


def parquet(series: dict[str, pl.Series], window_tokens: int) -> bytes:
    """Columns of one row per window as Parquet; the same columns give the same bytes with the same Polars."""
    buffer = io.BytesIO()
    pl.DataFrame(series).write_parquet(
        buffer, compression="zstd", compression_level=3, statistics=False, row_group_size=rows_per_group(window_tokens)
    )
    return buffer.getvalue()


def write_durably(path: Path, content: bytes) -> None:
    """The file whole or not at all: a temporary name, fsync, read back, rename, fsync of the folder. Raises OSError."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if file_sha256(partial) != hashlib.sha256(content).hexdigest():
            raise OSError(f"{partial.name}: what was read back differs from what was written; the disk or its memory is faulty")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_rows(path: Path, first: int, count: int, columns: list[str]) -> dict[str, NDArray]:
    """Rows first … first+count-1 of the named columns, as arrays; 'doc_lens' as an array of lists."""
    frame = pl.scan_parquet(path).select(columns).slice(first, count).collect()
    return {name: to_numpy(frame[name]) for name in columns}


def to_numpy(series: pl.Series) -> NDArray:
    if series.dtype == pl.List:
        lists = np.empty(len(series), dtype=object)
        lists[:] = series.to_list()
        return lists
    return series.to_numpy()
