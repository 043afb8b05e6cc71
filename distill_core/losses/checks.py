"""Refuses settings and shapes that the loss cannot be computed from, by name; heads.py and targets.py look at the tensors."""

# N: tokens (batch x sequence, flattened)   V: rows of the head   D: hidden size   K: stored teacher entries per token
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import LossInputError, did_you_mean
from .contract import Knobs

DIVERGENCES = ("forward_kl", "reverse_kl", "jsd")
TAILS = ("bucket", "renormalize", "drop")


def check_name(what: str, given: str, known: Iterable[str]) -> None:
    if given not in known:
        raise LossInputError(f"{what}: '{given}' does not exist.{did_you_mean(str(given), known)}")


def check_knobs(knobs: Knobs, *, head_rows: int) -> None:
    check_name("divergence", knobs.divergence, DIVERGENCES)
    check_name("tail", knobs.tail, TAILS)
    if not (knobs.temperature > 0 and math.isfinite(knobs.temperature)):
        raise LossInputError(f"temperature must be above 0, got {knobs.temperature}. Use 1.0 for plain KL.")
    for name in ("kl_weight", "ce_weight", "z_loss_weight"):
        weight = getattr(knobs, name)
        if not (weight >= 0 and math.isfinite(weight)):
            raise LossInputError(f"{name} must be 0 or more, got {weight}. Use 0 to leave that part out.")
    if not 0 < knobs.jsd_weight < 1:
        raise LossInputError(
            f"jsd_weight must lie between 0 and 1, got {knobs.jsd_weight}. Near 0 the loss is jsd_weight * forward KL, near 1"
            " (1 - jsd_weight) * reverse KL: for these use divergence='forward_kl' or 'reverse_kl'."
        )
    if not math.isfinite(knobs.logit_scale) or knobs.logit_scale == 0:
        raise LossInputError(f"logit_scale must be a finite number other than 0, got {knobs.logit_scale}. Use 1.0 for none.")
    if knobs.logit_softcap is not None and not (knobs.logit_softcap > 0 and math.isfinite(knobs.logit_softcap)):
        raise LossInputError(f"logit_softcap must be above 0, got {knobs.logit_softcap}. Use None for none.")
    if not 1 <= knobs.vocab_size <= head_rows:
        raise LossInputError(
            f"vocab_size {knobs.vocab_size:,} does not fit a head of {head_rows:,} rows. Pass 1 to {head_rows:,}, or None for all."
        )
    if knobs.chunk_tokens < 1:
        raise LossInputError(f"chunk_tokens must be 1 or more, got {knobs.chunk_tokens}. Use None to have it chosen.")


def check_shapes(
    num_tokens: int,
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    teacher_tail_N: Tensor | None,
    labels_N: Tensor | None,
    weights_N: Tensor | None,
    valid_rows: Tensor | None,
) -> None:
    """Shapes and types of what the teacher and the text bring."""
    if teacher_ids_NK.ndim != 2 or teacher_ids_NK.shape[0] != num_tokens or teacher_ids_NK.shape[1] == 0:
        raise LossInputError(
            f"teacher_ids_NK must be [{num_tokens}, K] with K >= 1, got shape {tuple(teacher_ids_NK.shape)}."
            " Give one row of teacher entries for each row of hidden_ND."
        )
    if teacher_logprobs_NK.shape != teacher_ids_NK.shape:
        raise LossInputError(
            f"teacher_logprobs_NK has shape {tuple(teacher_logprobs_NK.shape)}, teacher_ids_NK {tuple(teacher_ids_NK.shape)}."
            " Each id needs its log-probability."
        )
    if valid_rows is not None and valid_rows.ndim != 1:
        raise LossInputError(
            f"valid_rows must have 1 dimension, got shape {tuple(valid_rows.shape)}. Pass the numbers of the rows that are learned from."
        )
    for name, tensor in (("teacher_tail_N", teacher_tail_N), ("labels_N", labels_N), ("weights_N", weights_N)):
        if tensor is not None and tensor.shape != (num_tokens,):
            raise LossInputError(
                f"{name} must have shape ({num_tokens},), got {tuple(tensor.shape)}. Give one value for each row of hidden_ND."
            )
    for name, tensor, is_number in (
        ("teacher_ids_NK", teacher_ids_NK, False),
        ("labels_N", labels_N, False),
        ("valid_rows", valid_rows, False),
        ("teacher_logprobs_NK", teacher_logprobs_NK, True),
        ("teacher_tail_N", teacher_tail_N, True),
        ("weights_N", weights_N, True),
    ):
        if tensor is None:
            continue
        whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        if whole == is_number:
            raise LossInputError(
                f"{name} must be {'floating point' if is_number else 'whole numbers'}, got {tensor.dtype}. Are arguments swapped?"
            )


def check_devices(**tensors: Tensor | None) -> None:
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise LossInputError(f"tensors are on different devices: {where}. Move them to the student's.")


def check_combination(knobs: Knobs, tail_N: Tensor | None, labels_N: Tensor | None) -> None:
    """What one setting needs from another."""
    if knobs.tail != "renormalize" and tail_N is None:
        raise LossInputError(
            f"tail='{knobs.tail}' needs teacher_tail_N: the log-sum-exp of the tokens outside the K at temperature {knobs.temperature}."
            " A cache holds it; without one, use tail='renormalize'."
        )
    if knobs.ce_weight > 0 and labels_N is None:
        raise LossInputError(
            f"ce_weight is {knobs.ce_weight}, but labels_N is None. Pass the text's own next tokens, or set ce_weight to 0."
        )


def check_divisor(divisor: Tensor | float | None) -> None:
    """A number is looked at; a tensor would have to be waited for."""
    if isinstance(divisor, Tensor):
        if divisor.numel() != 1:
            raise LossInputError(f"divisor must be one number, got shape {tuple(divisor.shape)}. Pass the step's valid tokens.")
    elif divisor is not None and not (divisor > 0 and math.isfinite(divisor)):
        raise LossInputError(f"divisor must be above 0, got {divisor}. Use max(1, valid tokens) for a step that may have none.")
