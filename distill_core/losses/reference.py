"""The loss's definition in plain torch: dense, differentiated by autograd, right in float64. The truth for tests and readers."""

# N: tokens   V: real vocabulary   D: hidden size   K: stored teacher entries per token   B: K + 1 buckets, the tail last
import math

import torch
from torch import Tensor

from .contract import Knobs, LossParts, Targets, compute_dtype


def topk_kl_reference(hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None, targets: Targets, knobs: Knobs) -> LossParts:
    """Sums over N of the loss and its parts, in nats. Builds the N x V logits, several times.

    T^2 keeps the size of the soft gradient when T changes (Hinton et al. 2015, arXiv:1503.02531, section 2).
    """
    logits_NV = head_logits(hidden_ND, lm_head_VD, bias_V, knobs)
    log_q_NB, log_p_NB = teacher_log_buckets(targets, knobs), student_log_buckets(logits_NV, targets, knobs)
    weights_N = logits_NV.new_ones(()) if targets.weights_N is None else targets.weights_N.to(logits_NV.dtype)
    kl = (weights_N * kl_rows(log_p_NB, log_q_NB, targets, knobs)).sum()
    ce = (weights_N * ce_rows(logits_NV, targets)).sum()
    needs_z_loss = targets.labels_N is not None or knobs.z_loss_weight > 0
    z_loss = (weights_N * torch.logsumexp(logits_NV, dim=-1).square()).sum() if needs_z_loss else torch.zeros_like(ce)
    loss = knobs.kl_weight * knobs.temperature**2 * kl + knobs.ce_weight * ce + knobs.z_loss_weight * z_loss
    is_entry_NK = targets.logprobs_NK > -math.inf
    first_N = logits_NV.gather(-1, targets.ids_NK[:, :1]).squeeze(-1)
    agreement = (first_N >= logits_NV.amax(dim=-1)).sum()
    return LossParts(
        loss=loss if targets.divisor is None else loss / targets.divisor.to(loss.dtype),
        kl=kl.detach(),
        ce=ce.detach(),
        agreement=agreement,
        num_valid=torch.full_like(agreement, hidden_ND.shape[0]),
        z_loss=z_loss.detach(),
        teacher_mass=kept_mass(targets, knobs).sum(),
        student_mass=(log_p_NB[:, :-1].detach().exp() * is_entry_NK).sum(),
    )


def head_logits(hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None, knobs: Knobs) -> Tensor:
    """cap * tanh(scale * (h W^T + b) / cap) over the real vocabulary."""
    dtype = compute_dtype(hidden_ND, lm_head_VD)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logits_NV = hidden_ND.to(dtype) @ lm_head_VD[: knobs.vocab_size].to(dtype).T
    if bias_V is not None:
        logits_NV = logits_NV + bias_V[: knobs.vocab_size].to(dtype)
    logits_NV = logits_NV * knobs.logit_scale
    if knobs.logit_softcap is not None:
        logits_NV = knobs.logit_softcap * torch.tanh(logits_NV / knobs.logit_softcap)
    return logits_NV


def ce_rows(logits_NV: Tensor, targets: Targets) -> Tensor:
    """Cross-entropy with the labels at T = 1."""
    if targets.labels_N is None:
        return logits_NV.new_zeros(logits_NV.shape[0])
    return -torch.log_softmax(logits_NV, dim=-1).gather(-1, targets.labels_N[:, None]).squeeze(-1)


def teacher_log_buckets(targets: Targets, knobs: Knobs) -> Tensor:
    """log q over the K entries and the tail, at the temperature asked for; -inf where the teacher side has no such term.

    bucket: q sums to 1 over K + 1. drop: the same q, but the tail's term is left out. renormalize: q sums to 1 over K.
    """
    entries_NK = targets.logprobs_NK / knobs.temperature
    absent_N1 = torch.full_like(entries_NK[:, :1], -math.inf)
    if knobs.tail == "renormalize" or targets.tail_N is None:
        return torch.cat([torch.log_softmax(entries_NK, dim=-1), absent_N1], dim=-1)
    log_q_NB = torch.log_softmax(torch.cat([entries_NK, targets.tail_N[:, None]], dim=-1), dim=-1)
    return torch.cat([log_q_NB[:, :-1], absent_N1], dim=-1) if knobs.tail == "drop" else log_q_NB


def student_log_buckets(logits_NV: Tensor, targets: Targets, knobs: Knobs) -> Tensor:
    """log p of the same buckets. The tail is summed directly over the tokens outside the K, never as 1 - sum."""
    log_p_NV = torch.log_softmax(logits_NV / knobs.temperature, dim=-1)
    stored_NV = torch.zeros_like(log_p_NV, dtype=torch.bool).scatter(-1, targets.ids_NK, value=True)
    has_tail_N1 = ~stored_NV.all(dim=-1, keepdim=True)
    outside_NV = log_p_NV.masked_fill(stored_NV & has_tail_N1, -math.inf)
    log_u_N1 = torch.logsumexp(outside_NV, dim=-1, keepdim=True).masked_fill(~has_tail_N1, -math.inf)
    return torch.cat([log_p_NV.gather(-1, targets.ids_NK), log_u_N1], dim=-1)


def kept_mass(targets: Targets, knobs: Knobs) -> Tensor:
    """Per token: the teacher's probability inside the K."""
    head_N = torch.logsumexp(targets.logprobs_NK / knobs.temperature, dim=-1)
    return torch.ones_like(head_N) if targets.tail_N is None else torch.sigmoid(head_N - targets.tail_N)


def kl_rows(log_p_NB: Tensor, log_q_NB: Tensor, targets: Targets, knobs: Knobs) -> Tensor:
    """Per token, over the buckets that the tail mode keeps.

    forward sum q (log q - log p), reverse sum p (log p - log q), jsd b sum q (log q - log m) + (1-b) sum p (log p - log m).
    """
    counts_NB = torch.cat(
        [targets.logprobs_NK > -math.inf, torch.full_like(targets.ids_NK[:, :1], knobs.tail == "bucket", dtype=torch.bool)], dim=-1
    )
    if knobs.divergence == "jsd":
        counts_NB[:, -1] = knobs.tail != "drop"  # a teacher without tail still tells the student's apart
        b, counts_q_NB, counts_p_NB = knobs.jsd_weight, counts_NB & (log_q_NB > -math.inf), counts_NB & (log_p_NB > -math.inf)
        q_NB, p_NB = log_q_NB.exp(), log_p_NB.masked_fill(~counts_p_NB, 0.0).exp() * counts_p_NB
        m_NB = b * q_NB + (1 - b) * p_NB
        log_m_NB = torch.where(m_NB > 0, m_NB, 1.0).log()
        from_q_N = (q_NB * (log_q_NB.masked_fill(~counts_q_NB, 0.0) - log_m_NB) * counts_q_NB).sum(dim=-1)
        from_p_N = (p_NB * (log_p_NB.masked_fill(~counts_p_NB, 0.0) - log_m_NB)).sum(dim=-1)
        return b * from_q_N + (1 - b) * from_p_N
    if knobs.divergence == "forward_kl":
        counts_NB = counts_NB & (log_q_NB > -math.inf)  # 0 log 0 = 0
    else:
        counts_NB = counts_NB & (log_p_NB > -math.inf)
        if knobs.tail == "renormalize":  # both sides over the K: a student compared with a teacher of empty tail would be +inf away
            log_p_NB = log_p_NB - torch.logsumexp(log_p_NB.masked_fill(~counts_NB, -math.inf), dim=-1, keepdim=True)
    log_q_NB, log_p_NB = log_q_NB.masked_fill(~counts_NB, 0.0), log_p_NB.masked_fill(~counts_NB, 0.0)
    weight_NB = log_q_NB.exp() if knobs.divergence == "forward_kl" else log_p_NB.exp()
    gap_NB = log_q_NB - log_p_NB if knobs.divergence == "forward_kl" else log_p_NB - log_q_NB
    return (weight_NB * gap_NB * counts_NB).sum(dim=-1)
