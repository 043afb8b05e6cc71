"""Values and gradients of the loss on the K stored entries and the tail: all of it that is not as wide as the vocabulary.

Every loss here sees the student's logits y = z / T only through K + 1 numbers: y at the K stored ids, and y_tail, the
log-sum-exp of y over all other tokens. With g the gradient with respect to those K + 1 numbers,

    dL/dy_v = g_v                                on the stored ids
    dL/dy_v = g_tail * exp(y_v - y_tail)         elsewhere

so a dense pass needs one exp and one factor per row, and no target as wide as the vocabulary. exp(y_v - y_tail) is a
softmax over the tail itself: it stays exact when the tail holds 1e-30 of the student's mass, where 1 - P would be 0.
"""

# C: tokens of one chunk   K: stored teacher entries per token   B: K + 1 buckets, the tail last
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .contract import Knobs, Targets


class RowSums(NamedTuple):
    """What one block of rows adds to the totals: 0-d tensors of small_dtype, agreement int64."""

    kl: Tensor
    ce: Tensor
    z_loss: Tensor
    teacher_mass: Tensor
    student_mass: Tensor
    agreement: Tensor

    def plus(self, other: "RowSums") -> "RowSums":
        return RowSums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Entries(NamedTuple):
    """Logits that the small maths needs, read before they are overwritten."""

    y_CK: Tensor
    y_label_C: Tensor | None


class BlockGradient(NamedTuple):
    """dloss/dy in three parts: a factor per row for each tail softmax, and values for single entries."""

    tail_C1: Tensor
    tail_at_1_C1: Tensor | None
    ids_CK: Tensor
    label_C1: Tensor | None


class RowGradient(NamedTuple):
    """Loss rows, and the gradient with respect to the K + 1 bucket logits."""

    value_C: Tensor
    grad_CB: Tensor


def small_dtype(device: torch.device) -> torch.dtype:
    """float64: near the optimum a row's KL is 1e-4 of the terms that it is summed from. Metal has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def zero_sums(device: torch.device) -> RowSums:
    zero = torch.zeros((), dtype=small_dtype(device), device=device)
    return RowSums(zero, zero, zero, zero, zero, torch.zeros((), dtype=torch.int64, device=device))


def needs_log_sum_at_1(targets: Targets, knobs: Knobs) -> bool:
    """Cross-entropy and z-loss look at the log-sum-exp of all logits at T = 1."""
    return targets.labels_N is not None or knobs.z_loss_weight > 0


def needs_second_softmax(targets: Targets, knobs: Knobs) -> bool:
    """At another T than 1, cross-entropy and z-loss have a softmax of their own."""
    return needs_log_sum_at_1(targets, knobs) and knobs.temperature != 1.0


def teacher_log_buckets(targets: Targets, knobs: Knobs) -> tuple[Tensor, Tensor]:
    """(log q at the temperature asked for [C, K+1], kept mass [C]); -inf for an empty entry, and for a tail that has no term of its own.

    Head and tail are normalized here, together, so that rounded log-probabilities cannot hold more than all of the mass.
    """
    dtype = small_dtype(targets.ids_NK.device)
    entries_CK = targets.logprobs_NK.to(dtype) / knobs.temperature
    head_C = torch.logsumexp(entries_CK, dim=-1)
    log_r_C = torch.full_like(head_C, -math.inf)
    if targets.tail_N is None:
        return torch.cat([entries_CK - head_C[:, None], log_r_C[:, None]], dim=-1), torch.ones_like(head_C)
    tail_C = targets.tail_N.to(dtype)
    total_C = torch.logaddexp(head_C, tail_C)
    if knobs.tail == "bucket":
        log_r_C = tail_C - total_C
    scale_C = head_C if knobs.tail == "renormalize" else total_C
    return torch.cat([entries_CK - scale_C[:, None], log_r_C[:, None]], dim=-1), (head_C - total_C).exp()


def student_buckets(y_CK: Tensor, y_tail_C: Tensor, targets: Targets) -> Tensor:
    """y at the stored ids, and of the tail, [C, K+1]; -inf for an empty entry."""
    dtype = small_dtype(y_CK.device)
    return torch.cat([y_CK.to(dtype).masked_fill(targets.logprobs_NK == -math.inf, -math.inf), y_tail_C.to(dtype)[:, None]], dim=-1)


def forward_kl(log_p_CB: Tensor, log_q_CB: Tensor) -> RowGradient:
    """sum q (log q - log p); gradient mass * p - q, where mass = sum q is 1 unless the tail was dropped."""
    q_CB = log_q_CB.exp()
    gap_CB = torch.where(log_q_CB > -math.inf, log_q_CB - log_p_CB, 0.0)
    return RowGradient((q_CB * gap_CB).sum(dim=-1), q_CB.sum(dim=-1, keepdim=True) * log_p_CB.exp() - q_CB)


def reverse_kl(log_p_CB: Tensor, log_q_CB: Tensor, tail: str) -> RowGradient:
    """sum p (log p - log q) over K + 1 (bucket), over K (drop), or over K with both sides renormalized there."""
    if tail == "renormalize":
        log_p_CB = torch.log_softmax(log_p_CB[:, :-1], dim=-1)
    p_CB = log_p_CB.exp()
    log_q_CB = log_q_CB if tail == "bucket" else log_q_CB[:, :-1]
    p_kept_CB = p_CB[:, : log_q_CB.shape[1]]
    gap_CB = torch.where(p_kept_CB > 0, log_p_CB[:, : log_q_CB.shape[1]] - log_q_CB, 0.0)
    value_C1 = (p_kept_CB * gap_CB).sum(dim=-1, keepdim=True)
    if tail == "drop":
        u_C1 = p_CB[:, -1:]
        grad_CB = torch.cat([p_kept_CB * (gap_CB + u_C1 - value_C1), -u_C1 * (value_C1 + p_kept_CB.sum(dim=-1, keepdim=True))], dim=-1)
    else:
        grad_CB = p_kept_CB * (gap_CB - value_C1)
        if tail == "renormalize":
            grad_CB = torch.cat([grad_CB, torch.zeros_like(value_C1)], dim=-1)
    return RowGradient(value_C1.squeeze(-1), grad_CB)


def jsd(log_p_CB: Tensor, log_q_CB: Tensor, weight: float, tail: str) -> RowGradient:
    """b sum q log(q / m) + (1-b) sum p log(p / m), m = b q + (1-b) p, b = weight; d/dp = (1-b) log(p / m).

    "renormalize" gives the teacher no tail, so there p / m = 1 / (1-b); "drop" leaves the tail's terms out.
    """
    log_m_CB = torch.logaddexp(math.log(weight) + log_q_CB, math.log1p(-weight) + log_p_CB)
    q_gap_CB = torch.where(log_q_CB > -math.inf, log_q_CB - log_m_CB, 0.0)
    p_gap_CB = torch.where(log_p_CB > -math.inf, log_p_CB - log_m_CB, 0.0)
    if tail == "drop":
        q_gap_CB[:, -1], p_gap_CB[:, -1] = 0.0, 0.0
    p_CB = log_p_CB.exp()
    mean_C1 = (p_CB * p_gap_CB).sum(dim=-1, keepdim=True)
    value_C = weight * (log_q_CB.exp() * q_gap_CB).sum(dim=-1) + (1 - weight) * mean_C1.squeeze(-1)
    return RowGradient(value_C, (1 - weight) * p_CB * (p_gap_CB - mean_C1))


def kl_rows(log_p_CB: Tensor, log_q_CB: Tensor, knobs: Knobs) -> RowGradient:
    """The divergence from the teacher and its gradient, T^2 in neither."""
    if knobs.divergence == "forward_kl":
        return forward_kl(log_p_CB, log_q_CB)
    if knobs.divergence == "jsd":
        return jsd(log_p_CB, log_q_CB, knobs.jsd_weight, knobs.tail)
    return reverse_kl(log_p_CB, log_q_CB, knobs.tail)


class AtOne(NamedTuple):
    """Rows of cross-entropy and z-loss, and the gradient of their weighted sum with respect to z, the 1 at the label not yet off."""

    ce_C: Tensor
    z_loss_C: Tensor
    grad_CB: Tensor


def rows_at_1(z_CB: Tensor, z_label_C: Tensor | None, knobs: Knobs) -> AtOne:
    """With L the log-sum-exp of z: cross-entropy L - z_label, z-loss L^2, whose gradients are p and 2 L p."""
    total_C1 = torch.logsumexp(z_CB, dim=-1, keepdim=True)
    total_C = total_C1.squeeze(-1)
    factor = knobs.ce_weight if knobs.z_loss_weight == 0 else knobs.ce_weight + 2 * knobs.z_loss_weight * total_C1
    ce_C = torch.zeros_like(total_C) if z_label_C is None else total_C - z_label_C
    return AtOne(ce_C, total_C.square(), (z_CB - total_C1).exp() * factor)


def finish_rows(
    entries: Entries, tail_C: Tensor, tail_at_1_C: Tensor | None, most_C: Tensor, targets: Targets, knobs: Knobs
) -> tuple[RowSums, BlockGradient]:
    """All that is [C, K]: loss rows, agreement, and the parts of the gradient; weights, T^2 and divisor included."""
    temperature, dtype = knobs.temperature, entries.y_CK.dtype
    y_CB = student_buckets(entries.y_CK, tail_C, targets)
    log_p_CB = torch.log_softmax(y_CB, dim=-1)
    log_q_CB, teacher_mass_C = teacher_log_buckets(targets, knobs)
    kl = kl_rows(log_p_CB, log_q_CB, knobs)
    grad_CB = kl.grad_CB * (knobs.kl_weight * temperature**2)
    zero = torch.zeros_like(teacher_mass_C)
    at_1, at_1_grad_CB, label_C1 = AtOne(zero, zero, grad_CB), None, None
    if needs_log_sum_at_1(targets, knobs):
        z_CB = y_CB if tail_at_1_C is None else student_buckets(entries.y_CK.to(y_CB.dtype) * temperature, tail_at_1_C, targets)
        at_1 = rows_at_1(z_CB, None if entries.y_label_C is None else entries.y_label_C.to(z_CB.dtype) * temperature, knobs)
        if knobs.ce_weight > 0 or knobs.z_loss_weight > 0:
            at_1_grad_CB = at_1.grad_CB * temperature  # z = T y
    if entries.y_label_C is not None and knobs.ce_weight > 0:
        label_C1 = torch.full_like(grad_CB[:, :1], -knobs.ce_weight * temperature)
    weigh = 1.0 if targets.weights_N is None else targets.weights_N
    sums = RowSums(
        kl=(kl.value_C * weigh).sum(),
        ce=(at_1.ce_C * weigh).sum(),
        z_loss=(at_1.z_loss_C * weigh).sum(),
        teacher_mass=teacher_mass_C.sum(),
        student_mass=log_p_CB[:, :-1].exp().sum(),
        agreement=(entries.y_CK[:, 0] >= torch.maximum(entries.y_CK.amax(dim=-1), most_C)).sum(),
    )
    return sums, _block_gradient(grad_CB, at_1_grad_CB, label_C1, targets, dtype, is_one_softmax=tail_at_1_C is None)


def _block_gradient(
    grad_CB: Tensor, at_1_grad_CB: Tensor | None, label_C1: Tensor | None, targets: Targets, dtype: torch.dtype, *, is_one_softmax: bool
) -> BlockGradient:
    """Parts by where they go, each times the token's weight and over the divisor."""
    share: Tensor | None = None if targets.weights_N is None else targets.weights_N[:, None]
    if targets.divisor is not None:
        share = targets.divisor.reciprocal() if share is None else share / targets.divisor

    def placed(part: Tensor) -> Tensor:
        return (part if share is None else part * share).to(dtype)

    whole_CB = grad_CB if at_1_grad_CB is None else grad_CB + at_1_grad_CB
    return BlockGradient(
        tail_C1=placed((whole_CB if is_one_softmax else grad_CB)[:, -1:]),
        tail_at_1_C1=None if is_one_softmax or at_1_grad_CB is None else placed(at_1_grad_CB[:, -1:]),
        ids_CK=placed(whole_CB[:, :-1]),
        label_C1=None if label_C1 is None else placed(label_C1),
    )
