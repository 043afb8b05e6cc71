"""A process of this machine for each run; no daemon. One file lock per device makes the queue (jobs.py)."""

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from .job import work_command

if TYPE_CHECKING:
    from ..runs import Run


def check() -> None:
    """Nothing to install."""


def start(run: "Run") -> None:
    """Let a process of its own work on the run; it outlives this one. What it prints goes to the run's log.txt."""
    start_detached(work_command(run), run.log_path)


def start_detached(command: list[str], log_path: Path) -> None:
    """A process of its own session that outlives this one and appends what it prints to a file."""
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    threading.Thread(target=process.wait, daemon=True).start()  # reaps the child, so that it never lingers as a zombie


def stop(pid: int) -> None:
    """Kill the process, if it is still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()
