"""Carries out a merge, shard by shard: killed at any moment, the same command goes on with the shards that are missing."""
# n: windows of a shard   P: positions of a window   R: positions with a target   K: entries

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..cache import Cache, CacheWriter, Plan, ShardColumns, ShardPlan, finished_cache, open_cache
from ..cache.codecs import EMPTY_ID
from ..cache.manifest import MADE_BY
from ..paths import caches_dir, publish
from ..progress import Progress
from .making import check_not_captured, versions, write_shards
from .mixture import Mixed, Told, mix
from .plan import Merge, check_merge, copy_tokenizer, make_plan, merge_config, merged_teacher, read_merge
from .windows import begins, columns_of, frames, same_windows

ROWS = 4096
"""Positions mixed at a time: with 100 entries of two teachers about 60 MB."""


@dataclass
class _Counts:
    """What a merge tells of itself, over the positions or windows that this process merged."""

    positions: int = 0
    uncertain: float = 0.0
    windows: dict[str, int] = field(default_factory=dict)


def run_merge(run: Any, progress: Progress) -> Cache:
    """Carry out the run's merge. Raises ConfigError, CacheError; Stopped after a stop was asked for, finished shards kept."""
    return finish_merge(read_merge(run.inputs()), progress)


def finish_merge(merge: Merge, progress: Progress) -> Cache:
    """Make the merged cache, or go on with it, or find it finished. Returns it opened."""
    progress.phase("comparing the caches")
    caches = check_merge(merge)
    for cache in caches:
        cache.verify()
    if merge.by != "join":
        for other in caches[1:]:
            same_windows(caches[0], other)
    plan, folder = make_plan(merge, caches), caches_dir() / merge.name
    finished = finished_cache(folder, plan)
    if finished is not None:
        progress.say(f"cache {merge.name} is already complete and unchanged")
        return finished
    check_not_captured(folder)
    counts = _Counts(windows={cache.name: 0 for cache in caches})
    with CacheWriter(folder, plan) as writer:
        publish(folder / MADE_BY, json.dumps({"words": "Merge again", "command": merge.command()}))
        copy_tokenizer(caches[0].tokenizer_folder, folder / "tokenizer")
        write_shards(
            writer,
            progress,
            lambda shard: _merged_shard(merge, caches, plan, shard, counts),
            doing=lambda total: f"merging {total:,} windows by {merge.by}",
            num_bytes=max(cache.manifest.num_bytes for cache in caches),
            teacher_row=lambda entry: {"teacher_nll": -entry.sum_gold_logprob / max(1, entry.num_positions)},
        )
        config, text = merge_config(merge, caches).model_dump(mode="json"), _text_record(merge, caches, counts)
        writer.finish(teacher=merged_teacher(merge, caches), config=config, text=text, versions=versions())
    for words in text["notes"]:
        progress.say(words)
    return open_cache(merge.name)


def _merged_shard(merge: Merge, caches: list[Cache], plan: Plan, shard: ShardPlan, counts: _Counts) -> ShardColumns:
    if merge.by == "join":
        return columns_of(_joined(caches, plan, shard, counts), plan)
    begin = begins(plan)[shard.name]
    told = [frames(cache, shard.split, begin, shard.num_windows) for cache in caches]
    if merge.by == "pick":
        return columns_of(_picked(caches, told, counts), plan)
    columns = [columns_of(frame, cache.plan) for frame, cache in zip(told, caches, strict=True)]
    return _mixture(columns, merge.shares(), plan, counts)


def _mixture(teachers: list[ShardColumns], weights: NDArray[np.float64], plan: Plan, counts: _Counts) -> ShardColumns:
    """The shard of the mixture: windows as the first has them, what the teachers think mixed."""
    first, targets_nP = teachers[0], teachers[0].targets_nP
    told = [_told(each) for each in teachers]
    num_rows = int(targets_nP.sum())
    pieces = [
        mix([_slice(each, start, start + ROWS) for each in told], weights, top_k=plan.top_k, vocab_size=plan.vocab_size)
        for start in range(0, max(1, num_rows), ROWS)
    ]
    mixed = Mixed._make(np.concatenate(parts) for parts in zip(*pieces, strict=True))
    counts.positions += num_rows
    counts.uncertain += float(mixed.uncertain_R.sum())

    def spread(rows: NDArray, dtype: Any, empty: float) -> Any:
        full = np.full((*targets_nP.shape, *rows.shape[1:]), empty, dtype)
        full[targets_nP] = rows.astype(dtype)
        return full

    return ShardColumns(
        window_ids_n=first.window_ids_n,
        input_ids_nL=first.input_ids_nL,
        doc_lens=first.doc_lens,
        token_bytes_nL=first.token_bytes_nL,
        targets_nP=targets_nP,
        teacher_ids_nPK=spread(mixed.ids_RK, np.uint32, EMPTY_ID),
        teacher_logprobs_nPK=spread(mixed.logprobs_RK, np.float32, -np.inf),
        tail_logsumexp_nPA=spread(mixed.tail_RA, np.float32, -np.inf),
        tail_mean_logprob_nPA=spread(mixed.tail_mean_RA, np.float16, 0.0),
        gold_logprob_nP=spread(mixed.gold_R, np.float32, 0.0),
        teacher_entropy_nP=spread(mixed.entropy_R, np.float16, 0.0),
        mixture_slack_nP3A=spread(_rounded_up(mixed.slack_R3A), np.float16, 0.0),
    )


def _told(columns: ShardColumns) -> Told:
    """Positions with a target, in float64: what is mixed are differences of small numbers."""
    targets_nP = columns.targets_nP

    def rows(part: NDArray) -> NDArray[np.float64]:
        return part[targets_nP].astype(np.float64)

    return Told(
        ids_RI=columns.teacher_ids_nPK[targets_nP],
        logprobs_RI=rows(columns.teacher_logprobs_nPK),
        tail_RA=rows(columns.tail_logsumexp_nPA),
        tail_mean_RA=rows(columns.tail_mean_logprob_nPA),
        gold_R=rows(columns.gold_logprob_nP),
        entropy_R=rows(columns.teacher_entropy_nP),
    )


def _slice(told: Told, start: int, stop: int) -> Told:
    return Told._make(part[start:stop] for part in told)


def _rounded_up(slack: NDArray[np.float64]) -> NDArray[np.float16]:
    """As float16, never less than it was."""
    with np.errstate(over="ignore"):
        rounded = slack.astype(np.float16)
    return np.where(rounded < slack, np.nextafter(rounded, np.float16(np.inf)), rounded)


def _picked(caches: list[Cache], told: list[pl.DataFrame], counts: _Counts) -> pl.DataFrame:
    """Every window from the teacher that gives its text the most probability; the first of equals."""
    gold_Mn = np.stack([np.where(frame["targets"].to_numpy(), frame["gold_logprob"].to_numpy(), 0.0).sum(1) for frame in told])
    best_n = gold_Mn.argmax(0)
    for number, cache in enumerate(caches):
        counts.windows[cache.name] += int((best_n == number).sum())
    return pl.concat([told[number][window : window + 1] for window, number in enumerate(best_n.tolist())], rechunk=True)


def _joined(caches: list[Cache], plan: Plan, shard: ShardPlan, counts: _Counts) -> pl.DataFrame:
    """A shard of one of the caches, with the windows' new numbers."""
    first = 0
    for cache in caches:
        there = cache.num_windows(shard.split)
        if shard.first_window < first + there:
            counts.windows[cache.name] += shard.num_windows
            frame = frames(cache, shard.split, shard.first_window - first, shard.num_windows)
            return frame.with_columns(
                pl.Series("window_id", np.arange(shard.first_window, shard.first_window + shard.num_windows, dtype=np.uint64))
            )
        first += there
    raise AssertionError(f"shard {shard.name} is of none of the caches")


def _text_record(merge: Merge, caches: list[Cache], counts: _Counts) -> dict[str, Any]:
    """What the manifest says of the merge, and of what it leaves out; a merge that went on after a kill speaks of what was merged since."""
    if merge.by == "mixture":
        mean = counts.uncertain / max(1, counts.positions)
        words = (
            f"mixture: on average at most {mean:.2%} of the probability at T = 1 belongs to kept tokens that a teacher did not store, "
            f"and is in the tail instead; the tail at other temperatures than 1 is known within bounds"
        )
    else:
        total = max(1, sum(counts.windows.values()))
        words = f"{merge.by}: " + ", ".join(f"{num:,} windows ({num / total:.0%}) from {name}" for name, num in counts.windows.items())
    dropped = [cache.name for cache in caches if cache.plan.hidden is not None]
    left_out = [f"hidden states are not merged: those of {', '.join(dropped)} are left out"] if dropped else []
    return {"notes": [words, *left_out]}
