"""Where the nine steps stand, and the one sentence of the bar: what works, what is wrong, what comes next. No widgets here."""

from collections.abc import Iterable
from typing import Literal

from .. import room
from ..errors import RoomError
from ..language import ENGLISH, Say, later
from ..runs import Status, open_run
from .place import STEPS, Found

StepState = Literal["ready", "next", "working", "done", "locked", "waiting", "wrong", "held"]
"""waiting: in the queue; wrong: its settings cannot be used; held: waits for a step above that is wrong."""

HOLDS = {"teacher": ("text", "cache", "plan", "train"), "text": ("cache",), "student": ("plan", "train")}
"""Step that may be wrong -> steps that wait for it then."""

WRONG = {
    "teacher": later("The teacher cannot be used as it is named: step 1 says why."),
    "text": later("The text cannot be read as it is named: step 2 says why."),
    "student": later("This student cannot be made: step 4 says why."),
}
FAILED = {
    "cache": later("The capture failed: step 3 says why, and what would help."),
    "train": later("The training failed: step 7 says why, and what would help."),
    "judge": later("The judging failed: step 8 says why."),
}
WORKING = {
    "cache": later("The teacher is reading. Meanwhile look at the student below; the rest unlocks by itself."),
    "train": later("The student is learning. You can close this page: it goes on, and this address finds it again."),
    "judge": later("The student is being judged on text it never saw."),
}
TODO = {
    "cache": later("Press Capture: the teacher reads the text once."),
    "train": later("Press Train: the student learns from the cache, and its twin from the bare text."),
    "judge": later("Press Judge: how good is the student, on text it never saw?"),
    "home": later("Press Export: a folder that any Hugging Face program can load."),
}


def step_states(found: Found, wrong: Iterable[str] = ()) -> dict[str, StepState]:
    """One state for each step; at most one is 'next'. wrong: steps whose settings cannot be used, keys of HOLDS."""
    states = _found_states(found)
    for key in wrong:
        states[key] = "wrong"
        for later_key in HOLDS[key]:
            if states[later_key] in ("ready", "next") or (later_key == "plan" and states[later_key] == "done"):
                states[later_key] = "held"
    return states


def _found_states(found: Found) -> dict[str, StepState]:
    states: dict[str, StepState] = dict.fromkeys(STEPS, "locked")
    before: StepState = "done" if found.cache else "ready"
    states |= {"teacher": before, "text": before, "cache": _at_work(found, "cache") or ("done" if found.cache else "next")}
    if found.cache is None:
        return states | {"student": "ready", "plan": "ready"}
    middle: StepState = "done" if found.run else "ready"
    states |= {"student": middle, "loss": middle, "plan": middle}
    states["train"] = _at_work(found, "train") or ("done" if found.is_trained else "next")
    if found.is_trained:
        states["judge"] = _at_work(found, "judge") or ("done" if found.evaluation else "next")
    if found.evaluation:
        states["home"] = "done" if found.exported else "next"
    return states


def runs_of(found: Found, key: str) -> list[Status]:
    """What was started in the steps with a button that starts runs: cache, train, judge."""
    started = {"cache": (found.capture,), "train": (found.run, found.baseline), "judge": (found.judge,)}
    return [status for status in started[key] if status is not None]


def _at_work(found: Found, key: str) -> StepState | None:
    """'waiting' while none of the step's active runs has begun; None where none is active."""
    active = [status.state for status in runs_of(found, key) if status.is_active]
    return None if not active else "waiting" if set(active) == {"queued"} else "working"


def what_next(found: Found, wrong: Iterable[str] = (), *, say: Say = ENGLISH) -> tuple[str, str]:
    """(key of the step to look at, one sentence): what works there, else what is wrong or failed, else what to do."""
    states = step_states(found, wrong)
    for wanted in ("working", "waiting", "wrong", "next"):
        for key, state in states.items():
            if state == wanted:
                return key, _sentence(found, key, state, say)
    return "home", say("All nine steps are done. Change a setting and train again: what do you expect to happen?")


def _sentence(found: Found, key: str, state: StepState, say: Say) -> str:
    if state == "working":
        return say(WORKING[key])
    if state == "wrong":
        return say(WRONG[key])
    if state == "waiting":
        ahead = min(status.num_ahead for status in runs_of(found, key) if status.is_active)
        if ahead == 0:
            return say("Waiting for its turn: it is the next one.")
        return (
            say("Waiting for its turn: 1 run is ahead of it.")
            if ahead == 1
            else say("Waiting for its turn: {count} runs are ahead of it.", count=ahead)
        )
    has_failed = key in FAILED and any(status.state == "failed" for status in runs_of(found, key))
    return say(FAILED[key] if has_failed else TODO[key])


def not_yours(statuses: Iterable[Status], visitor: room.Visitor, *, say: Say = ENGLISH) -> str:
    """Why this visitor can neither stop these runs nor let them go on; '' where they can."""
    for status in statuses:
        try:
            room.check_may_touch(visitor, open_run(status.id))
        except RoomError:
            if not status.owner:
                return say("It was started in the machine's own terminal: only the presenter can stop it or let it go on.")
            return say("{owner} started it: only {owner} and the presenter can stop it or let it go on.", owner=status.owner)
    return ""
