"""The cache: what the teacher thought of every position, on disk; the only contract between capture and training.

caches/<name>/
  plan.json            frozen before the first shard: which windows go into which shard, and the fingerprint of all that matters
  shards/*.parquet     written by Polars; one row is one window, row t of its lists speaks of token t+1
  manifest.d/*.json    one entry per finished shard: sha256, bytes, counts
  tokenizer/           the teacher's tokenizer, so that neither training nor reading needs the teacher
  manifest.json        published last: a cache with a manifest is complete
  ranks/*.json         while several processes capture: who they are, and what was missing when they began
  quarantine/          shard files that no entry vouches for; never overwritten, never read
"""

from .browse import browse, show_browse
from .estimate import Estimate, estimate, guessed_speed
from .manifest import Fingerprint, HiddenPlan, Manifest, Plan, ShardEntry, ShardPlan
from .opening import list_caches, open_cache
from .reader import Cache
from .records_check import finished_cache, verify_records
from .shards import ShardColumns
from .shared import shared_cache
from .tail import ANCHORS, bucket_logprobs, kept_mass, tail_at, tail_bracket, tail_mean_at, tail_mean_bracket
from .writer import CacheWriter, delete_cache

__all__ = [
    "ANCHORS",
    "Cache",
    "CacheWriter",
    "Estimate",
    "Fingerprint",
    "HiddenPlan",
    "Manifest",
    "Plan",
    "ShardColumns",
    "ShardEntry",
    "ShardPlan",
    "browse",
    "bucket_logprobs",
    "delete_cache",
    "estimate",
    "finished_cache",
    "guessed_speed",
    "kept_mass",
    "list_caches",
    "open_cache",
    "shared_cache",
    "show_browse",
    "tail_at",
    "tail_bracket",
    "tail_mean_at",
    "tail_mean_bracket",
    "verify_records",
]
