"""What the walk knows: where a visitor is, and what the folders say about it. No widgets here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import jobs, room
from ..cache import Cache, list_caches, shared_cache
from ..comparison.settings import dotted
from ..config import DistillConfig, from_dict, with_overrides
from ..errors import DistillError, RunError
from ..language import later
from ..paths import home
from ..runs import Run, Status, open_run

STEPS = {
    "teacher": later("Teacher"),
    "text": later("Text"),
    "cache": later("Cache"),
    "student": later("Student"),
    "loss": later("Loss"),
    "plan": later("Memory plan"),
    "train": later("Train"),
    "judge": later("Judge"),
    "home": later("Take it home"),
}
"""Key -> title, in order."""


@dataclass(frozen=True)
class Place:
    """Where a visitor is: the names that the page's address carries. Everything else is read from their folders."""

    capture: str | None = None
    cache: str | None = None
    run: str | None = None
    baseline: str | None = None
    judge: str | None = None


PLACES = tuple(Place.__dataclass_fields__)


def place_from(query: Mapping[str, Any]) -> Place:
    """From the address's query; other keys are passed over, of repeated ones the last counts."""
    last = {name: value[-1] if isinstance(value, list) else value for name, value in query.items() if name in PLACES and value}
    return Place(**last)


@dataclass(frozen=True)
class Found:
    """What the folders say about a place at one moment."""

    capture: Status | None = None
    cache: Cache | None = None
    run: Status | None = None
    baseline: Status | None = None
    judge: Status | None = None
    evaluation: dict[str, Any] | None = None
    exported: Path | None = None
    problems: tuple[str, ...] = ()
    """Names in the address that lead nowhere, in words."""

    @property
    def is_trained(self) -> bool:
        """The student has ended with weights to judge, and its twin, if any, has ended too."""
        ended = self.run is not None and self.run.state in ("done", "stopped") and open_run(self.run.id).model_folder.is_dir()
        return ended and not (self.baseline is not None and self.baseline.is_active)

    @property
    def is_empty(self) -> bool:
        """Nothing was begun at this address."""
        return self.capture is None and self.cache is None and self.run is None

    @property
    def was_there(self) -> bool:
        """The capture found its cache finished: it read nothing, and has nothing to draw."""
        return self.capture is not None and self.capture.state == "done" and not open_run(self.capture.id).metrics_path.exists()

    @property
    def can_resume(self) -> bool:
        """The training or its twin failed or was stopped, and nothing runs now."""
        ended = any(status is not None and status.state in ("failed", "stopped") for status in (self.run, self.baseline))
        return ended and not self.is_training

    @property
    def has_checkpoint(self) -> bool:
        """One that ended early has a whole checkpoint to go on from; the other begins anew."""
        ended = [status for status in (self.run, self.baseline) if status is not None and status.state in ("failed", "stopped")]
        # the file that a checkpoint's writer writes last; training/checkpoints.py would bring torch along
        return any(any(open_run(status.id).checkpoints_folder.glob("checkpoint-*/trainer_state.json")) for status in ended)

    @property
    def is_training(self) -> bool:
        return any(status is not None and status.is_active for status in (self.run, self.baseline))


def export_folder(run_id: str) -> Path:
    """Where the app puts an exported student."""
    return home() / "exports" / run_id


def find(place: Place) -> Found:
    """Read the folders. Never raises: what cannot be found is named in `problems`."""
    problems: list[str] = []

    def opened(run_id: str | None) -> Run | None:
        try:
            return open_run(run_id) if run_id else None
        except DistillError as error:
            problems.append(str(error))
            return None

    runs = {name: opened(getattr(place, name)) for name in ("capture", "run", "baseline", "judge")}
    statuses = {name: run.status() if run else None for name, run in runs.items()}
    capture, run = statuses["capture"], runs["run"]
    cache_name = place.cache or (capture.result.get("cache") if capture else None) or (run.inputs().get("cache") if run else None)
    cache = None
    try:
        cache = shared_cache(cache_name) if cache_name else None
    except DistillError as error:
        problems.append(str(error))
    evaluation = None
    if run and run.evaluation_path.exists():  # judging writes into the judged run too, so that a run alone shows its verdict
        evaluation = json.loads(run.evaluation_path.read_text(encoding="utf-8"))
    folder = export_folder(run.id) if run else None
    exported = folder if folder and folder.is_dir() else None
    return Found(**statuses, cache=cache, evaluation=evaluation, exported=exported, problems=tuple(problems))


SETTINGS = "settings"
"""In an address: settings that were changed and not yet run, for a page that is opened anew in another language."""


def carried(config: DistillConfig | None, opening: DistillConfig) -> dict[str, str]:
    """What to add to an address so that `opening_config` finds this config instead of the one the page opened with."""
    was, now = dotted(opening), dotted(config or opening)
    changed = {name: value for name, value in now.items() if value != was.get(name)}
    return {SETTINGS: json.dumps(changed, separators=(",", ":"))} if changed else {}


def opening_config(place: Place, query: Mapping[str, Any] | None = None) -> DistillConfig:
    """The settings a visitor comes back to: those of the run, else of the cache or its capture, else the defaults, with those that the
    address carries; an address that says nonsense carries nothing."""
    found, told = _stored_config(place), (query or {}).get(SETTINGS)
    try:
        changed = json.loads(told) if isinstance(told, str) else {}
        return with_overrides(found, changed) if isinstance(changed, dict) else found
    except (ValueError, DistillError):
        return found


def _stored_config(place: Place) -> DistillConfig:
    try:
        if place.run:
            return open_run(place.run).config()
        if place.cache:
            return from_dict(shared_cache(place.cache).manifest.config)
        if place.capture:
            return open_run(place.capture).config()
    except DistillError:
        pass  # find() says what is wrong with the address
    return DistillConfig()


def remedied(found: Found) -> DistillConfig | None:
    """The failed training's config with the first way out of its shortage of memory; None where it failed otherwise."""
    for status in (found.run, found.baseline):
        ways = status.result.get("remedy_settings") if status is not None and status.state == "failed" else None
        if ways and found.run:
            config = open_run(found.run.id).config()
            sections = {name: getattr(config, name).changed(**values) for name, values in ways[0].items()}
            made = config.changed(**sections)
            return made.changed(train=made.train.changed(name=None))
    return None


def moved(place: Place, **names: str | None) -> Place:
    """The place with some names replaced; what came after a replaced step is forgotten."""
    forgotten = PLACES if "capture" in names or "cache" in names else ("baseline", "judge") if "run" in names else ()
    return replace(place, **{**dict.fromkeys(forgotten), **names})


def capture_to_watch(place: Place) -> str | None:
    """The capture whose charts are worth showing: none where its cache was there already, so that nothing was read."""
    found = find(Place(capture=place.capture))
    return None if found.capture is None or found.was_there else found.capture.id


def to_judge(place: Place) -> tuple[str, str | None]:
    """(run, twin) to judge: the twin only when both went their whole way, for a shorter training is no equal budget. Raises RunError."""
    if place.run is None:
        raise RunError("there is no trained student to judge: train one first.")
    both = place.baseline is not None and all(open_run(name).status().state == "done" for name in (place.run, place.baseline))
    return place.run, place.baseline if both else None


def cache_names() -> list[str]:
    """Complete caches, by name."""
    return [cache.name for cache in list_caches()]


def stop_all(place: Place, visitor: room.Visitor) -> None:
    """Ask every active run of the place to finish its step, save and end. Raises RoomError for those of another visitor."""
    for run_id in (place.capture, place.run, place.baseline, place.judge):
        if run_id and (run := open_run(run_id)).status().is_active:
            room.check_may_touch(visitor, run)
            jobs.stop(run)


def resume_all(place: Place, visitor: room.Visitor) -> list[Run]:
    """Let the training and its twin go on where they failed or were stopped. Raises RunError when neither did; RoomError."""
    ended = [run for run_id in (place.run, place.baseline) if run_id and (run := open_run(run_id)).status().state in ("failed", "stopped")]
    if not ended:
        raise RunError("neither the training nor its twin has failed or was stopped: nothing to resume.")
    for run in ended:
        jobs.resume(run, by=visitor)
    return ended
