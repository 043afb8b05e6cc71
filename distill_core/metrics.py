"""metrics.jsonl: appended by the run, followed by any number of readers, thinned so that no spike is lost."""

import json
import os
import threading
from pathlib import Path
from typing import Any

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

    def read_new(self) -> list[Row]:
        """Rows added since; all of them again after the file was replaced or shortened."""
        try:
            with open(self.path, "rb") as file:
                self._start_over_if_replaced(file.fileno())
                file.seek(self.offset)
                text = file.read()
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


class Feed:
    """One parse of a metrics file for all its viewers in this process."""

    def __init__(self, path: Path) -> None:
        self.follower = Follower(path)
        self.rows: list[Row] = []
        self.generation = 0
        self.lock = threading.Lock()

    def rows_since(self, cursor: int, generation: int | None = None) -> tuple[list[Row], int, int]:
        """(rows from the cursor on, new cursor, generation); after the file was replaced the generation rises and all rows come again."""
        with self.lock:
            new = self.follower.read_new()
            if self.follower.was_replaced:
                self.rows, self.follower.was_replaced = [], False
                self.generation += 1
            self.rows += new
            if generation is not None and generation != self.generation:
                cursor = 0
            cursor = min(max(cursor, 0), len(self.rows))
            return self.rows[cursor:], len(self.rows), self.generation


_feeds: dict[Path, Feed] = {}
_feeds_lock = threading.Lock()


def feed(path: Path) -> Feed:
    """The shared feed of a metrics file."""
    with _feeds_lock:
        return _feeds.setdefault(path.resolve(), Feed(path))


def thin(rows: list[Row], max_points: int, *, low: str = "loss", high: str = "memory_gib") -> list[Row]:
    """At most about max_points rows: of each stretch those with the smallest and largest `low` and the largest `high`.

    Every value of a kept row is its own; peaks and dips survive, which keeping each n-th row would not promise. Rows without `low`
    (looks at the held-out text) are few and always kept.
    """
    if len(rows) <= max_points:
        return rows
    num_buckets = max(1, max_points // 3)
    kept: list[Row] = []
    for bucket in range(num_buckets):
        part = rows[bucket * len(rows) // num_buckets : (bucket + 1) * len(rows) // num_buckets]
        chosen = {i for i, row in enumerate(part) if low not in row}
        for key, pick in ((low, min), (low, max), (high, max)):
            indices = [i for i, row in enumerate(part) if row.get(key) is not None]
            if indices:
                chosen.add(pick(indices, key=lambda i: part[i][key]))
        kept += [part[i] for i in sorted(chosen)]
    return kept
