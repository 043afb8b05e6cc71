"""Smaller micro-batches where memory does not suffice: more of them make up the same step, so the result stays the same."""

import gc
from collections.abc import Callable

from accelerate.utils import find_executable_batch_size

from ..config import TrainConfig


def smaller(windows_per_step: int, size: int) -> int:
    """The largest micro-batch of at most half the size of which whole ones make up a step; 0 below 1."""
    return next((fewer for fewer in range(size // 2, 0, -1) if windows_per_step % fewer == 0), 0)


def with_size(train: TrainConfig, size: int) -> TrainConfig:
    """The same step from micro-batches of another size, which must divide it."""
    windows_per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps
    assert windows_per_step % size == 0
    return train.changed(per_device_train_batch_size=size, gradient_accumulation_steps=windows_per_step // size)


def with_batches_that_fit(train: TrainConfig, attempt: Callable[[TrainConfig], None], say: Callable[[str], None], *, first: int) -> None:
    """`attempt` with micro-batches of `first` windows; after each out-of-memory error again with smaller ones.

    An attempt begins where the run stands on disk, as after a kill. What fails with a single window is raised.
    """
    windows_per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps
    size = first

    def next_size() -> int:
        nonlocal size
        fewer = smaller(windows_per_step, size)
        if not fewer:
            raise
        say(f"out of memory with {size} windows in a micro-batch; again with {fewer}, {windows_per_step // fewer} of them to a step")
        size = fewer
        return fewer

    def attempt_with(batch_size: int) -> None:
        gc.collect()  # the last attempt's student and optimizer refer to each other
        attempt(with_size(train, batch_size))

    find_executable_batch_size(attempt_with, starting_batch_size=first, reduce_batch_size_fn=next_size)()
