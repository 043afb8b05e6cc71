"""Earlier work: what a visitor at the plain address can go back to, their own and everybody's, newest first."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from ..cache import list_caches
from ..config import hard_label_twin
from ..language import ENGLISH, Say, later
from ..runs import MAKES_CACHE, Run, State, Status, list_runs
from ..units import show_time
from .pieces import folded, text
from .place import PLACES, Place

MAX_RUNS = 60
"""Run folders looked at, newest first."""

STATES: dict[State, str] = {
    "queued": later("waiting"),
    "running": later("at work"),
    "done": later("done"),
    "failed": later("failed"),
    "stopped": later("stopped"),
}


@dataclass(frozen=True)
class Work:
    """One line of the list, and where it leads."""

    kind: str
    """'train', 'capture' or 'cache'."""
    name: str
    state: State
    created_s: float
    owner: str
    place: Place
    judged: bool = False
    num_steps: int = 0


def earlier_work(*, limit: int = 12) -> list[Work]:
    """Trainings (with their twins in the same line), captures that made no cache, and caches that no listed training used."""
    statuses = [(run, run.status()) for run in list_runs()[:MAX_RUNS]]
    trainings = [(run, status) for run, status in statuses if status.kind == "train"]
    twins = _twins(trainings)
    found = [_training(run, status, twins.get(run.id)) for run, status in trainings if run.id not in {twin.id for twin in twins.values()}]
    used = {work.place.cache for work in found}
    found += [
        Work("capture", status.id, status.state, status.created_s, status.owner, Place(capture=status.id))
        for _, status in statuses
        if status.kind == "capture" and status.state != "done"
    ]
    owners = {status.result.get("cache"): status.owner for _, status in statuses if status.kind in MAKES_CACHE}
    found += [
        Work("cache", cache.name, "done", cache.folder.stat().st_mtime, owners.get(cache.name, ""), Place(cache=cache.name))
        for cache in list_caches()
        if cache.name not in used
    ]
    return sorted(found, key=lambda work: -work.created_s)[:limit]


def _training(run: Run, status: Status, twin: Status | None) -> Work:
    """Its state is the twin's while only that is still at work."""
    state = twin.state if twin and twin.is_active and not status.is_active else status.state
    place = Place(cache=run.inputs().get("cache"), run=run.id, baseline=twin.id if twin else None)
    judged, steps = run.evaluation_path.exists(), run.config().train.max_steps
    return Work("train", run.id, state, status.created_s, status.owner, place, judged, steps)


def _twins(trainings: Iterable[tuple[Run, Status]]) -> dict[str, Status]:
    """Student's id -> its hard-label twin: the same config but for the loss, on the same cache, made next after it."""
    found: dict[str, Status] = {}
    waiting: list[tuple[Run, Status]] = []
    for run, status in trainings:  # newest first: a twin comes before its student
        config = run.config()
        match = next(
            (
                (other, twin)
                for other, twin in reversed(waiting)
                if other.inputs() == run.inputs() and other.config() == hard_label_twin(config)
            ),
            None,
        )
        if match and config.loss.kl_weight > 0:
            found[run.id] = match[1]
            waiting.remove(match)
        elif config.loss.kl_weight == 0:
            waiting.append((run, status))
    return found


def earlier_list(works: Iterable[Work], query: Mapping[str, Any], *, is_open: bool, say: Say = ENGLISH) -> str:
    """The list as HTML, behind its title; links keep what else the address says (language, notebook). '' when there is none."""
    kept = {name: value for name, value in query.items() if name not in PLACES}
    lines = [_line(work, kept, say) for work in works]
    if not lines:
        return ""
    title = say("Earlier work on this machine ({count})", count=len(lines))
    inside = f"<ul>{''.join(lines)}</ul>"
    return f'<div lang="{say.code}">{folded(title, inside, is_open=is_open, kind="walk-earlier")}</div>'


def _line(work: Work, kept: Mapping[str, Any], say: Say) -> str:
    address = "?" + urlencode({**kept, **{name: value for name, value in asdict(work.place).items() if value}}, doseq=True)
    if work.kind == "train":
        words = say("student, {steps:,} steps on cache {cache}", steps=work.num_steps, cache=work.place.cache or "?")
    else:
        words = say("capture") if work.kind == "capture" else say("cache")
    about = [words, say("{time} ago", time=show_time(max(0.0, time.time() - work.created_s)))]
    if work.judged:
        about.append(say("judged"))
    if work.owner:
        about.append(say("by {name}", name=work.owner))
    return (
        f'<li><a href="{text(address)}" target="_self">{text(work.name)}</a> '
        f'<span class="state" data-is="{work.state}">{say(STATES[work.state])}</span> <small>{text(" · ".join(about))}</small></li>'
    )
