"""Comparing runs: rows for tables, what differs, which runs are one run with other seeds, and the verdict over seeds. No torch.

rows      all runs and caches, a line each        settings   dotted settings, differences, runs that differ by seed only
quality   how good each run is, judged or not     verdicts   distilled against hard labels, paired by seed
deletion  what deleting frees, and what it breaks
"""

from .deletion import Deletion, delete, deletion_of
from .quality import look_rows, qualities, quality_rows, sample_rows
from .rows import active_runs, cache_rows, run_rows
from .settings import NOT_LEARNED, SeedGroup, differences, run_differences, run_settings, seed_groups
from .verdicts import Gain, Pair, Verdict, t_interval, verdict_over_seeds, verdicts

__all__ = [
    "NOT_LEARNED",
    "Deletion",
    "Gain",
    "Pair",
    "SeedGroup",
    "Verdict",
    "active_runs",
    "cache_rows",
    "delete",
    "deletion_of",
    "differences",
    "look_rows",
    "qualities",
    "quality_rows",
    "run_differences",
    "run_rows",
    "run_settings",
    "sample_rows",
    "seed_groups",
    "t_interval",
    "verdict_over_seeds",
    "verdicts",
]
