"""Runs that are carried out here, in front: by this process, or by all processes of one launch."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import jobs
from . import runs as run_folders
from .config import DistillConfig
from .errors import RunError
from .runs import Run


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Inside, SIGTERM is what Ctrl-C is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_launched() -> bool:
    """Whether a launcher started several processes of this command."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_spokesman() -> bool:
    """Whether this process speaks for all of its launch; a process alone always does."""
    return os.environ.get("RANK", "0") == "0"


def train_here(config: DistillConfig, cache: str) -> Run:
    """Train here. The same command again finds its run of that name: finished, it is taken as it is; interrupted, it goes on."""
    return together_or_alone(config, lambda: _run_to_train(config, cache))


def _run_to_train(config: DistillConfig, cache: str) -> tuple[Run, bool]:
    """The run of these settings, new or found by its name, and whether there is work left."""
    run = _same_run(config, cache)
    if run is None:
        run = jobs.new_training(config, cache)
    elif run.status().state == "done":
        print(f"run {run.id} is there already, done with these very settings", flush=True)
        return run, False
    else:
        jobs.requeue(run)
    print(f"run {run.id}", flush=True)
    return run, True


def _same_run(config: DistillConfig, cache: str) -> Run | None:
    """The run of that name, if it has these settings and this cache and nobody works on it."""
    names = [run.id for run in run_folders.list_runs("train")]
    if config.train.name not in names:
        return None
    run = run_folders.open_run(config.train.name)
    is_same = run.config() == config and run.inputs() == {"cache": cache}
    return run if is_same and not run.status().is_active else None


def together_or_alone(config: DistillConfig, make_run: Callable[[], tuple[Run, bool]]) -> Run:
    """Carry out the run here: in this process, or in all processes of a launch."""
    if is_launched():
        from .launched import train_together

        return train_together(config, make_run, carry_out)
    run, has_work = make_run()
    if has_work:
        carry_out(run)
    return run


def carry_out(run: Run) -> dict[str, Any]:
    """Work on the run here, with progress on the terminal; returns its result. Raises RunError if it was stopped."""
    from .worker import execute

    status = execute(run)
    if status.state == "stopped":
        raise RunError(f"run {run.id} was stopped. Go on with it: python -m distill_core runs resume {run.id}")
    return status.result
