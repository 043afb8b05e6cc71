"""The shards of a cache that is made from other caches, one after the other: killed, the same work goes on with those that are missing."""

import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from .. import metrics
from ..cache import CacheWriter, ShardColumns, ShardEntry, ShardPlan
from ..errors import CacheError
from ..progress import Progress


def check_not_captured(folder: Path) -> None:
    """Raise CacheError for the folder of a capture: what is made from caches never goes on in one."""
    if (folder / "config.json").exists():
        raise CacheError(f"cache {folder.name} is there already, begun by a capture. Choose another --name.")


def write_shards(
    writer: CacheWriter,
    progress: Progress,
    make: Callable[[ShardPlan], ShardColumns],
    *,
    doing: Callable[[int], str],
    num_bytes: int,
    teacher_row: Callable[[ShardEntry], metrics.Row] = lambda _: {},
) -> None:
    """Make and write every shard that is missing, with a row of metrics for each.

    `doing`: what is done with so many windows, in words; `num_bytes`: of a whole cache, about; `teacher_row`: more for the row.
    Raises CacheError where the disk has not the room; Stopped, finished shards kept.
    """
    todo, shards = writer.missing(), writer.plan.shards
    total = sum(shard.num_windows for shard in shards)
    done = total - sum(shard.num_windows for shard in todo)
    progress.phase(doing(total) + (f"; {done:,} of them before now" if done else ""))
    writer.check_space(1.2 * num_bytes * len(todo) / max(1, len(shards)))
    started = time.monotonic()
    progress.at(done, total, "windows")
    for shard in todo:
        progress.stop_if_asked()
        entry = writer.write(shard, make(shard))
        done += shard.num_windows
        left = progress.at(done, total, "windows")
        row: metrics.Row = {
            "windows": done,
            "time_s": time.monotonic() - started,
            "kept_mass": entry.sum_kept_mass / max(1, entry.num_positions),
            **teacher_row(entry),
            "disk_bytes": entry.num_bytes,
            "time_left_s": left,
        }
        metrics.append(progress.run.metrics_path, row)


def versions() -> dict[str, str]:
    """Of what made it."""
    return {"python": platform.python_version(), "numpy": np.__version__, "polars": pl.__version__}
