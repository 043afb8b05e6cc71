"""Windows of a cache as its shards hold them, and whether two caches are of the same text."""

import numpy as np
import polars as pl

from ..cache import Cache, Plan, ShardColumns
from ..cache.codecs import COLUMNS_OF, decode
from ..cache.shards import to_numpy
from ..errors import CacheError

TEXT_COLUMNS = ("input_ids", "targets", "doc_lens")
COLUMNS = (
    "window_id", "window_sha", *TEXT_COLUMNS, "token_bytes", "tail_logsumexp", "tail_mean_logprob", "gold_logprob", "teacher_entropy",
)  # fmt: skip


def frames(cache: Cache, split: str, first: int, count: int, columns: tuple[str, ...] = ()) -> pl.DataFrame:
    """Windows first … first+count-1 of a split, one row each, with these columns (none: all that a merge carries over)."""
    names = columns or (*COLUMNS, *COLUMNS_OF[cache.plan.codec])
    parts, begin = [], 0
    for entry in cache.manifest.entries_of(split):
        start, stop = max(first, begin), min(first + count, begin + entry.num_windows)
        if start < stop:
            parts.append(pl.scan_parquet(cache.shard_path(entry)).select(names).slice(start - begin, stop - start).collect())
        begin += entry.num_windows
    return pl.concat(parts, rechunk=True)


def begins(plan: Plan) -> dict[str, int]:
    """Shard -> how many windows of its split come before it."""
    found: dict[str, int] = {}
    total: dict[str, int] = {}
    for shard in plan.shards:
        found[shard.name] = total.get(shard.split, 0)
        total[shard.split] = found[shard.name] + shard.num_windows
    return found


def columns_of(frame: pl.DataFrame, plan: Plan) -> ShardColumns:
    """The rows as arrays, entries decoded; written to another cache they are the columns as they are."""
    arrays = {name: to_numpy(frame[name]) for name in frame.columns}
    ids, logprobs = decode(plan.codec, arrays, arrays["targets"], top_k=plan.top_k, vocab_size=plan.vocab_size)
    return ShardColumns(
        window_ids_n=arrays["window_id"],
        input_ids_nL=arrays["input_ids"],
        doc_lens=[list(lens) for lens in arrays["doc_lens"]],
        token_bytes_nL=arrays["token_bytes"],
        targets_nP=arrays["targets"],
        teacher_ids_nPK=ids,
        teacher_logprobs_nPK=logprobs.astype(np.float32, copy=False),
        tail_logsumexp_nPA=arrays["tail_logsumexp"],
        tail_mean_logprob_nPA=arrays["tail_mean_logprob"],
        gold_logprob_nP=arrays["gold_logprob"],
        teacher_entropy_nP=arrays["teacher_entropy"],
        as_stored={name: frame[name] for name in frame.columns},
    )


def same_windows(first: Cache, other: Cache) -> None:
    """Raise CacheError, with the first field and window that differ, unless both caches are of the same windows in the same order."""
    for split in dict.fromkeys(shard.split for cache in (first, other) for shard in cache.plan.shards):
        ours, theirs = first.num_windows(split), other.num_windows(split)
        if ours != theirs:
            raise CacheError(_differ(first, other, f"{split} holds {ours:,} windows and {theirs:,}"))
        for shard in [shard for shard in first.plan.shards if shard.split == split]:
            begin = begins(first.plan)[shard.name]
            pair = [frames(cache, split, begin, shard.num_windows, TEXT_COLUMNS) for cache in (first, other)]
            for name in TEXT_COLUMNS:
                left, right = (to_numpy(frame[name]) for frame in pair)
                equal = [np.array_equal(mine, its) for mine, its in zip(left, right, strict=True)]
                if not all(equal):
                    raise CacheError(_differ(first, other, f"{name} of {split} window {begin + equal.index(False)}"))


def _differ(first: Cache, other: Cache, what: str) -> str:
    return (
        f"caches {first.name} and {other.name} are not of the same text: {what} differ. Capture both from the same text with the same "
        "settings of section text, or put different texts side by side: --by join"
    )
