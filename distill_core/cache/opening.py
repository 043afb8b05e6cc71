"""Caches by name: one that is complete, opened; all of them, listed; why one cannot be opened, in words."""

from pathlib import Path

from ..errors import CacheError, did_you_mean
from ..paths import caches_dir, checked_name
from .manifest import Manifest, Plan, make_again, read_record
from .reader import Cache


def open_cache(name: str | Path, *, budget_bytes: int | None = None) -> Cache:
    """A complete cache by name or by its folder (a Path). Raises CacheError when it is absent, unfinished, or a shard is missing or cut."""
    folder = name if isinstance(name, Path) else caches_dir() / checked_name(name, "cache")
    try:
        manifest = read_record(Manifest, folder / "manifest.json", cache=folder.name)
    except FileNotFoundError:
        raise CacheError(_why_absent(folder)) from None
    cache = Cache(folder, manifest, budget_bytes=budget_bytes)
    for entry in manifest.entries:
        path = cache.shard_path(entry)
        if not path.exists():
            raise CacheError(f"cache {cache.name}: shard {entry.name} is missing. {make_again(folder)}")
        if path.stat().st_size != entry.num_bytes:
            raise CacheError(
                f"cache {cache.name}: shard {entry.name} has {path.stat().st_size:,} bytes, "
                f"the manifest says {entry.num_bytes:,}. {make_again(folder)}"
            )
    return cache


def _why_absent(folder: Path) -> str:
    if (folder / "plan.json").exists():
        done = len(list((folder / "manifest.d").glob("*.json")))
        total = len(read_record(Plan, folder / "plan.json", cache=folder.name).shards)
        return f"cache {folder.name} is unfinished: {done} of {total} shards. It goes on where it was. {make_again(folder)}"
    known = [cache.name for cache in list_caches()]
    hint = did_you_mean(folder.name, known) if known else " There is none yet; make one: python -m distill_core capture"
    return f"no cache '{folder.name}' in {folder.parent}.{hint}"


def list_caches() -> list[Cache]:
    """Complete caches whose manifest can be read, by name."""
    if not caches_dir().is_dir():
        return []
    found = []
    for folder in sorted(caches_dir().iterdir()):
        try:
            found.append(Cache(folder, read_record(Manifest, folder / "manifest.json", cache=folder.name)))
        except (CacheError, FileNotFoundError, NotADirectoryError):
            continue
    return found
