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


class RowGradient(NamedTuple):
    """Loss rows, and the gradient with respect to the K + 1 bucket logits."""

    value_C: Tensor
    grad_CB: Tensor


def small_dtype(device: torch.device) -> torch.dtype:
    """float64: near the optimum a row's KL is 1e-4 of the terms that it is summed from. Metal has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def teacher_log_buckets(targets: Targets, knobs: Knobs) -> Tensor:
    """log q at the temperature asked for, [C, K+1]; -inf for an empty entry, and for a tail that has no term of its own.

    Head and tail are normalized here, together, so that rounded log-probabilities cannot hold more than all of the mass.
    """
    dtype = small_dtype(targets.ids_NK.device)
    entries_CK = targets.logprobs_NK.to(dtype) / knobs.temperature
    total_C = torch.logsumexp(entries_CK, dim=-1)
    log_r_C = torch.full_like(total_C, -math.inf)
    if knobs.tail != "renormalize" and targets.tail_N is not None:
        tail_C = targets.tail_N.to(dtype)
        total_C = torch.logaddexp(total_C, tail_C)
        if knobs.tail == "bucket":
            log_r_C = tail_C - total_C
    return torch.cat([entries_CK - total_C[:, None], log_r_C[:, None]], dim=-1)


def student_buckets(y_CK: Tensor, y_tail_C: Tensor, targets: Targets) -> Tensor:
    """y at the stored ids, and of the tail, [C, K+1]; -inf for an empty entry."""
    dtype = small_dtype(y_CK.device)
    return torch.cat([y_CK.to(dtype).masked_fill(targets.logprobs_NK == -math.inf, -math.inf), y_tail_C.to(dtype)[:, None]], dim=-1)


def forward_kl(y_CB: Tensor, log_q_CB: Tensor) -> RowGradient:
    """sum q (log q - log p); gradient mass * p - q, where mass = sum q is 1 unless the tail was dropped."""
    log_p_CB = torch.log_softmax(y_CB, dim=-1)
    q_CB = log_q_CB.exp()
    gap_CB = torch.where(log_q_CB > -math.inf, log_q_CB - log_p_CB, 0.0)
    return RowGradient((q_CB * gap_CB).sum(dim=-1), q_CB.sum(dim=-1, keepdim=True) * log_p_CB.exp() - q_CB)


def reverse_kl(y_CB: Tensor, log_q_CB: Tensor, tail: str) -> RowGradient:
    """sum p (log p - log q) over K + 1 (bucket), over K (drop), or over K with both sides renormalized there."""
    head_CK = y_CB[:, :-1]
    log_p_CB = torch.log_softmax(y_CB if tail != "renormalize" else head_CK, dim=-1)
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


def kl_rows(y_CB: Tensor, targets: Targets, knobs: Knobs) -> RowGradient:
    """The divergence from the teacher and its gradient, T^2 in neither."""
    log_q_CB = teacher_log_buckets(targets, knobs)
    return forward_kl(y_CB, log_q_CB) if knobs.divergence == "forward_kl" else reverse_kl(y_CB, log_q_CB, knobs.tail)


def ce_rows(z_CB: Tensor, z_label_C: Tensor) -> RowGradient:
    """log-sum-exp of z minus z at the label. The gradient is softmax over the buckets: the 1 at the label is the caller's to take off."""
    total_C1 = torch.logsumexp(z_CB, dim=-1, keepdim=True)
    return RowGradient(total_C1.squeeze(-1) - z_label_C, (z_CB - total_C1).exp())
