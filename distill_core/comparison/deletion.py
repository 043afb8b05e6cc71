"""Before something is deleted: how much disk comes back, what would no longer work, and why it may be refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .. import room, runs
from ..cache import delete_cache
from ..errors import CacheError, DistillError, RunError, TextError
from ..paths import caches_dir, checked_name, texts_dir
from ..room import Visitor
from ..texts import delete_text
from .rows import folder_bytes, inputs_of

Kind = Literal["run", "cache", "text"]
TWIN = "-hard-labels"


@dataclass(frozen=True)
class Deletion:
    """What deleting one run, cache or written text would do."""

    kind: Kind
    name: str
    num_bytes: int
    """That come back."""
    dependents: tuple[str, ...] = ()
    """Runs that use it: of a cache those that learned from it, of a run those that were judged against it, of a text
    those that read it."""
    refused: str = ""
    """Why it cannot be deleted now; '' where it can."""
    twin: str = ""
    """Of a run: the one made with it by `train --twin`, for comparing the two; '' where there is none."""
    sweep: str = ""
    """Of a run: the sweep whose figures count it; '' where there is none."""
    chain: str = ""
    """Of a run: the chain that it is a link of, or judges one of; '' where there is none."""


def deletion_of(kind: Kind, name: str, *, by: Visitor | None = None) -> Deletion:
    """What deleting it would do, in a room for the visitor who asks; nothing is touched.

    Raises RunError, CacheError or TextError when there is no such thing.
    """
    visitor = by or Visitor()
    if kind == "run":
        run = runs.open_run(name)
        users = _users("run", name) + _users("baseline", name)
        active = f"run {name} is {run.status().state}: stop it first" if run.status().is_active else ""
        refused = active or _refusal(room.check_may_touch, visitor, run)
        made_by = {"twin": _twin_of(name), "sweep": _sweep_of(name), "chain": _chain_of(name)}
        return Deletion(kind, name, folder_bytes(run.folder), tuple(users), refused, **made_by)
    if kind == "text":
        return _deletion_of_text(name, visitor)
    folder = caches_dir() / checked_name(name, "cache")
    if not folder.is_dir():
        raise CacheError(f"no cache '{name}' in {caches_dir()}. See them: python -m distill_core cache list")
    users = _users("cache", name)
    refused = _in_use(f"cache {name}", users) or _refusal(room.check_may_touch_cache, visitor, name)
    return Deletion(kind, name, folder_bytes(folder), tuple(users), refused)


def _deletion_of_text(name: str, visitor: Visitor) -> Deletion:
    folder = texts_dir() / checked_name(name, "text")
    if not folder.is_dir():
        raise TextError(f"no written text '{name}' in {texts_dir()}. See them: python -m distill_core texts list")
    users = _readers(f"written:{name}")
    refused = _in_use(f"text {name}", users) or _refusal(room.check_may_touch_text, visitor, name)
    return Deletion("text", name, folder_bytes(folder), tuple(users), refused)


def _in_use(what: str, users: list[str]) -> str:
    busy = [user for user in users if runs.open_run(user).status().is_active]
    return f"{what} is in use by {', '.join(busy)}: stop that first" if busy else ""


def _readers(source: str) -> list[str]:
    """Runs that read this text, newest first: a training reads its cache only, whatever text its config names."""
    found = []
    for run in runs.list_runs():
        try:
            text = run.config().text if run.stored_status().kind in ("capture", "write") else None
        except DistillError:  # a config that cannot be read keeps nothing here
            continue
        if text is not None and source in (text.source, text.synthetic):
            found.append(run.id)
    return found


def _refusal(check: Callable[..., None], *asked: Any) -> str:
    try:
        check(*asked)
    except DistillError as error:
        return str(error).removesuffix(".")
    return ""


def _twin_of(name: str) -> str:
    """The run that hard_label_twin's naming makes its counterpart."""
    other = name.removesuffix(TWIN) if name.endswith(TWIN) else name + TWIN
    return other if other in [run.id for run in runs.list_runs("train")] else ""


def _sweep_of(name: str) -> str:
    from ..sweep.record import list_sweeps  # its package compares runs itself

    return next((each.name for each in list_sweeps() if name in [trial.run_id for trial in each.trials()]), "")


def _chain_of(name: str) -> str:
    from ..chain.record import list_chains  # its package compares runs itself

    return next((each.name for each in list_chains() if name in each.run_ids()), "")


def _users(role: str, name: str) -> list[str]:
    """Runs whose inputs name it in this role, newest first."""
    return [run.id for run in runs.list_runs() if inputs_of(run).get(role) == name]


def delete(what: Deletion, *, by: Visitor | None = None) -> int:
    """Delete it; returns the bytes that came back. `by`: in a room the visitor who asks.

    Raises RoomError if it is not theirs to delete, RunError, CacheError or TextError if it is active, or became so meanwhile.
    """
    visitor, name = by or Visitor(), what.name
    if what.kind == "run":
        room.check_may_touch(visitor, runs.open_run(name))
    elif what.kind == "cache":
        room.check_may_touch_cache(visitor, name)
    else:
        room.check_may_touch_text(visitor, name)
    if refused := deletion_of(what.kind, name, by=by).refused:
        raise {"run": RunError, "cache": CacheError, "text": TextError}[what.kind](f"{refused}.")
    return {"run": runs.delete_run, "cache": delete_cache, "text": delete_text}[what.kind](name)
