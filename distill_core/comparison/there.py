"""Reading many runs while other visitors delete some of them."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from ..errors import DistillError
from ..runs import Run

T = TypeVar("T")


def of_each(runs: Iterable[Run], read: Callable[[Run], T]) -> list[tuple[Run, T]]:
    """Each run with what `read` finds of it, without runs that were deleted since they were listed: another visitor may do that.

    Raises what `read` raises of a run that is still there.
    """
    found = []
    for run in runs:
        try:
            found.append((run, read(run)))
        except (DistillError, FileNotFoundError):
            if (run.folder / "status.json").exists():
                raise
    return found
