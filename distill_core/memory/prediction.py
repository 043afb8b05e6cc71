"""The predicted peak of a training step, for the three ways to distil: which parts are alive together at the worst moment.

Moments that can be the worst: the loss (activations and logits; gradients only of earlier micro-batches), the first layer of the backward
pass (activations, gradients of activations), with activation checkpointing also its last layer, and its end (all gradients, no
activations); with adapters, when they are merged to be kept.

Nothing in it is fitted to what it is checked against. Six shapes were measured (tests/memory/test_measured.py): the three that an earlier
version had been fitted to, and three others, with checkpointing, accumulation and LoRA, which found its formulas up to 14 % off and
helped to mend them: a new shape would be the next blind test.
On a CPU the program itself is counted too, see PROGRAM_BYTES. On a GPU nothing was measured; there the CUDA context (about half a GiB)
comes on top.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import polars as pl

from ..catalog.model_facts import ModelFacts, dtype_in_memory
from ..config import DistillConfig
from ..limits import is_gpu
from ..units import gib
from .adapted import learned_parameters, merging_bytes, weight_bytes
from .formulas import activation_bytes, backward_bytes, chunk_bytes, left_bytes, loss_bytes, state_bytes, state_widths

Mode = Literal["online", "offline dense", "offline fused"]
MODES: tuple[Mode, ...] = get_args(Mode)
PARTS = ("program", "teacher weights", "student weights", "gradients", "optimizer", "activations", "logits and loss")

PROGRAM_BYTES = 725_000_000
"""Resident memory of a training run without its tensors: the built-in student at default settings peaked at 0.730 and 0.728 GiB of its
process (two threads, torch 2.13, transformers 5.24), 59 MB of it tensors, as counted by torch in the measuring script.

It is the only measured number in the plan, and holds what that run's heap kept of freed blocks. Other runs' heaps keep other amounts: with
glibc as it is, the process of the measuring script grew by 29 MB more than its tensors for that student, and by 62, 73 and 119 MB for the
three shapes of HELD_OUT in tests/memory/test_measured.py. So on a CPU a plan of a few hundred MB says what the tensors take, and the
process no closer than about 100 MB; where freed blocks go back at once, 7 to 15 MB more than the tensors were seen (scratch of the
libraries' products)."""


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
    """Bytes by part, at each moment that can be the worst."""
    pairs, width = state_widths(teacher, config)
    projections = 4 * pairs * width * student.hidden_size
    learned = 4 * learned_parameters(student, config.student) + projections
    weights = weight_bytes(student, config.student) + projections
    is_frozen, is_fused = config.student.lora_rank is not None, mode == "offline fused"
    head_gradient = 0 if is_frozen else 4 * student.vocab_size_config * student.hidden_size
    dtype = dtype_in_memory(teacher, config.teacher.dtype, "cuda" if gpu else "cpu")
    always: dict[str, float] = {
        "program": 0 if gpu else PROGRAM_BYTES,
        "teacher weights": teacher.memory_bytes[dtype] if mode == "online" else 0,
        "student weights": weights,
        "optimizer": 2 * learned,
    }

    def moment(gradients: float, activations: float, loss: float) -> dict[str, float]:
        return always | {"gradients": gradients, "activations": activations, "logits and loss": loss}

    # adversarial training: the clean pass waits, whole, while the changed one is computed, and both have a loss of their own
    passes = 2 if is_fused and config.loss.adversarial_weight else 1
    states = state_bytes(teacher, student, config) if is_fused else 0
    waiting = (passes - 1) * activation_bytes(student, config)
    is_accumulating = config.train.gradient_accumulation_steps > 1
    earlier, loss_left = learned if is_accumulating else 0, passes * left_bytes(student, config, mode=mode, gpu=gpu) + states
    loss = loss_bytes(student, config, mode=mode, gpu=gpu) + states + (loss_left - states) * (passes - 1) / passes
    yield moment(earlier + (passes * head_gradient if is_fused else 0), waiting + activation_bytes(student, config), loss)
    yield moment(
        earlier + passes * head_gradient, waiting + backward_bytes(student, config, layers_below=student.num_layers - 1), loss_left
    )
    if config.train.activation_checkpointing:
        yield moment(learned, backward_bytes(student, config, layers_below=0), loss_left)
    # a tied matrix gets its gradient from the head and from the embedding: both exist for a moment, beside the earlier micro-batches' sum
    twice = head_gradient * (int(student.tied_head) + int(is_accumulating))
    chunk = chunk_bytes(student, config, gpu=gpu) if is_fused else 0
    yield moment(learned + twice, 0, chunk)
    if is_frozen and not gpu:  # the best weights so far are kept, adapters merged
        yield moment(0, 0, chunk) | {"student weights": weights + merging_bytes(student, config.student)}
