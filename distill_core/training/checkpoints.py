"""Where a killed run goes on: the newest checkpoint that was written to its end, and the disk that all of them take."""

import errno
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from ..adapters import is_adapted
from ..config import TrainConfig
from ..errors import RunError
from ..units import GIB, show_disk

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("No space left", "os error 28", "Disk quota exceeded", "inline_container.cc", "iostream error")
"""What safetensors and torch's C++ writers say; the last two without a reason."""


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: its trainer_state.json comes last and can be read."""
    whole = [path for path in folder.glob("checkpoint-*") if checkpoint_step(path) is not None]
    return max(whole, key=lambda path: checkpoint_step(path) or 0, default=None)


def checkpoint_step(path: Path) -> int | None:
    try:
        return int(json.loads((path / "trainer_state.json").read_text())["global_step"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None


def drop_unfinished(folder: Path) -> None:
    """Delete what a kill left half-written: it takes disk, and a place among those that are kept."""
    for path in folder.glob("checkpoint-*"):
        if checkpoint_step(path) is None:
            shutil.rmtree(path)


def checkpoint_bytes(student: nn.Module, optim: str) -> int:
    """About the size of one checkpoint: weights (of an adapted student the adapters alone), and the optimizer's moments (AdamW: two,
    SGD and Adafactor: next to none)."""
    stored = [parameter for parameter in student.parameters() if parameter.requires_grad or not is_adapted(student)]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in stored)
    learned = sum(parameter.numel() for parameter in student.parameters() if parameter.requires_grad)
    per_parameter = 0 if optim.startswith(("sgd", "adafactor")) else 2 if "8bit" in optim else 4 if optim.startswith("lion") else 8
    return weights + per_parameter * learned


def num_kept(train: TrainConfig, folder: Path, one_bytes: int, say: Callable[[str], None]) -> int:
    """How many checkpoints are kept: train.save_total_limit, or fewer where the disk is tight, which is said aloud.

    While one is written, those before it still stand: n kept ones take n + 1 times the disk. Raises RunError if not even one can be
    kept, before a step is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free + there
    budget = free if train.save_total_gib is None else min(free, train.save_total_gib * GIB)
    name = f"the {show_disk(free)} free" if budget == free else f"train.save_total_gib {train.save_total_gib:g}"
    fit = math.floor(budget / one_bytes) - 1
    if fit < 1:
        raise RunError(
            f"checkpoints: one takes about {show_disk(one_bytes)}, and the last one must stand until the next is whole: "
            f"{show_disk(2 * one_bytes)} are needed, {name} is less. Free some disk, give more, or choose a smaller student."
        )
    if fit < train.save_total_limit:
        say(f"checkpoints: {fit} kept instead of {train.save_total_limit}: each takes about {show_disk(one_bytes)}, within {name}")
    return min(fit, train.save_total_limit)


@contextmanager
def full_disk_named(folder: Path, run_id: str) -> Iterator[None]:
    """Inside, a full disk is a RunError that says from where the run goes on; what was half-written is deleted."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if getattr(error, "errno", None) not in FULL and not any(words in str(error) for words in FULL_WORDS):
            raise
        drop_unfinished(folder)
        last = latest_checkpoint(folder)
        since = f"step {checkpoint_step(last):,}, its last checkpoint" if last else "its beginning: there is no checkpoint yet"
        free = show_disk(shutil.disk_usage(folder).free)
        raise RunError(
            f"the disk is full, or fails ({free} free): what must be kept could not be written. Free some, then go on from {since}: "
            f"python -m distill_core runs resume {run_id}"
        ) from error
