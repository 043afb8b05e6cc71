"""The predicted peak of a training step, for the three ways to distil: which parts are alive together at the worst moment.

Two moments can be the worst: the loss (activations and logits; gradients only of earlier micro-batches), and the end of the backward
pass (all gradients, no activations); with adapters a third, when they are merged to be kept. On a CPU the program itself is counted
too. On a GPU nothing was measured; there the CUDA context (about half a GiB) comes on top.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import polars as pl

from ..catalog.model_facts import ModelFacts, dtype_in_memory
from ..config import DistillConfig
from ..limits import is_gpu
from ..units import gib
from .adapted import learned_parameters, merging_bytes, weight_bytes
from .formulas import activation_bytes, loss_bytes

Mode = Literal["online", "offline dense", "offline fused"]
MODES: tuple[Mode, ...] = get_args(Mode)
PARTS = ("program", "teacher weights", "student weights", "gradients", "optimizer", "activations", "logits and loss")

PROGRAM_BYTES = 710_000_000
"""Resident memory of a training run without its tensors: the built-in student at default settings peaked at 0.730 and 0.728 GiB of its
process (two threads, torch 2.13, transformers 5.24), 67 MB of it tensors by the formulas above."""
SMALL_BLOCK_SLACK, LARGE_BLOCK_SLACK = 1.4, 1.05
"""On a CPU, what the C allocator takes over what is alive of blocks that come and go: below 1 MiB it keeps freed ones in its heap, larger
ones go back at once where device.return_freed_blocks was asked; a training, which does not, peaked 7 % above."""
SMALL_BLOCK_BYTES = 2**20


def plan(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, device: str | None = None) -> pl.DataFrame:
    """Predicted peak of a training step: columns mode, part, bytes, gib; the parts of a mode add up to its peak.

    Modes: 'online' (teacher in memory beside the student), 'offline dense' (cache, full logits), 'offline fused' (what this package does).
    """
    parts = peak_parts(teacher, student, config, gpu=is_gpu(config.device if device is None else device))
    return pl.DataFrame(
        [{"mode": mode, "part": part, "bytes": size, "gib": gib(size)} for mode in MODES for part, size in parts[mode].items()]
    )


def peak_parts(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, gpu: bool) -> dict[Mode, dict[str, int]]:
    """Bytes by mode and part, at the mode's worst moment."""
    found: dict[Mode, dict[str, int]] = {}
    for mode in MODES:
        worst = max(_moments(teacher, student, config, mode=mode, gpu=gpu), key=lambda parts: sum(parts.values()))
        found[mode] = {part: round(worst[part]) for part in PARTS}
    return found


def peaks(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, gpu: bool) -> dict[Mode, int]:
    """Bytes by mode."""
    return {mode: sum(parts.values()) for mode, parts in peak_parts(teacher, student, config, gpu=gpu).items()}


def plan_over(
    teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, windows: Sequence[int], gpu: bool
) -> list[dict[str, object]]:
    """The plan at several window lengths: rows of {'window_tokens', 'mode', 'part', 'gib'}."""
    rows: list[dict[str, object]] = []
    for window in windows:
        parts = peak_parts(teacher, student, config.changed(text=config.text.changed(window_tokens=window)), gpu=gpu)
        rows += [
            {"window_tokens": window, "mode": mode, "part": part, "gib": gib(size)} for mode in MODES for part, size in parts[mode].items()
        ]
    return rows


def _moments(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, mode: Mode, gpu: bool) -> Iterable[dict[str, float]]:
    """Bytes by part, at the loss and at the end of the backward pass."""
    learned = 4 * learned_parameters(student, config.student)
    weights = weight_bytes(student, config.student)
    is_frozen = config.student.lora_rank is not None
    head_gradient = 0 if is_frozen else 4 * student.vocab_size_config * student.hidden_size
    dtype = dtype_in_memory(teacher, config.teacher.dtype, "cuda" if gpu else "cpu")
    num_tokens = config.train.per_device_train_batch_size * config.text.window_tokens
    small, large = (1.0, 1.0) if gpu else (SMALL_BLOCK_SLACK, LARGE_BLOCK_SLACK)
    is_small = 4 * num_tokens * student.hidden_size < SMALL_BLOCK_BYTES
    always: dict[str, float] = {
        "program": 0 if gpu else PROGRAM_BYTES,
        "teacher weights": large * teacher.memory_bytes[dtype] if mode == "online" else 0,
        "student weights": large * weights,
        "optimizer": large * 2 * learned,
    }
    earlier = learned if config.train.gradient_accumulation_steps > 1 else 0
    yield always | {
        "gradients": large * (earlier + (head_gradient if mode == "offline fused" else 0)),
        "activations": (small if is_small else large) * activation_bytes(student, config),
        "logits and loss": large * loss_bytes(student, config, mode=mode, gpu=gpu),
    }
    # a tied matrix gets its gradient from the head and from the embedding: both exist for a moment
    twice = head_gradient if student.tied_head else 0
    yield always | {"gradients": large * (learned + twice), "activations": 0, "logits and loss": 0}
    if is_frozen and not gpu:  # the best weights so far are kept, adapters merged
        merged = merging_bytes(student, config.student)
        yield always | {"student weights": large * (weights + merged), "gradients": 0, "activations": 0, "logits and loss": 0}
