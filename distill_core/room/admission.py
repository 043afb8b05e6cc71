"""Who may add work to the room, and who may end it: the queue's cap, the disk's quota, owners. At home all of it is free."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ..cache import estimate
from ..config import DistillConfig
from ..errors import RoomError
from ..paths import caches_dir, locks_dir, runs_dir, texts_dir
from ..runs import MAKES_CACHE, Kind, Run, Status, list_runs
from ..units import show_disk
from .places import check_config
from .policy import Policy, policy
from .visitors import Visitor, is_same_name

UNKNOWN_VOCABULARY = 152_000
"""For the size of a cache whose teacher was not looked at: about the largest vocabulary there is, so that the guess is not too low."""


@dataclass(frozen=True)
class DiskUse:
    """One cache, run or written text on disk."""

    what: str
    """'cache', 'run' or 'text'."""
    name: str
    owner: str
    num_bytes: int

    @property
    def words(self) -> str:
        return f"{self.what} {self.name} ({show_disk(self.num_bytes)})"


@contextmanager
def admit(owner: str, config: DistillConfig, kind: Kind) -> Iterator[None]:
    """Inside, one run of that kind may be made. Raises RoomError, in a room, when the config, the queue or the disk forbids it.

    One at a time over all processes of the room, so that two clicks at once do not both take the last place.
    """
    rules = policy()
    if rules is None:
        yield
        return
    if not owner:
        raise RoomError("work in a room needs the name of its visitor. Log in, or start it from a terminal outside the room.")
    check_config(config)
    locks_dir().mkdir(parents=True, exist_ok=True)
    with FileLock(locks_dir() / "room.lock", timeout=30):
        check_queue(owner, rules)
        _check_disk(owner, rules, _coming_bytes(config, kind))
        yield


def check_queue(owner: str, rules: Policy) -> None:
    """Raise RoomError if the owner has as many queued and running runs as one visitor may have."""
    statuses = [status for run in list_runs() if is_same_name((status := run.stored_status()).owner, owner) and status.is_active]
    active = [status.id for status in statuses if Run(runs_dir() / status.id).status().is_active]
    if len(active) >= rules.max_active_runs:
        raise RoomError(
            f"{owner} has {len(active)} runs waiting or at work ({', '.join(active[:3])}{', …' if len(active) > 3 else ''}); this room "
            f"gives each visitor {rules.max_active_runs} at a time. Wait for one to end, or stop one."
        )


def _coming_bytes(config: DistillConfig, kind: Kind) -> int:
    return int(estimate(config, vocab_size=UNKNOWN_VOCABULARY).disk_bytes) if kind in MAKES_CACHE else 0


def _check_disk(owner: str, rules: Policy, coming_bytes: int) -> None:
    """Raise RoomError if the room or the owner has no disk left, with what is over and what could go."""
    uses = disk_use()
    own = [use for use in uses if is_same_name(use.owner, owner)]
    cases = (
        (own, rules.visitor_disk_gb, f"{owner}'s caches, runs and texts take", "this room gives a visitor", "Largest of yours"),
        (uses, rules.disk_gb, "all caches, runs and texts take", "this room has", "Largest"),
    )
    for counted, limit_gb, take, gives, largest in cases:
        used = sum(use.num_bytes for use in counted)
        over = used + coming_bytes - limit_gb * 1e9
        if over <= 0:
            continue
        coming = f", and this cache would take about {show_disk(coming_bytes)}" if coming_bytes else ""
        named = ", ".join(use.words for use in sorted(counted, key=lambda use: -use.num_bytes)[:3])
        what = f" {largest}: {named}. Delete what is no longer needed." if named else " Make it smaller: fewer windows, or a smaller K."
        raise RoomError(
            f"no disk left: {take} {show_disk(used)}{coming}; {gives} {show_disk(limit_gb * 1e9)}, that is {show_disk(over)} over.{what}"
        )


def disk_use() -> list[DiskUse]:
    """Every cache, run and written text, with its owner; what runs made belongs to who made it, to nobody where that run is gone."""
    found, cache_owners, text_owners = [], {}, {}
    for run in list_runs():
        status = run.stored_status()
        found.append(DiskUse("run", run.id, status.owner, _folder_bytes(run.folder)))
        if status.kind in MAKES_CACHE and (name := _captured(run, status)):
            cache_owners[name] = status.owner  # runs come newest first: who captured it first stays
        elif status.kind == "write" and (name := _written(run, status)):
            text_owners[name] = status.owner
    for what, parent, owners in (("cache", caches_dir(), cache_owners), ("text", texts_dir(), text_owners)):
        folders = sorted(parent.iterdir()) if parent.is_dir() else []
        found += [DiskUse(what, folder.name, owners.get(folder.name, ""), _folder_bytes(folder)) for folder in folders if folder.is_dir()]
    return found


def _captured(run: Run, status: Status) -> str | None:
    """The cache a capture made, or was to make where its name was given."""
    return status.result.get("cache") or run.config().capture.name


def _written(run: Run, status: Status) -> str | None:
    """The text a run wrote, or was to write where its name was given."""
    return status.result.get("text") or run.config().write.name


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a run at work replaces its files
            continue
    return total


def check_may_touch_cache(visitor: Visitor, name: str) -> None:
    """Raise RoomError, in a room, unless the visitor captured the cache and no one else learned from it, or is the presenter."""
    if policy() is None or visitor.is_presenter:
        return
    _check_made_by(visitor, "cache", name)
    readers = [run.stored_status().owner for run in list_runs("train") if run.inputs().get("cache") == name]
    others = sorted({reader for reader in readers if reader and not is_same_name(reader, visitor.name)})
    if others:
        raise RoomError(f"cache {name}: {', '.join(others)} learned from it, and needs it to judge and to export. Ask the presenter.")


def check_may_touch_text(visitor: Visitor, name: str) -> None:
    """Raise RoomError, in a room, unless the visitor wrote the text, or is the presenter. Caches that were made of it stay whole."""
    if policy() is not None and not visitor.is_presenter:
        _check_made_by(visitor, "text", name)


def _check_made_by(visitor: Visitor, what: str, name: str) -> None:
    owner = next((use.owner for use in disk_use() if (use.what, use.name) == (what, name)), "")
    if not is_same_name(owner, visitor.name):
        whom = f"{owner}, or the presenter" if owner else "the presenter"
        raise RoomError(f"{what} {name} belongs to {owner or 'the room'}: ask {whom} to delete it.")
