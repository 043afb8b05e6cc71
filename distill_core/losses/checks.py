"""Refuses what the loss cannot be computed from, by name, and brings the rest into one form."""

# N: tokens (batch x sequence, flattened)   V: rows of the head   D: hidden size   K: stored teacher entries per token
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import LossInputError, did_you_mean
from .contract import IGNORE_INDEX, Knobs, Targets

DIVERGENCES = ("forward_kl", "reverse_kl")
TAILS = ("bucket", "renormalize", "drop")


def check_name(what: str, given: str, known: Iterable[str]) -> None:
    if given not in known:
        raise LossInputError(f"{what}: '{given}' does not exist.{did_you_mean(str(given), known)}")


def check_knobs(knobs: Knobs, *, head_rows: int) -> None:
    check_name("divergence", knobs.divergence, DIVERGENCES)
    check_name("tail", knobs.tail, TAILS)
    if not (knobs.temperature > 0 and math.isfinite(knobs.temperature)):
        raise LossInputError(f"temperature must be above 0, got {knobs.temperature}. Use 1.0 for plain KL.")
    for name in ("kl_weight", "ce_weight"):
        weight = getattr(knobs, name)
        if not (weight >= 0 and math.isfinite(weight)):
            raise LossInputError(f"{name} must be 0 or more, got {weight}. Use 0 to leave that part out.")
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


def check_head(hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None) -> None:
    """Shapes, types and devices of what the student brings."""
    for name, tensor in (("hidden_ND", hidden_ND), ("lm_head_VD", lm_head_VD)):
        if tensor.ndim != 2:
            hint = "Flatten batch and sequence into one dimension" if name == "hidden_ND" else "Pass the whole, gathered weight of the head"
            raise LossInputError(f"{name} must have 2 dimensions, got shape {tuple(tensor.shape)}. {hint}.")
        if not tensor.is_floating_point():
            raise LossInputError(f"{name} must be floating point, got {tensor.dtype}. Quantized weights must be dequantized first.")
    if hidden_ND.shape[1] != lm_head_VD.shape[1]:
        raise LossInputError(
            f"hidden_ND is {hidden_ND.shape[1]} wide, lm_head_VD {lm_head_VD.shape[1]}."
            " Pass the head of the model that made the hidden states, and what enters that head."
        )
    if lm_head_VD.shape[0] == 0 or lm_head_VD.shape[1] == 0:
        raise LossInputError(f"lm_head_VD is empty, shape {tuple(lm_head_VD.shape)}: a sharded weight must be gathered first.")
    if bias_V is not None and (bias_V.shape != lm_head_VD.shape[:1] or not bias_V.is_floating_point()):
        raise LossInputError(
            f"bias_V must be floating point with one entry for each of the {lm_head_VD.shape[0]:,} head rows,"
            f" got {bias_V.dtype} of shape {tuple(bias_V.shape)}. Pass None if the head has no bias."
        )


def check_shapes(
    hidden_ND: Tensor, teacher_ids_NK: Tensor, teacher_logprobs_NK: Tensor, tail_N: Tensor | None, labels_N: Tensor | None
) -> None:
    """Shapes, types and devices of what the teacher and the text bring."""
    num_tokens = hidden_ND.shape[0]
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
    for name, tensor in (("teacher_tail_N", tail_N), ("labels_N", labels_N)):
        if tensor is not None and tensor.shape != (num_tokens,):
            raise LossInputError(
                f"{name} must have shape ({num_tokens},), got {tuple(tensor.shape)}. Give one value for each row of hidden_ND."
            )
    for name, tensor, is_number in (
        ("teacher_ids_NK", teacher_ids_NK, False),
        ("labels_N", labels_N, False),
        ("teacher_logprobs_NK", teacher_logprobs_NK, True),
        ("teacher_tail_N", tail_N, True),
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


def check_values(targets: Targets, *, vocab_size: int) -> None:
    """Values that no arithmetic can use: ids and labels outside the vocabulary, numbers that are no log-probabilities, empty rows.

    It reads the tensors, so on an accelerator it waits for them: call it when data is loaded, not in every step.
    """
    if targets.ids_NK.shape[0] == 0:
        return
    lowest, highest = (int(bound) for bound in targets.ids_NK.aminmax())
    if lowest < 0 or highest >= vocab_size:
        raise LossInputError(
            f"teacher_ids_NK holds id {lowest if lowest < 0 else highest:,}, outside the student's vocabulary of {vocab_size:,}."
            " Teacher and student must share one tokenizer."
        )
    if targets.labels_N is not None:
        lowest, highest = (int(bound) for bound in targets.labels_N.aminmax())
        if lowest < 0 or highest >= vocab_size:
            raise LossInputError(
                f"labels_N holds {lowest if lowest < 0 else highest:,}, outside the student's vocabulary of {vocab_size:,}."
                f" Use {IGNORE_INDEX} for tokens that are not learned from."
            )
    most_N = targets.logprobs_NK.amax(dim=-1)
    largest, smallest = float(most_N.max()), float(most_N.min())
    if math.isnan(largest) or largest > 0.01:
        raise LossInputError(f"teacher_logprobs_NK holds {largest:g}: a natural-log probability is never above 0. Are these logits?")
    if smallest == -math.inf:
        row = int(most_N.argmin())
        raise LossInputError(f"teacher_logprobs_NK: valid row {row} has no entry, all are -inf. Set its label to {IGNORE_INDEX}.")
    if targets.tail_N is not None and not float(targets.tail_N.max()) < math.inf:
        raise LossInputError(
            "teacher_tail_N holds NaN or +inf. It is a log-sum-exp: -inf where nothing is outside the K, finite elsewhere."
        )


def valid_rows(labels_N: Tensor | None) -> Tensor | None:
    """Indices of the rows that are learned from; None if that is every row."""
    if labels_N is None:
        return None
    rows_M = (labels_N != IGNORE_INDEX).nonzero().squeeze(-1)
    return None if rows_M.shape[0] == labels_N.shape[0] else rows_M


def build_targets(
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    tail_N: Tensor | None,
    labels_N: Tensor | None,
    rows_M: Tensor | None,
    *,
    dtype: torch.dtype,
) -> Targets:
    """The teacher's side of the valid rows, in one form. Targets are constants: no gradient flows into them."""

    def kept(tensor: Tensor) -> Tensor:
        return tensor.detach() if rows_M is None else tensor.detach().index_select(0, rows_M)

    ids_NK, logprobs_NK = kept(teacher_ids_NK).long(), kept(teacher_logprobs_NK).to(dtype)
    if ids_NK.shape[0]:
        # an empty entry may carry any id: give it one that is really stored, so that it is harmless in gather and scatter
        first_N1 = ids_NK.gather(-1, logprobs_NK.argmax(dim=-1, keepdim=True))
        ids_NK = torch.where(logprobs_NK == -math.inf, first_N1, ids_NK)
    return Targets(
        ids_NK=ids_NK,
        logprobs_NK=logprobs_NK,
        tail_N=None if tail_N is None else kept(tail_N).to(dtype),
        labels_N=None if labels_N is None else kept(labels_N).long(),
    )
