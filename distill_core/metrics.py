"""metrics.jsonl: appended by the run, followed by any number of readers, thinned so that no spike is lost."""

import json
import math
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from .paths import publish

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Add one row as one line, in one write; floats are kept to 7 significant digits."""
    rounded = {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in row.items()}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(rounded) + "\n")


def read(path: Path) -> list[Row]:
    """All whole rows; [] when the file is not there yet."""
    return Follower(path).read_new()


def drop_after(path: Path, step: int) -> None:
    """Remove rows past a step: a resumed run writes them again. The file is replaced in one step."""
    if not path.exists():
        return
    kept = [row for row in read(path) if row.get("step", 0) <= step]
    publish(path, "".join(json.dumps(row) + "\n" for row in kept))


class Follower:
    """Reads what was added since the last read; a half-written last line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.inode: int | None = None
        self.was_replaced = False

    def read_new(self, max_bytes: int = -1) -> list[Row]:
        """Rows added since, of the next max_bytes if that is given; all of them again after the file was replaced or shortened."""
        try:
            with open(self.path, "rb") as file:
                self._start_over_if_replaced(file.fileno())
                file.seek(self.offset)
                text = file.read(max_bytes)
        except FileNotFoundError:
            return []
        whole = text.rfind(b"\n") + 1
        self.offset += whole
        return [json.loads(line) for line in text[:whole].splitlines()]

    def _start_over_if_replaced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if self.inode is not None and (found.st_ino != self.inode or found.st_size < self.offset):
            self.offset = 0
            self.was_replaced = True
        self.inode = found.st_ino


class Thinned:
    """A history of any length in bounded room: of each stretch the rows at which a watched figure is smallest or largest.

    Every value of a kept row is its own, so peaks and dips survive, which keeping each n-th row would not promise. The first row, the
    last one, and looks at the held-out text (few) are always kept. Each row is looked at once, and again when stretches join: O(1).
    """

    def __init__(self, max_stretches: int) -> None:
        self._max_stretches = max(1, max_stretches)
        self._stretches: list[dict[tuple[str, int], tuple[float, int, Row]]] = []
        self._length = 1
        """Rows in a stretch; doubles when there are too many stretches."""
        self._count = 0
        self._always: dict[int, Row] = {}
        self._last: tuple[int, Row] | None = None

    def add(self, row: Row) -> None:
        number, self._count = self._count, self._count + 1
        if number == 0 or any(key.startswith("heldout_") for key in row):
            self._always[number] = row
        self._last = (number, row)
        if number // self._length >= len(self._stretches):
            self._stretches.append({})
        _keep_extremes(self._stretches[-1], ((key, row[key[0]] * key[1], number, row) for key in EXTREMES if _is_number(row.get(key[0]))))
        if len(self._stretches) > self._max_stretches:
            self._join()

    def _join(self) -> None:
        for left, right in zip(self._stretches[::2], self._stretches[1::2]):
            _keep_extremes(left, ((key, *found) for key, found in right.items()))
        self._stretches = self._stretches[::2]
        self._length *= 2

    def rows(self) -> list[Row]:
        """Kept rows in order; at most max_stretches x len(EXTREMES), and those always kept."""
        kept = self._always | dict([self._last] if self._last else [])
        kept |= {number: row for stretch in self._stretches for _, number, row in stretch.values()}
        return [kept[number] for number in sorted(kept)]


EXTREMES = (
    *((name, sign) for name in ("loss", "kl", "ce", "grad_norm", "top1_agreement", "tokens_per_s", "kept_mass") for sign in (1, -1)),
    ("memory_gib", 1),
    ("peak_memory_gib", 1),
)
"""Figures whose largest (1) and smallest (-1) values are kept of each stretch."""


def _keep_extremes(
    stretch: dict[tuple[str, int], tuple[float, int, Row]], found: Iterable[tuple[tuple[str, int], float, int, Row]]
) -> None:
    for key, value, number, row in found:
        if key not in stretch or value > stretch[key][0]:
            stretch[key] = (value, number, row)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def thin(rows: Iterable[Row], max_points: int) -> list[Row]:
    """At most about max_points rows, with every extreme: see Thinned. A short history comes back whole."""
    rows = list(rows)
    if len(rows) <= max_points:
        return rows
    thinned = Thinned(max_points // len(EXTREMES))
    for row in rows:
        thinned.add(row)
    return thinned.rows()


class Part(NamedTuple):
    """What one viewer has not seen yet."""

    rows: list[Row]
    cursor: int
    generation: int
    is_whole: bool
    """The rows are the history from its start, thinned if long: they replace what the viewer has."""


class Feed:
    """One parse of a metrics file for all its viewers in this process, in bounded memory however long the run."""

    CHUNK_BYTES = 1 << 20
    """Read at once: a long history is parsed piece by piece, and never stands in memory as a whole."""
    RECENT = 1000
    """Rows kept as they are; a viewer who missed more gets the history again, thinned."""
    MAX_STRETCHES = 80

    def __init__(self, path: Path) -> None:
        self.follower = Follower(path)
        self.generation = 0
        self.lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.recent: deque[Row] = deque(maxlen=self.RECENT)
        self.thinned = Thinned(self.MAX_STRETCHES)
        self.count = 0

    def _take(self, new: list[Row]) -> None:
        if self.follower.was_replaced:
            self.follower.was_replaced = False
            self.generation += 1
            self._begin()
        for row in new:
            shown = {key: value if not isinstance(value, float) or math.isfinite(value) else None for key, value in row.items()}
            self.recent.append(shown)  # NaN is no JSON, and a chart cannot place it
            self.thinned.add(shown)
        self.count += len(new)

    def rows_since(self, cursor: int, generation: int | None = None) -> Part:
        """Rows from the cursor on; all again, with a higher generation, after the file was replaced. A wrong cursor starts over."""
        with self.lock:
            while new := self.follower.read_new(self.CHUNK_BYTES):
                self._take(new)
            self._take([])  # an empty file may have replaced another
            missed = self.count - cursor
            is_whole = generation != self.generation or not 0 <= missed <= len(self.recent)
            if not is_whole:
                rows = list(islice(self.recent, len(self.recent) - missed, None))
            else:
                rows = list(self.recent) if self.count <= len(self.recent) else self.thinned.rows()
            return Part(rows, self.count, self.generation, is_whole)


MAX_FEEDS = 256
_feeds: OrderedDict[Path, Feed] = OrderedDict()
_feeds_lock = threading.Lock()


def feed(path: Path) -> Feed:
    """The shared feed of a metrics file; the ones longest unasked for make room."""
    key = path.resolve()
    with _feeds_lock:
        found = _feeds.setdefault(key, Feed(path))
        _feeds.move_to_end(key)
        while len(_feeds) > MAX_FEEDS:
            _feeds.popitem(last=False)
        return found
