"""Work in processes of its own: queued by one file lock per device here, or by an engine's cluster; told apart by run folders."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from . import catalog, engines, room
from .config import DistillConfig
from .errors import RunError
from .merging import Merge, check_merge, merge_config
from .paths import locks_dir
from .processes import this_machine
from .refusals import check_training
from .runs import Run, create_run, open_run
from .translation import translation_config
from .waiting import expected_wait_s, runs_ahead, waiting_words

POLL_S = 0.5
LONGEST_POLL_S = 5.0
STOP_PATIENCE_S = 30.0
"""A cluster's job that has not ended this long after a stop was asked for is ended through its engine when it is asked for again."""


def start(run: Run) -> None:
    """Let the chosen engine work on the run; returns at once. Raises RunError, written into the run too, when it takes no job."""
    try:
        engines.start(run)
    except RunError as error:
        run.update(state="failed", error=str(error), ended_s=time.time())
        raise


def stop(run: Run, *, now: bool = False) -> str:
    """Ask the run to finish its step, save and end; says in words what was done. `now`: end it at once, up to its last checkpoint.

    A cluster's job that waits for a machine never begins; one that did not react to the first asking is ended at the second.
    Raises RunError for `now` where the process is another machine's and no engine can end it.
    """
    asked_s, status, job = run.stop_asked_s(), run.status(), run.job()
    run.request_stop()
    if not status.is_active:
        return f"run {run.id} is {status.state}: nothing to stop"
    waits = job is not None and status.pid is None
    is_deaf = job is not None and asked_s is not None and asked_s > STOP_PATIENCE_S
    if not (now or waits or is_deaf):
        return f"run {run.id} will finish its step, save and end"
    if job is None and status.machine not in ("", this_machine()):
        raise RunError(f"run {run.id} is worked on by process {status.pid} of another machine ({status.machine}): end it there.")
    run.mark_ended_now()
    engines.end_now(run, status.pid)
    if waits:
        run.update(state="stopped", ended_s=time.time(), phase="stopped before it began")
    return f"run {run.id} was ended at once; it can go on from its last checkpoint"


def submit_capture(config: DistillConfig, *, name: str | None = None, owner: str = "") -> Run:
    """Queue a capture, as a run of that name; returns at once. Raises RoomError where the room's policy does not admit it."""
    engines.chosen()  # an engine that is not there is said before a run is made
    with room.admit(owner, config, "capture"):
        label = f"capture {config.teacher.model}"
        run = create_run("capture", config, label=label, name=name, device=device_key(config.device), owner=owner)
    start(run)
    return run


def new_merge(merge: Merge, *, owner: str = "") -> Run:
    """The run that merges caches; nobody works on it yet. Raises ConfigError or CacheError for what could only fail."""
    caches = check_merge(merge)
    config = merge_config(merge, caches)
    return create_run("merge", config, inputs=merge.to_inputs(), label=f"merge {' + '.join(merge.caches)}", device="cpu", owner=owner)


def submit_merge(merge: Merge, *, owner: str = "") -> Run:
    """Queue a merge of caches; returns at once. Raises RoomError where the room's policy does not admit it."""
    engines.chosen()
    with room.admit(owner, merge_config(merge, check_merge(merge)), "merge"):
        run = new_merge(merge, owner=owner)
    start(run)
    return run


def new_translation(cache: str, to: str, name: str, *, min_coverage: float = 0.5, unaligned: str = "hard", owner: str = "") -> Run:
    """The run that writes a cache anew in the tokens of the model or tokenizer folder `to`; nobody works on it yet.

    Raises CacheError, ConfigError or ModelError for what could only fail.
    """
    config = translation_config(cache, to, name, min_coverage=min_coverage, unaligned=unaligned)
    inputs = {"source": cache, "to": to, "name": name, "min_coverage": f"{min_coverage:g}", "unaligned": unaligned}
    return create_run("translate", config, inputs=inputs, label=f"{cache} for {to}", device="cpu", owner=owner)


def submit_translate(cache: str, to: str, name: str, *, min_coverage: float = 0.5, unaligned: str = "hard", owner: str = "") -> Run:
    """Queue the translation of a cache; returns at once. Raises as `new_translation` does, and RoomError as the others."""
    engines.chosen()
    with room.admit(owner, translation_config(cache, to, name, min_coverage=min_coverage, unaligned=unaligned), "translate"):
        run = new_translation(cache, to, name, min_coverage=min_coverage, unaligned=unaligned, owner=owner)
    start(run)
    return run


def submit_write(config: DistillConfig, *, name: str | None = None, owner: str = "") -> Run:
    """Queue the writing of texts, as a run of that name; returns at once.

    Raises ModelError for a writer that is not there, RoomError where the room's policy does not admit it.
    """
    engines.chosen()
    with room.admit(owner, config, "write"):
        run = new_writing(config, name=name, owner=owner)
    start(run)
    return run


def new_writing(config: DistillConfig, *, name: str | None = None, owner: str = "") -> Run:
    """The run that writes texts; nobody works on it yet. Raises ModelError for a writer that is not there."""
    by = config.teacher.model if config.write.by == "teacher" else config.write.by
    catalog.resolve(by)
    return create_run("write", config, label=f"written by {by}", name=name, device=device_key(config.device), owner=owner)


def new_training(config: DistillConfig, cache: str, *, label: str = "", owner: str = "") -> Run:
    """The run of a training against a cache, by name; nobody works on it yet.

    Raises ConfigError, CacheError or ModelError, before there is a run, for what could only fail.
    """
    check_training(config, cache)
    label = label or ("hard labels" if config.loss.kl_weight == 0 else "distilled")
    return create_run(
        "train", config, inputs={"cache": cache}, label=label, name=config.train.name, device=device_key(config.device), owner=owner
    )


def submit_training(config: DistillConfig, cache: str, *, label: str = "", owner: str = "") -> Run:
    """Queue a training against a cache, by name; returns at once. Raises RoomError where the room's policy does not admit it."""
    engines.chosen()
    with room.admit(owner, config, "train"):
        run = new_training(config, cache, label=label, owner=owner)
    start(run)
    return run


def new_evaluation(
    run_id: str,
    baseline_id: str | None = None,
    *,
    against: str | None = None,
    name: str | None = None,
    owner: str = "",
    public_benchmarks: dict[str, str] | None = None,
) -> Run:
    """The run that judges a trained run, beside a baseline; nobody works on it yet. Raises RunError for names that are no run.

    `against`: a cache, whose teacher and held-out text are the measure; none: the one that the run learned from.
    `public_benchmarks`: lm_eval (names of tasks, with commas), lm_eval_include (a folder), lm_eval_limit (examples of each).
    """
    judged = open_run(run_id)
    inputs = {"run": run_id} | ({"baseline": open_run(baseline_id).id} if baseline_id else {}) | (public_benchmarks or {})
    inputs |= {"cache": against} if against else {}
    config, label = judged.config(), f"judge {run_id}"
    return create_run("evaluate", config, inputs=inputs, label=label, name=name, device=device_key(config.device), owner=owner)


def submit_evaluation(
    run_id: str, baseline_id: str | None = None, *, against: str | None = None, name: str | None = None, owner: str = ""
) -> Run:
    """Queue the judging of a trained run, beside a baseline; returns at once. It waits for the two to end.

    Raises RoomError where the room's policy does not admit it.
    """
    engines.chosen()
    with room.admit(owner, open_run(run_id).config(), "evaluate"):
        run = new_evaluation(run_id, baseline_id, against=against, name=name, owner=owner)
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
    run.forget_job()
    device = device_key(run.config().device)
    fresh = {"pid": None, "process_start_s": None, "created_s": time.time(), "error": None, "ended_s": None, "phase": "waiting to start"}
    run.update(state="queued", device=device, **fresh)


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
    if run.job() is not None:  # its engine has the queue, and gave it its device
        yield _inputs_have_ended(run, say)
        return
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
        wait_s = expected_wait_s(ahead)
        words = waiting_words(device, len(ahead), wait_s)
        if run.stored_status().phase != words:
            run.update(phase=words, num_ahead=len(ahead), wait_s=wait_s)
            say(words)
        _sleep_unless_stopped(run, min(LONGEST_POLL_S, POLL_S * max(1, len(ahead))))
    try:
        yield True
    finally:
        lock.release()


def _inputs_have_ended(run: Run, say: Callable[[str], None]) -> bool:
    """A cluster starts jobs in its own order: wait for the runs that this one judges. False if it was stopped meanwhile.

    Raises RunError, written into the run too, for one that has not begun: waiting might keep the machine that it needs.
    """
    for name in [name for role, name in run.inputs().items() if role in ("run", "baseline")]:
        while (status := open_run(name).status()).is_active:
            if run.stop_requested():
                return False
            if status.pid is None:
                words = f"run {name} has not begun yet. Judge it when it has ended: python -m distill_core runs resume {run.id}"
                run.update(state="failed", error=words, ended_s=time.time())
                raise RunError(words)
            if run.stored_status().phase != (words := f"waiting for {name} to end"):
                run.update(phase=words)
                say(words)
            _sleep_unless_stopped(run, LONGEST_POLL_S)
    return True


def _sleep_unless_stopped(run: Run, seconds: float) -> None:
    """Looking at all runs is what costs: sixty that wait must not keep the machine busy, yet stop at once."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not run.stop_requested():
        time.sleep(POLL_S)


def wait(run: Run, *, timeout_s: float = 3600.0) -> None:
    """Block until the run has ended. Raises RunError after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while run.status().is_active:
        if time.monotonic() > deadline:
            raise RunError(
                f"run {run.id} has not ended after {timeout_s:.0f} s; it goes on. Look at it: python -m distill_core runs show {run.id}"
            )
        time.sleep(POLL_S)
