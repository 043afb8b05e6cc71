"""Training by several processes of one launch: the first owns the run, the others work with it and write nothing."""

import atexit
import time
from collections.abc import Callable

import torch.distributed as dist

from .config import DistillConfig
from .device import pick_device
from .errors import DistillError, RunError
from .group import Group, meet
from .progress import Silent, Stopped
from .runs import Run, open_run
from .worker import signals_ask_to_stop

POLL_S = 0.2


def train_together(config: DistillConfig, make_run: Callable[[], tuple[Run, bool]], carry_out: Callable[[Run], object]) -> Run:
    """Every process of the launch calls it. The first makes the run (`make_run`: the run, and whether there is work left) and carries it
    out; the others hear its name, wait until it has the device, and train beside it. What the first refuses ends all with its words.
    """
    group = Group.from_environment()
    meet(group, use_cpu=pick_device(group.device_name(config.device)).type == "cpu")
    atexit.register(_part)
    told = {}
    if group.is_first:
        try:
            run, has_work = make_run()
            told = {"run": run.id, "has_work": has_work}
        except DistillError as error:
            told = {"error": str(error)}
    told = group.agreed(told)
    if "error" in told:
        raise RunError(str(told["error"]))
    run = open_run(str(told["run"]))
    if told["has_work"]:
        if group.is_first:
            carry_out(run)
        else:
            _follow(run, group)
    return run


def _follow(run: Run, group: Group) -> None:
    """Train beside the first process, from when it has the device. Raises RunError with this process's own words."""
    while (status := run.status()).state == "queued":
        time.sleep(POLL_S)
    if not status.is_active:
        return
    from .trainer import run_training

    silent = Silent(run)
    with signals_ask_to_stop(run, silent):
        try:
            run_training(run, silent)
        except Stopped:
            return
        except RuntimeError as error:
            raise RunError(f"process {group.number} of {group.count}: {error}") from error


def _part() -> None:
    """Let go of the other processes, at the very end: one launch may train several runs."""
    if dist.is_initialized():
        dist.destroy_process_group()
