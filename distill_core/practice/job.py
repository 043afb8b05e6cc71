"""The job that the page shows, which its address names: a run (writing, merging, translating) or a chain of students."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import chain, jobs, room
from ..errors import RoomError, RunError
from ..language import ENGLISH, Say
from ..runs import Run, open_run
from ..walk.place import SETTINGS

PLACES = ("run", "chain")
"""Keys of the address."""


@dataclass(frozen=True)
class Job:
    run: str | None = None
    chain: str | None = None

    @property
    def name(self) -> str:
        return self.chain or self.run or ""


def job_from(query: Mapping[str, Any]) -> Job | None:
    """The job that an address names; None where it names none. Names are not looked up."""
    named = {name: value for name in PLACES if isinstance(value := query.get(name), str) and value}
    return Job(chain=named["chain"]) if "chain" in named else Job(run=named["run"]) if named else None


def moved(made: Run | chain.Chain) -> Job:
    """The job that a form has started."""
    return Job(run=made.id) if isinstance(made, Run) else Job(chain=made.name)


def watched(job: Job) -> Run | None:
    """The run to show live: the job itself, or the chain's first that has not ended well, else its last. Raises RunError."""
    if job.chain is None:
        return open_run(str(job.run))
    last = None
    for run_id in chain.open_chain(job.chain).run_ids():
        try:
            last = open_run(run_id)
        except RunError:
            break  # not made yet
        if last.status().state != "done":
            break
    return last


def state_of(job: Job) -> str:
    """'queued', 'running', 'done', 'failed' or 'stopped'. Raises RunError."""
    return chain.state_of(chain.open_chain(job.chain)) if job.chain else open_run(str(job.run)).status().state


def not_yours(job: Job, visitor: room.Visitor, *, say: Say = ENGLISH) -> str:
    """Why this visitor can neither stop the job nor let it go on; '' where they can."""
    try:
        _check(job, visitor)
    except RoomError:
        owner = chain.open_chain(job.chain).owner if job.chain else open_run(str(job.run)).stored_status().owner
        if not owner:
            return say("It was started in the machine's own terminal: only the presenter can stop it or let it go on.")
        return say("{owner} started it: only {owner} and the presenter can stop it or let it go on.", owner=owner)
    return ""


def _check(job: Job, visitor: room.Visitor) -> None:
    if job.chain:
        chain.check_may_touch(visitor, chain.open_chain(job.chain))
    else:
        room.check_may_touch(visitor, open_run(str(job.run)))


def stop(job: Job, visitor: room.Visitor) -> None:
    """Ask it to save and end. Raises RoomError where it is another visitor's."""
    if job.chain:
        chain.stop(chain.open_chain(job.chain), by=visitor)
        return
    run = open_run(str(job.run))
    room.check_may_touch(visitor, run)
    jobs.stop(run)


def resume(job: Job, visitor: room.Visitor) -> Job:
    """Let it go on where it failed or was stopped. Raises RunError, RoomError."""
    if job.chain:
        chain.resume(chain.open_chain(job.chain), by=visitor)
    else:
        jobs.resume(open_run(str(job.run)), by=visitor)
    return job


def result_of(job: Job) -> dict[str, Any]:
    """What a finished run says that it made: its 'cache', or its 'text'; empty before. Raises RunError."""
    status = open_run(str(job.run)).status()
    return status.result if status.state == "done" else {}


def for_walk(made: Mapping[str, Any]) -> dict[str, str]:
    """What the walk's address needs to go on with what a run made: its cache, or its text as the source."""
    if "cache" in made:
        return {"cache": str(made["cache"])}
    return {SETTINGS: json.dumps({"text.source": f"written:{made['text']}"})} if "text" in made else {}
