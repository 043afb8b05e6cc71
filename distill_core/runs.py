"""A run is a folder: config, status, metrics, log, checkpoints, model. Any process reads it at any time; nothing lives elsewhere.

runs/<id>/  config.json  inputs.json  status.json  metrics.jsonl  log.txt  stop  alive  job.json  checkpoints/  model/  evaluation.json
"""

import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import psutil
from pydantic import BaseModel, Field, ValidationError

from . import engines
from .config import DistillConfig, read_config
from .errors import RunError, did_you_mean
from .paths import checked_name, publish, runs_dir
from .processes import is_alive, this_machine

Kind = Literal["capture", "merge", "translate", "write", "train", "evaluate"]
MAKES_CACHE: tuple[Kind, ...] = ("capture", "merge", "translate")
"""Kinds of run that end with a cache."""
State = Literal["queued", "running", "done", "failed", "stopped"]
ACTIVE: tuple[State, ...] = ("queued", "running")
START_GRACE_S = 60.0
"""A run just created may take this long to say which process works on it."""
NOW = "now"
"""In the file `stop`: the run was ended at once, without saving."""
HEARTBEAT_S = 5.0
"""The process that works on a run touches its file `alive` this often, for those who look from another machine."""
SILENCE_S = 30.0
"""A run of another machine whose `alive` is older is asked for at its engine, or taken for dead where it has none."""


class Status(BaseModel):
    id: str
    kind: Kind
    state: State = "queued"
    label: str = ""
    owner: str = ""
    """In a room: the visitor who started it; only they and the presenter may stop or delete it."""
    device: str = "cpu"
    created_s: float
    started_s: float | None = None
    ended_s: float | None = None
    pid: int | None = None
    process_start_s: float | None = None
    """With the pid, the identity of a process: pids are used again, pairs are not."""
    machine: str = ""
    """Where that pid means something; '' in folders from before there were several machines."""
    phase: str = "waiting to start"
    """In words: what it is doing now."""
    done: int = 0
    total: int = 0
    unit: str = ""
    time_left_s: float | None = None
    num_ahead: int = 0
    """While it waits: runs that come first on its device."""
    wait_s: float | None = None
    """While it waits: seconds until they have ended, by a guess; none: nothing to go by."""
    error: str | None = None
    result: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log_path(self) -> Path:
        return self.folder / "log.txt"

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    @property
    def evaluation_path(self) -> Path:
        return self.folder / "evaluation.json"

    def config(self) -> DistillConfig:
        return read_config(self.folder / "config.json")

    def inputs(self) -> dict[str, str]:
        """What the run works on: {'cache': name} or {'run': id, 'baseline': id}."""
        return json.loads((self.folder / "inputs.json").read_text(encoding="utf-8"))

    def stored_status(self) -> Status:
        """status.json as written. Raises RunError if it is missing or not a status."""
        try:
            return Status.model_validate_json((self.folder / "status.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(
                f"run {self.id}: no status.json in {self.folder}. It is not a run; delete the folder or choose another."
            ) from None
        except ValidationError as error:
            raise RunError(
                f"run {self.id}: status.json is not a status ({error.error_count()} faults). Delete the folder to be rid of it."
            ) from None

    def status(self) -> Status:
        """The status now: a run whose process is gone is failed, whatever its file says, with the last lines it wrote."""
        status = self.stored_status()
        if not status.is_active or self._is_worked_on(status):
            return status
        again = self.stored_status()  # it may have ended between the read and the look at the process
        if not again.is_active:
            return again
        if self._stop_path.exists() and self._stop_path.read_text() == NOW:
            words = "ended at once, as asked; go on from its last checkpoint: python -m distill_core runs resume " + self.id
            return again.model_copy(update={"state": "stopped", "phase": words, "time_left_s": None})
        return again.model_copy(update={"state": "failed", "error": self._obituary(again), "time_left_s": None})

    def _obituary(self, status: Status) -> str:
        """Why a run that nobody works on any more has failed, as far as anybody can say."""
        last = "".join(f"\n{line}" for line in self.log_tail(8))
        word = f"process {status.pid}" if status.pid else "the process that was to work on it"
        job = self.job()
        told = f"\n{engines.last_words(job)}" if job else ""
        return (
            f"{word} is gone without a last word: killed, out of memory, or the machine went down. "
            f"Go on with it: python -m distill_core runs resume {self.id}{told}" + (f"\nLast lines:{last}" if last else "")
        )

    def _is_worked_on(self, status: Status) -> bool:
        """A pid is only looked up on its own machine; elsewhere the file `alive` counts, and then what the engine says."""
        if status.pid is not None and status.machine in ("", this_machine()):
            return is_alive(status.pid, status.process_start_s)
        if status.pid is not None and self._silent_s() < SILENCE_S:
            return True
        job = self.job()
        if job is None:
            return status.pid is None and time.time() - status.created_s < START_GRACE_S
        return engines.is_alive(job) is not False  # an engine that does not answer is not a death

    def job(self) -> engines.Job | None:
        """Its job at an engine; none for a run that a process of one machine works on."""
        return engines.read_job(self.folder)

    def forget_job(self) -> None:
        (self.folder / "job.json").unlink(missing_ok=True)

    def show_life(self) -> None:
        """Said every HEARTBEAT_S by the process that works on the run."""
        (self.folder / "alive").touch()

    def _silent_s(self) -> float:
        try:
            return time.time() - (self.folder / "alive").stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    def update(self, **values: Any) -> Status:
        """Replace parts of the status in one step."""
        status = self.stored_status().model_copy(update=values)
        publish(self.folder / "status.json", status.model_dump_json(indent=2) + "\n")
        return status

    def claim(self) -> None:
        """Write this process down as the one that works on the run. Raises RunError if another, living one does."""
        status = self.stored_status()
        here = this_machine()
        is_here = status.machine in ("", here)
        lives = is_alive(status.pid or 0, status.process_start_s) if is_here else self._silent_s() < SILENCE_S
        if status.pid is not None and not (is_here and status.pid == os.getpid()) and lives:
            raise RunError(
                f"run {self.id}: process {status.pid} is working on it. Wait for it, or stop it: python -m distill_core runs stop {self.id}"
            )
        self.show_life()
        start_s = psutil.Process().create_time()
        self.update(pid=os.getpid(), process_start_s=start_s, machine=here, state="queued", error=None, ended_s=None)

    def log_tail(self, num_lines: int) -> list[str]:
        """The last lines of log.txt, without those that a progress bar overwrote; [] when there is no log."""
        if not self.log_path.exists():
            return []
        with open(self.log_path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64_000))
            text = file.read().decode("utf-8", errors="replace")
        lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
        return [line for line in lines if line][-num_lines:]

    @property
    def _stop_path(self) -> Path:
        return self.folder / "stop"

    def request_stop(self) -> None:
        """Ask the run to finish its step, save and end; safe to ask twice."""
        if not self._stop_path.exists():  # its age says how long ago the first asking was
            self._stop_path.touch()

    def stop_requested(self) -> bool:
        return self._stop_path.exists()

    def stop_asked_s(self) -> float | None:
        """Seconds since a stop was asked for; none if it was not."""
        try:
            return time.time() - self._stop_path.stat().st_mtime
        except FileNotFoundError:
            return None

    def mark_ended_now(self) -> None:
        """Note that it is being ended without saving, so that it is shown as stopped, not as failed."""
        publish(self._stop_path, NOW)

    def clear_stop(self) -> None:
        self._stop_path.unlink(missing_ok=True)


def create_run(
    kind: Kind,
    config: DistillConfig,
    *,
    inputs: dict[str, str] | None = None,
    label: str = "",
    name: str | None = None,
    device: str = "cpu",
    owner: str = "",
) -> Run:
    """A new run folder, queued. Raises RunError if the name is taken."""
    if kind not in get_args(Kind):
        raise RunError(f"no kind of run '{kind}'.{did_you_mean(kind, get_args(Kind))}")
    made = name or f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}-{secrets.token_hex(2)}"
    folder = runs_dir() / checked_name(made, "run")
    runs_dir().mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise RunError(
            f"run {made}: the name is taken, by a run with other settings or one that is active. Choose another train.name, "
            f"look at it (python -m distill_core runs show {made}) or go on with it (python -m distill_core runs resume {made})."
        ) from None
    run = Run(folder)
    publish(folder / "config.json", config.to_json())
    publish(folder / "inputs.json", json.dumps(inputs or {}, indent=2) + "\n")
    status = Status(id=made, kind=kind, label=label, created_s=time.time(), device=device, owner=owner)
    publish(folder / "status.json", status.model_dump_json(indent=2) + "\n")
    return run


def open_run(run_id: str) -> Run:
    """The run with this id. Raises RunError, with the nearest name, when there is none."""
    folder = runs_dir() / checked_name(run_id, "run")
    if not (folder / "status.json").exists():
        known = [run.id for run in list_runs()]
        hint = did_you_mean(run_id, known) if known else " There is none yet."
        raise RunError(f"no run '{run_id}' in {runs_dir()}.{hint}")
    return Run(folder)


def list_runs(kind: Kind | None = None) -> list[Run]:
    """All runs, newest first; folders that are not runs are passed over."""
    if not runs_dir().is_dir():
        return []
    found = []
    for folder in runs_dir().iterdir():
        try:
            status = Run(folder).stored_status()
        except (RunError, NotADirectoryError):
            continue
        if kind in (None, status.kind):
            found.append((status.created_s, folder))
    return [Run(folder) for _, folder in sorted(found, reverse=True)]


def delete_run(run_id: str) -> int:
    """Delete the folder; returns the bytes that come back. Raises RunError while the run is active, or if another deletes it now."""
    run = open_run(run_id)
    if run.status().is_active:
        raise RunError(f"run {run_id} is active. Stop it first: python -m distill_core runs stop {run_id}")
    num_bytes = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    try:
        (run.folder / "status.json").unlink()  # first: a folder without it is no run, so nobody reads what is half gone
    except FileNotFoundError:
        raise RunError(f"run {run_id} is being deleted by somebody else. There is nothing left to do.") from None
    shutil.rmtree(run.folder)
    return num_bytes
