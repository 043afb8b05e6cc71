"""Before something is deleted: how much disk comes back, what would no longer work, and why it may be refused."""

from dataclasses import dataclass
from typing import Literal

from .. import room, runs
from ..cache import delete_cache
from ..errors import CacheError, RunError
from ..paths import caches_dir, checked_name
from .rows import folder_bytes, inputs_of

Kind = Literal["run", "cache"]


@dataclass(frozen=True)
class Deletion:
    """What deleting one run or cache would do."""

    kind: Kind
    name: str
    num_bytes: int
    """That come back."""
    dependents: tuple[str, ...] = ()
    """Runs that use it: of a cache those that learned from it, of a run those that were judged against it."""
    refused: str = ""
    """Why it cannot be deleted now; '' where it can."""


def deletion_of(kind: Kind, name: str) -> Deletion:
    """What deleting it would do; nothing is touched. Raises RunError or CacheError when there is no such thing."""
    if kind == "run":
        run = runs.open_run(name)
        state = run.status().state
        refused = f"run {name} is {state}: stop it first" if run.status().is_active else ""
        users = _users("run", name) + _users("baseline", name)
        return Deletion(kind, name, folder_bytes(run.folder), tuple(users), refused)
    folder = caches_dir() / checked_name(name, "cache")
    if not folder.is_dir():
        raise CacheError(f"no cache '{name}' in {caches_dir()}. See them: python -m distill_core cache list")
    users = _users("cache", name)
    active = [user for user in users if runs.open_run(user).status().is_active]
    refused = f"cache {name} is in use by {', '.join(active)}: stop that first" if active else ""
    return Deletion(kind, name, folder_bytes(folder), tuple(users), refused)


def _users(role: str, name: str) -> list[str]:
    """Runs whose inputs name it in this role, newest first."""
    return [run.id for run in runs.list_runs() if inputs_of(run).get(role) == name]


def delete(what: Deletion, *, by: room.Visitor | None = None) -> int:
    """Delete it; returns the bytes that came back. Raises RunError or CacheError if it is active, or became so meanwhile.

    In a room `by` is the visitor who asks. Raises RoomError if it is not theirs to delete.
    """
    if what.kind == "run":
        room.check_may_touch(by or room.Visitor(), runs.open_run(what.name))
    else:
        room.check_may_touch_cache(by or room.Visitor(), what.name)
    now = deletion_of(what.kind, what.name)
    if now.refused:
        raise (RunError if now.kind == "run" else CacheError)(f"{now.refused}.")
    return runs.delete_run(what.name) if what.kind == "run" else delete_cache(what.name)
