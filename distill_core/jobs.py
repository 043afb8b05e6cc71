"""Work in processes of its own: started here, queued by one file lock per device, told apart by run folders."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from . import room
from .config import DistillConfig
from .errors import RunError
from .paths import locks_dir
from .runs import Run, create_run, list_runs, open_run

POLL_S = 0.5


def start(run: Run) -> None:
    """Let a process of its own work on the run; it outlives this one. What it prints goes to the run's log.txt."""
    with open(run.log_path, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "distill_core", "runs", "work", run.id],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    threading.Thread(target=process.wait, daemon=True).start()  # reaps the child, so that it never lingers as a zombie


def submit_capture(config: DistillConfig, *, owner: str = "") -> Run:
    """Queue a capture; returns at once. Raises RoomError where the room's policy does not admit it."""
    with room.admit(owner, config, "capture"):
        run = create_run("capture", config, label=f"capture {config.teacher.model}", device=device_key(config.device), owner=owner)
    start(run)
    return run


def new_training(config: DistillConfig, cache: str, *, owner: str = "") -> Run:
    """The run of a training against a cache, by name; nobody works on it yet."""
    label = "hard labels" if config.loss.kl_weight == 0 else "distilled"
    return create_run(
        "train", config, inputs={"cache": cache}, label=label, name=config.train.name, device=device_key(config.device), owner=owner
    )


def submit_training(config: DistillConfig, cache: str, *, owner: str = "") -> Run:
    """Queue a training against a cache, by name; returns at once. Raises RoomError where the room's policy does not admit it."""
    with room.admit(owner, config, "train"):
        run = new_training(config, cache, owner=owner)
    start(run)
    return run


def new_evaluation(run_id: str, baseline_id: str | None = None, *, owner: str = "") -> Run:
    """The run that judges a trained run, beside a baseline; nobody works on it yet. Raises RunError for names that are no run."""
    judged = open_run(run_id)
    inputs = {"run": run_id} | ({"baseline": open_run(baseline_id).id} if baseline_id else {})
    config = judged.config()
    return create_run("evaluate", config, inputs=inputs, label=f"judge {run_id}", device=device_key(config.device), owner=owner)


def submit_evaluation(run_id: str, baseline_id: str | None = None, *, owner: str = "") -> Run:
    """Queue the judging of a trained run, beside a baseline; returns at once. It waits for the two to end.

    Raises RoomError where the room's policy does not admit it.
    """
    with room.admit(owner, open_run(run_id).config(), "evaluate"):
        run = new_evaluation(run_id, baseline_id, owner=owner)
    start(run)
    return run


def requeue(run: Run) -> None:
    """Make a failed or stopped run ready to go on from where it was. Raises RunError for one that is active or done."""
    status = run.status()
    if status.is_active:
        raise RunError(f"run {run.id} is {status.state}: nothing to resume.")
    if status.state == "done":
        raise RunError(f"run {run.id} is done: nothing to resume. Start a new one with more train.max_steps.")
    run.clear_stop()
    run.update(state="queued", pid=None, process_start_s=None, created_s=time.time(), error=None, ended_s=None, phase="waiting to start")


def resume(run: Run, *, by: room.Visitor | None = None) -> None:
    """Go on with a failed or stopped run in a process of its own; returns at once. Raises RunError as `requeue` does.

    In a room `by` is the visitor who asks. Raises RoomError if the run is not theirs, or its owner has no place in the queue.
    """
    room.check_may_touch(by or room.Visitor(), run)
    with room.admit(run.stored_status().owner or (by.name if by else ""), run.config(), run.stored_status().kind):
        requeue(run)
    start(run)


def device_key(device: str) -> str:
    """The queue a device belongs to, without asking torch: 'cpu' or 'cuda-0'."""
    if device == "auto":
        device = "cuda" if has_gpu() else "cpu"
    if device == "cpu":
        return "cpu"
    return f"cuda-{device.partition(':')[2] or 0}"


def has_gpu() -> bool:
    """Whether NVIDIA's driver shows a GPU; no torch, no CUDA context."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return pynvml.nvmlDeviceGetCount() > 0
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def device_held(run: Run, say: Callable[[str], None]) -> Iterator[bool]:
    """Wait until the run's device is free and it is this run's turn; yields False if it was stopped while waiting.

    First created, first served. The operating system frees the lock however its holder dies. `say` hears what is waited for.
    """
    device = run.stored_status().device
    locks_dir().mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks_dir() / f"{device}.lock")
    while True:
        if run.stop_requested():
            yield False
            return
        ahead = runs_ahead(run)
        if not ahead:
            try:
                lock.acquire(timeout=0)
                break
            except Timeout:
                pass
        words = f"waiting for {device}: {len(ahead)} ahead, {ahead[-1].id} next" if ahead else f"waiting for {device}"
        if run.stored_status().phase != words:
            run.update(phase=words)
            say(words)
        time.sleep(POLL_S)
    try:
        yield True
    finally:
        lock.release()


def runs_ahead(run: Run) -> list[Run]:
    """Active runs on the same device that were created earlier."""
    own = run.stored_status()
    statuses = [(other, other.status()) for other in list_runs() if other.id != run.id]
    return [
        other
        for other, status in statuses
        if status.is_active and status.device == own.device and (status.created_s, status.id) < (own.created_s, own.id)
    ]


def wait(run: Run, *, timeout_s: float = 3600.0) -> None:
    """Block until the run has ended. Raises RunError after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while run.status().is_active:
        if time.monotonic() > deadline:
            raise RunError(
                f"run {run.id} has not ended after {timeout_s:.0f} s; it goes on. Look at it: python -m distill_core runs show {run.id}"
            )
        time.sleep(POLL_S)
