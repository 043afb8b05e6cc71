"""What every engine needs: where a job is written down, and the command that works on a run."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from ..paths import home, publish

if TYPE_CHECKING:
    from ..runs import Run

PASSED_ON = ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE")
"""Variables that a job gets from where it is submitted, beside all that begin with DISTILL_. No token is among them."""


class Job(BaseModel):
    """A run's job at an engine, as written in job.json; runs that a process of one machine works on have none."""

    model_config = ConfigDict(frozen=True)

    engine: str
    id: str
    address: str = ""
    """Whom to ask about it: an http address, or a folder."""
    submitted_s: float = Field(default_factory=time.time)


def read_job(folder: Path) -> Job | None:
    try:
        return Job.model_validate_json((folder / "job.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write_job(run: "Run", job: Job) -> None:
    """Written before the engine has it, where the engine lets us choose its id: a status never asks about a job it cannot name."""
    publish(run.folder / "job.json", job.model_dump_json() + "\n")
    run.update(device=job.engine)


def work_command(run: "Run") -> list[str]:
    return [os.environ.get("DISTILL_PYTHON") or sys.executable, "-u", "-m", "distill_core", "runs", "work", run.id]


def logged_command(run: "Run") -> str:
    """The same as a line for a shell, what it prints appended to the run's log.txt."""
    return f"exec {shlex.join(work_command(run))} >> {shlex.quote(str(run.log_path))} 2>&1"


def job_environment() -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("DISTILL_")}
    return passed | {"DISTILL_HOME": str(home()), "PYTHONUNBUFFERED": "1"}


def last_lines(text: str, num_lines: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-num_lines:])
