"""Lets a chain be worked on, link by link. Killed and started again, it goes on: every capture, training and judging is a run."""

import sys
import time
from collections.abc import Callable

import numpy as np
from filelock import FileLock, Timeout

from .. import jobs, room
from ..cache import Cache, open_cache
from ..config import DistillConfig
from ..engines.local import start_detached
from ..errors import CacheError, RunError
from ..paths import caches_dir
from ..progress import Stopped
from ..room import Visitor
from ..runs import Run, open_run
from .record import Chain, Link, check_may_touch, create_chain

POLL_S = 1.0
LOOK_S = 1.0
"""Those who look whether a chain is driven hold its lock for a moment."""
Say = Callable[[str], None]


def carry_on(chain: Chain, say: Say) -> bool:
    """Work through the chain. Finished runs are taken as they are, interrupted ones go on. True: every link has ended; False: it was
    asked to stop, and the run at work too.

    Raises RunError for a link that failed, with its reason; for a run of a link's name with other settings; and while another process
    drives the same chain. On KeyboardInterrupt the run at work is asked to stop as well.
    """
    lock = FileLock(chain.folder / "lock")
    try:
        lock.acquire(timeout=LOOK_S)
    except Timeout:
        raise RunError(
            f"chain {chain.name} is being worked on by another process. Look at it: python -m distill_core chain show {chain.name}"
        ) from None
    try:
        (chain.folder / "stop").unlink(missing_ok=True)
        links = chain.links()
        for place, link in enumerate(links, start=1):
            say(f"{place} of {len(links)}: {link.name}, taught by {link.teacher}")
            _reach(link, say)
    except Stopped:
        return False
    finally:
        lock.release()
    return True


def is_driven(chain: Chain) -> bool:
    """Whether a process of this machine works on it now."""
    lock = FileLock(chain.folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _reach(link: Link, say: Say) -> None:
    """Capture, train and judge one link, or what is missing of it."""
    config, owner = link.config(), link.chain.owner
    trained = _run_of(link.name, config, {"cache": link.cache})
    if trained is None or trained.status().state != "done":
        if link.writes:
            written = _run_of(link.write_id, config, {})
            if written is None or written.status().state != "done":
                _work(link.chain, written, lambda: jobs.submit_write(config, name=link.write_id, owner=owner), say)
        if not link.is_direct:
            _capture(link, config, say)
        _work(link.chain, trained, lambda: jobs.submit_training(config, link.cache, label=f"chain {link.chain.name}", owner=owner), say)
    else:
        say(f"{link.name} is there already")
    first = link.chain.first_cache
    judged = _run_of(link.judged_id, config, {"run": link.name, "cache": first})
    if judged is None or judged.status().state != "done":
        _work(link.chain, judged, lambda: jobs.submit_evaluation(link.name, against=first, name=link.judged_id, owner=owner), say)


def _capture(link: Link, config: DistillConfig, say: Say) -> None:
    """The link's cache, made, finished or there already. Raises CacheError where it holds other held-out text than the first link's."""
    is_there = (caches_dir() / link.cache / "manifest.json").exists()
    run = _run_of(link.capture_id, config, {})
    if run is not None and run.status().state == "done" and not is_there:
        raise RunError(f"cache {link.cache} is gone, but run {run.id} made it. Delete that run, and the chain captures again.")
    if not (is_there and run is not None and run.status().state == "done"):
        _work(link.chain, run, lambda: jobs.submit_capture(config, name=link.capture_id, owner=link.chain.owner), say)
    first, mine = open_cache(link.chain.first_cache), open_cache(link.cache)
    if mine.num_windows("train") < first.num_windows("train"):
        say(
            f"cache {mine.name} has {mine.num_windows('train')} training windows, {first.name} {first.num_windows('train')}: the student "
            "wrote too little. More write.num_texts, or a smaller text.synthetic_share, fills them."
        )
    if link.number > 1 and not is_same_heldout(first, mine):
        raise CacheError(
            f"cache {mine.name} holds other held-out text than {first.name}, so the links cannot be compared: the text was changed after "
            f"the chain began. Put it back and delete cache {mine.name}, or begin another chain."
        )


def is_same_heldout(one: Cache, other: Cache) -> bool:
    """Whether two caches hold the same held-out windows, token by token, learned from at the same places."""
    count = one.num_windows("heldout")
    if count != other.num_windows("heldout") or one.plan.window_tokens != other.plan.window_tokens:
        return False
    pairs = ((one.stored("heldout", window), other.stored("heldout", window)) for window in range(count))
    return all(np.array_equal(mine[name], theirs[name]) for mine, theirs in pairs for name in ("input_ids", "targets"))


def _run_of(run_id: str, config: DistillConfig, inputs: dict[str, str]) -> Run | None:
    """The run of that name, if it is there. Raises RunError if it is not this chain's."""
    try:
        run = open_run(run_id)
    except RunError:
        return None
    if run.config() != config or run.inputs() != inputs:
        raise RunError(f"run {run_id} has other settings than the chain's run of that name. Choose another name for the chain.")
    return run


def _work(chain: Chain, run: Run | None, begin: Callable[[], Run], say: Say) -> None:
    """Let one run be worked on until it ends. Raises Stopped if it or the chain was asked to stop, RunError if it failed."""
    if (chain.folder / "stop").exists():
        raise Stopped
    if run is None:
        run = begin()
    elif not run.status().is_active:
        say(f"{run.id} goes on")
        jobs.resume(run, by=Visitor(chain.owner))
    try:
        while (status := run.status()).is_active:
            if (chain.folder / "stop").exists():
                say(jobs.stop(run))
                raise Stopped
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        say(jobs.stop(run))
        raise
    say(f"{run.id} {status.state}")
    if status.state == "stopped":
        raise Stopped
    if status.state == "failed":
        way_on = f"The chain goes on with: python -m distill_core chain resume {chain.name}"
        raise RunError(f"chain {chain.name} ends at {run.id}, which failed: {status.error}\n{way_on}")


def start_in_background(chain: Chain) -> None:
    """Let a process of its own drive the chain; it outlives this one. What it says goes to the chain's log.txt."""
    start_detached([sys.executable, "-u", "-m", "distill_core", "chain", "resume", chain.name], chain.log_path)


def submit(name: str, config: DistillConfig, *, owner: str = "") -> Chain:
    """Freeze a chain and let a process of its own drive it; returns at once.

    Raises as create_chain does, and RoomError where the room's policy does not admit its first capture.
    """
    chain = create_chain(name, config, owner=owner)
    with room.admit(owner, chain.links()[0].config(), "capture"):
        pass  # said here, not only in the log of the process that drives it
    if not is_driven(chain):
        start_in_background(chain)
    return chain


def stop(chain: Chain, *, by: Visitor | None = None) -> None:
    """Ask whoever drives it to stop. `by`: in a room the visitor who asks. Raises RoomError if it is not theirs."""
    check_may_touch(by or Visitor(), chain)
    chain.ask_to_stop()


def resume(chain: Chain, *, by: Visitor | None = None) -> None:
    """Go on with it in a process of its own; returns at once. Raises RoomError if it is not theirs, RunError while it is worked on."""
    check_may_touch(by or Visitor(), chain)
    if is_driven(chain):
        raise RunError(f"chain {chain.name} is being worked on: nothing to resume.")
    start_in_background(chain)
