"""Whether the small files beside the shards are as written: reading does without them, going on with a capture does not."""

from pathlib import Path

from ..errors import CacheError
from .manifest import Plan, Record, ShardEntry, make_again, read_record
from .opening import open_cache
from .reader import Cache


def verify_records(cache: Cache) -> None:
    """Compare plan.json and every shard's entry with the manifest. Raises CacheError that names the first one that is damaged or gone."""
    expected: list[tuple[type[Record], str, Record]] = [(Plan, "plan.json", cache.plan)]
    expected += [(ShardEntry, f"manifest.d/{entry.name}.json", entry) for entry in cache.manifest.entries]
    for kind, name, record in expected:
        again = f"Whole shards are kept. {make_again(cache.folder)}"
        try:
            found = read_record(kind, cache.folder / name, cache=cache.name)
        except FileNotFoundError:
            raise CacheError(f"cache {cache.name}: {name} is missing. {again}") from None
        if found != record:
            raise CacheError(f"cache {cache.name}: {name} is not the one that the manifest was made from. {again}")


def finished_cache(folder: Path, plan: Plan) -> Cache | None:
    """The cache if it is complete, of this plan, and every byte is as it was written; else the writer goes on with it, mends it, or names
    the fields that differ."""
    if not (folder / "manifest.json").exists():
        return None
    try:
        cache = open_cache(folder)
        cache.verify()
        verify_records(cache)
    except CacheError:
        return None  # damaged shards go to quarantine and are made again
    return cache if cache.plan == plan else None
