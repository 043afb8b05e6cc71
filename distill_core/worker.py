"""Carries out one run in this process: waits for the device, calls the step, and writes down how it ended, whatever happens."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from .config import DistillConfig
from .errors import DistillError, RunError
from .jobs import device_held
from .progress import Progress, Stopped
from .runs import HEARTBEAT_S, Run, Status


def execute(run: Run, *, screen: TextIO | None = None) -> Status:
    """Work on the run until it ends; returns its last status. Errors are written into the status and raised again.

    SIGTERM and the first Ctrl-C mean: finish the step, save, end. A second Ctrl-C ends at once.
    """
    run.claim()
    progress = Progress(run, screen=screen)
    with signals_ask_to_stop(run, progress), _life_shown(run), device_held(run, progress.say) as is_our_turn:
        if not is_our_turn:
            return run.update(state="stopped", ended_s=time.time(), phase="stopped before it began")
        run.update(state="running", started_s=time.time(), num_ahead=0, wait_s=None)
        try:
            _step(run)(run, progress)
        except Stopped:
            return run.update(state="stopped", ended_s=time.time(), time_left_s=None, phase="stopped; what was finished is kept")
        except BaseException as error:
            words = explain(error, run.config())
            run.update(state="failed", ended_s=time.time(), time_left_s=None, error=words)
            if is_out_of_memory(error):
                raise RunError(words) from error
            raise
        return run.update(state="done", ended_s=time.time(), time_left_s=None, phase="done")


def _step(run: Run) -> Callable[[Run, Progress], object]:
    """The step of the run's kind; only it is imported."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # of loading and writing weights; ours says what happens
    kind = run.stored_status().kind
    if kind == "capture":
        from .capture import run_capture

        return lambda run, progress: run.update(result={"cache": run_capture(run.config(), progress).name})
    if kind == "train":
        from .trainer import run_training

        return run_training
    from .evaluate import run_evaluation

    return run_evaluation


def explain(error: BaseException, config: DistillConfig) -> str:
    """One plain message for the status: ours as they are, memory with its remedies, anything else by its type."""
    if isinstance(error, DistillError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted twice: ended at once, without saving. Resume from the last checkpoint."
    if is_out_of_memory(error):
        return out_of_memory(config)
    return f"{type(error).__name__}: {error}"


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's and the CPU allocator's ways to say it, told without importing torch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def out_of_memory(config: DistillConfig) -> str:
    """What to turn, by how much, in the order in which it costs least."""
    train = config.train
    ways = []
    if train.per_device_train_batch_size > 1:
        half = train.per_device_train_batch_size // 2
        ways.append(
            f"train.per_device_train_batch_size {half} with train.gradient_accumulation_steps "
            f"{train.gradient_accumulation_steps * train.per_device_train_batch_size // half} (the same result)"
        )
    if not train.activation_checkpointing:
        ways.append("train.activation_checkpointing true (about a third slower)")
    ways.append(f"loss.chunk_tokens {max(32, (config.loss.chunk_tokens or 256) // 2)}")
    ways.append("capture.batch_windows 1 and capture.head_chunk_tokens 64, while capturing")
    return "out of memory. Ways out: " + "; ".join(ways) + ". See what each saves: python -m distill_core plan"


@contextmanager
def _life_shown(run: Run) -> Iterator[None]:
    """Tells those who look from another machine that this process lives, however long a step takes."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S) and run.folder.exists():
            run.show_life()

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def signals_ask_to_stop(run: Run, progress: Progress) -> Iterator[None]:
    """Handlers can be set in the main thread only; elsewhere the stop file is the way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: object) -> None:
        if run.stop_requested() and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.request_stop()
        progress.say("stopping after this step; what is finished will be kept (Ctrl-C again: end at once)")

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
