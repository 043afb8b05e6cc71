"""A process of this machine for each run; no daemon. One file lock per device makes the queue (jobs.py)."""

import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING

import psutil

from .job import work_command

if TYPE_CHECKING:
    from ..runs import Run


def check() -> None:
    """Nothing to install."""


def start(run: "Run") -> None:
    """Let a process of its own work on the run; it outlives this one. What it prints goes to the run's log.txt."""
    with open(run.log_path, "ab") as log:
        process = subprocess.Popen(
            work_command(run),
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
