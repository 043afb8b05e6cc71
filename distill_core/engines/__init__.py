"""Who works on queued runs: a process of this machine (`local`), a Ray cluster (`ray`), or Slurm (`slurm`). DISTILL_ENGINE chooses.

An engine is a module with four functions: `check()` says what is missing, `start(run)` lets it be worked on and writes down where in the
run's job.json, `is_alive(job)` and `last_words(job)` ask about it, `stop(job)` ends it at once. A job reads and writes the run's folder in
DISTILL_HOME, which all its machines share; so screens, logs and stopping are the same for every engine.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, did_you_mean
from .job import Job, read_job

if TYPE_CHECKING:
    from ..runs import Run

__all__ = ["ENGINES", "Job", "chosen", "end_now", "is_alive", "last_words", "read_job", "start"]

ENGINES = ("local", "ray", "slurm")


def chosen() -> str:
    """The engine that DISTILL_ENGINE names, `local` without one. Raises ConfigError if it is unknown or not installed."""
    name = os.environ.get("DISTILL_ENGINE") or "local"
    if name not in ENGINES:
        raise ConfigError(f"DISTILL_ENGINE is '{name}', which is no engine.{did_you_mean(name, ENGINES)}")
    _module(name).check()
    return name


def start(run: "Run") -> None:
    """Let the chosen engine work on the run. Raises ConfigError, and RunError where the engine takes no job."""
    _module(chosen()).start(run)


def is_alive(job: Job) -> bool | None:
    """Whether the job waits or runs; None where its engine does not answer."""
    return _module(job.engine).is_alive(job)


def last_words(job: Job) -> str:
    """What the engine says of a job that is gone; may be empty."""
    return _module(job.engine).last_words(job)


def end_now(run: "Run", pid: int | None) -> None:
    """End the run's work at once, without saving. `pid`: the process on this machine, where no job is written down."""
    job = read_job(run.folder)
    if job is not None:
        _module(job.engine).stop(job)
    elif pid is not None:
        _module("local").stop(pid)


def _module(name: str) -> Any:
    return importlib.import_module(f".{'ray_jobs' if name == 'ray' else name}", __name__)
