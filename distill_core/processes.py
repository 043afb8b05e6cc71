"""Which process is which: its number, when it began, and the machine on which both mean something."""

import os
import socket
import sys

import psutil


def this_machine() -> str:
    """Where a pid means something: the host, and on Linux the space of process numbers (containers have their own)."""
    space = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
    return f"{socket.gethostname()} {space}".strip()


def is_alive(pid: int, process_start_s: float | None) -> bool:
    """Whether this very process runs: same pid and same start time, and not a zombie."""
    try:
        process = psutil.Process(pid)
        same = process_start_s is None or abs(process.create_time() - process_start_s) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
