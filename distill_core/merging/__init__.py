"""Several caches made into one: the mixture of their teachers on the same text, the better teacher window by window, or both texts.

The result is a cache like any other; only NumPy and Polars are needed, shard by shard.
"""

from .merge import finish_merge, run_merge
from .plan import BY, By, Merge, check_merge, merge_config, read_merge

__all__ = ["BY", "By", "Merge", "check_merge", "finish_merge", "merge_config", "read_merge", "run_merge"]
