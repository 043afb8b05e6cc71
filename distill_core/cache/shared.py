"""One opened cache for all who look at it in this process: thirty visitors of a server must not read it thirty times."""

import threading
from collections import OrderedDict
from pathlib import Path

from ..paths import caches_dir, checked_name
from .opening import open_cache
from .reader import Cache

MOST = 4
"""Caches kept open; the one longest not asked for goes first."""
BUDGET_BYTES = 32 * 1024**2
"""Row groups that each keeps in memory: enough to look at windows, too little to train."""

_opened: OrderedDict[Path, tuple[tuple[int, int], Cache]] = OrderedDict()
_guard = threading.Lock()


def shared_cache(name: str) -> Cache:
    """The cache as `open_cache` gives it, the same object while its manifest is the same file. Raises CacheError as that does."""
    folder = caches_dir() / checked_name(name, "cache")
    with _guard:
        try:
            found = (folder / "manifest.json").stat()
        except FileNotFoundError:
            _opened.pop(folder, None)
            return open_cache(name)  # says what is missing
        identity = (found.st_ino, found.st_mtime_ns)
        if folder not in _opened or _opened[folder][0] != identity:
            _opened[folder] = (identity, open_cache(name, budget_bytes=BUDGET_BYTES))
            while len(_opened) > MOST:
                _opened.popitem(last=False)
        _opened.move_to_end(folder)
        return _opened[folder][1]
