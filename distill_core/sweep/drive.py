"""Lets the runs of a sweep be worked on, a few at a time. Killed and started again, it goes on: every run is a folder of its own."""

import sys
import time
from collections.abc import Callable

from filelock import FileLock, Timeout

from .. import jobs
from ..engines.local import start_detached
from ..errors import RunError
from ..runs import Run, open_run
from .losers import check_installed, is_losing, looks_of
from .record import Sweep, Trial

POLL_S = 1.0
Say = Callable[[str], None]


def carry_on(sweep: Sweep, say: Say, *, at_once: int = 1, owner: str = "") -> bool:
    """Work through the sweep. Finished runs are taken as they are, interrupted ones go on. True: every trial has ended; False: it was
    asked to stop, and the runs at work too.

    Raises RunError while another process drives the same sweep. On KeyboardInterrupt the runs at work are asked to stop as well.
    """
    if sweep.stop_losers:
        check_installed()
    lock = FileLock(sweep.folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"sweep {sweep.name} is being worked on by another process. Look at it: python -m distill_core sweep show {sweep.name}"
        ) from None
    try:
        (sweep.folder / "stop").unlink(missing_ok=True)
        return _Drive(sweep, say, owner).work(at_once)
    finally:
        lock.release()


class _Drive:
    def __init__(self, sweep: Sweep, say: Say, owner: str) -> None:
        self.sweep, self.say, self.owner = sweep, say, owner
        self.trials = sweep.trials()
        self.active: list[tuple[Trial, Run]] = []
        self.num_ended = 0

    def work(self, at_once: int) -> bool:
        waiting = list(self.trials)
        try:
            while waiting or self.active:
                if (self.sweep.folder / "stop").exists():
                    self._stop_active()
                    return False
                while waiting and len(self.active) < at_once:
                    self._begin(waiting.pop(0))
                self._look()
                if self.active:
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            self._stop_active()
            raise
        return True

    def _stop_active(self) -> None:
        for _, run in self.active:
            self.say(f"{run.id}: {jobs.stop(run)}")

    def _begin(self, trial: Trial) -> None:
        """Queue the trial's run, unless it has ended already or its setting was given up. Raises RunError for a foreign run of the name."""
        stopped = self.sweep.stopped()
        if any(other.run_id in stopped for other in self.trials if other.number == trial.number):
            self._ended(trial, "given up")
            return
        try:
            run = open_run(trial.run_id)
        except RunError:
            run = None
        if run is None:
            label = f"sweep {self.sweep.name}: {trial.words}"
            run = jobs.submit_training(trial.config(), self.sweep.cache, label=label, owner=self.owner)
        elif run.config() != trial.config() or run.inputs() != {"cache": self.sweep.cache}:
            raise RunError(f"run {trial.run_id} has other settings than the sweep's trial of that name. Choose another name for the sweep.")
        elif run.status().state in ("failed", "stopped"):
            self.say(f"{trial.run_id} goes on ({trial.words})")
            jobs.resume(run)
        self.active.append((trial, run))

    def _look(self) -> None:
        """Take note of runs that have ended, and give up those that are losing."""
        still = []
        for trial, run in self.active:
            status = run.status()
            if status.is_active:
                if self.sweep.stop_losers and trial.run_id not in self.sweep.stopped():
                    self._give_up_if_losing(trial, run)
                still.append((trial, run))
            else:
                given_up = trial.run_id in self.sweep.stopped()
                self._ended(trial, "given up" if given_up else status.state)
                if status.state == "failed":
                    self.say(f"  {status.error}")
        self.active = still

    def _ended(self, trial: Trial, state: str) -> None:
        self.num_ended += 1
        self.say(f"{self.num_ended} of {len(self.trials)}: {trial.run_id} {state} ({trial.words}, seed {trial.seed})")

    def _give_up_if_losing(self, trial: Trial, run: Run) -> None:
        looks = looks_of(run)
        if is_losing(looks, self._finished_looks(), max_steps=trial.config().train.max_steps):
            self.sweep.note_stopped(run.id, max(looks))
            jobs.stop(run)
            self.say(f"{run.id} is given up at step {max(looks):,}: worse than the median of the finished runs ({trial.words})")

    def _finished_looks(self) -> list[dict[int, float]]:
        found = []
        for trial in self.trials:
            try:
                run = open_run(trial.run_id)
            except RunError:
                continue
            if run.stored_status().state == "done" and (looks := looks_of(run)):
                found.append(looks)
        return found


def start_in_background(sweep: Sweep, *, at_once: int = 1) -> None:
    """Let a process of its own drive the sweep; it outlives this one. What it says goes to the sweep's log.txt."""
    start_detached([sys.executable, "-u", "-m", "distill_core", "sweep", "resume", sweep.name, "--at-once", str(at_once)], sweep.log_path)
