"""Carries out one run in this process: waits for the device, calls the step, and writes down how it ended, whatever happens."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from .errors import DistillError, RunError
from .jobs import device_held
from .progress import Progress, Stopped
from .remedies import Answer, answer, is_out_of_memory
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
        kept = {name: value for name, value in run.stored_status().result.items() if name not in Answer().to_result()}
        run.update(state="running", started_s=time.time(), num_ahead=0, wait_s=None, result=kept)
        try:
            _step(run)(run, progress)
        except Stopped:
            return run.update(state="stopped", ended_s=time.time(), time_left_s=None, phase="stopped; what was finished is kept")
        except BaseException as error:
            if not is_out_of_memory(error):
                run.update(state="failed", ended_s=time.time(), time_left_s=None, error=explain(error))
                raise
            ways_out = answer(run.config(), run.stored_status().kind, str(error).splitlines()[0] if str(error) else "")
            result = run.stored_status().result | ways_out.to_result()
            run.update(state="failed", ended_s=time.time(), time_left_s=None, error=ways_out.error, result=result)
            raise RunError(ways_out.error) from error
        return run.update(state="done", ended_s=time.time(), time_left_s=None, phase="done")


def _step(run: Run) -> Callable[[Run, Progress], object]:
    """The step of the run's kind; only it is imported."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # of loading and writing weights; ours says what happens
    kind = run.stored_status().kind
    if kind == "capture":
        from .capture import run_capture

        return lambda run, progress: run.update(result={"cache": run_capture(run.config(), progress).name})
    if kind == "merge":
        from .merging import run_merge

        return lambda run, progress: run.update(result={"cache": run_merge(run, progress).name})
    if kind == "train":
        from .trainer import run_training

        return run_training
    if kind == "translate":
        from .translate import run_translate

        return lambda run, progress: run.update(result={"cache": run_translate(run, progress).name})
    if kind == "write":
        from .write import run_write

        return lambda run, progress: run.update(result=run_write(run.config(), progress).result)
    from .evaluate import run_evaluation

    return run_evaluation


def explain(error: BaseException) -> str:
    """One plain message for the status: ours as they are, anything else by its type."""
    if isinstance(error, DistillError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted twice: ended at once, without saving. Resume from the last checkpoint."
    return f"{type(error).__name__}: {error}"


@contextmanager
def _life_shown(run: Run) -> Iterator[None]:
    """Tells those who look from another machine that this process lives, however long a step takes."""
    ended = threading.Event()

    def beat() -> None:
        with suppress(FileNotFoundError):  # the folder was deleted under it
            while not ended.wait(HEARTBEAT_S):
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
