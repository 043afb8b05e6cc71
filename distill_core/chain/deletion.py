"""A chain goes with all that it made: its runs, caches and texts, its folder last: a kill in between leaves a chain to delete."""

import shutil

from .. import comparison
from ..comparison import Deletion
from ..errors import CacheError, RunError, TextError
from ..paths import caches_dir, texts_dir
from ..room import Visitor
from ..runs import open_run
from .drive import is_driven
from .record import Chain, check_may_touch


def parts_of(chain: Chain, *, by: Visitor | None = None) -> list[Deletion]:
    """What deleting the chain would delete, in the order in which it goes: runs before the caches that they learned from, and last the
    runs that made caches and texts, for they say whose those are."""
    others: list[Deletion] = []
    makers: list[Deletion] = []
    for run_id in reversed(chain.run_ids()):
        try:
            run = open_run(run_id)
        except RunError:
            continue
        (makers if run.stored_status().kind in ("capture", "write") else others).append(comparison.deletion_of("run", run.id, by=by))
    caches = dict.fromkeys(link.cache for link in chain.links())
    texts = [link.text for link in chain.links() if link.writes]
    made = [comparison.deletion_of("cache", name, by=by) for name in caches if (caches_dir() / name).is_dir()]
    made += [comparison.deletion_of("text", name, by=by) for name in texts if (texts_dir() / name).is_dir()]
    return others + made + makers


def delete_chain(chain: Chain, *, is_sure: bool = False, by: Visitor | None = None) -> int:
    """Delete it and all that it made; returns the bytes that came back. `by`: in a room the visitor who asks.

    Raises RunError while somebody works on it, and, unless `is_sure`, where other runs name what would go; RoomError if it is not theirs.
    """
    check_may_touch(by or Visitor(), chain)
    if is_driven(chain):
        raise RunError(f"chain {chain.name} is being worked on. Stop it first: python -m distill_core chain stop {chain.name}")
    parts = parts_of(chain, by=by)
    own = {part.name for part in parts if part.kind == "run"}
    others = sorted({name for part in parts for name in part.dependents} - own)
    if others and not is_sure:
        used = f"{', '.join(others)} learned from its caches, or are judged against its runs"
        raise RunError(f"chain {chain.name}: {used}. To delete it all the same, say --yes.")
    num_bytes = 0
    for part in parts:
        try:
            num_bytes += comparison.delete(part, by=by)
        except (CacheError, TextError) as error:
            raise RunError(f"chain {chain.name} stays: {error}") from None
    shutil.rmtree(chain.folder)
    return num_bytes
