"""The lowest loss that any student could reach on a given set of targets: what a loss curve should be compared with."""

# N: tokens   K: stored teacher entries per token   B: K + 1 buckets, the tail last
import math

import torch
from torch import Tensor

from ..config import Divergence, Tail
from . import checks, closure
from . import targets as target_values
from .contract import Knobs, Targets
from .workspace import Workspace

BISECTIONS = 60
"""Halvings of (0, 1): to the last bit of float64."""


def loss_floor(
    teacher_logprobs_NK: Tensor,
    teacher_tail_N: Tensor | None,
    labels_N: Tensor | None,
    teacher_ids_NK: Tensor,
    *,
    temperature: float = 1.0,
    kl_weight: float = 1.0,
    ce_weight: float = 0.0,
    divergence: Divergence = "forward_kl",
    jsd_weight: float = 0.5,
    tail: Tail = "bucket",
    weights_N: Tensor | None = None,
    valid_rows: Tensor | None = None,
) -> Tensor:
    """Sum over the valid tokens of the lowest value that `topk_kl(...).loss` can take, in nats, as a 0-d float64 tensor.

    With m = the teacher's mass inside the K at T, and the KL part alone: 0, but for tail "drop", where giving the tail nothing is
    rewarded: T^2 m ln m forward, -T^2 m / e reverse. With cross-entropy at T = 1 the two parts pull apart:
        forward: least of -sum w ln p over the K + 1 buckets, where w = kl_weight q + ce_weight at the label's bucket: p = w / sum w;
        reverse: a convex problem in the label's probability alone, solved by bisection ("drop": a lower bound, as below).
    With cross-entropy at another T there is no closed form: the sum of the parts' own lows is given, which no student can get
    below, and which none may reach. A label outside the K shares the tail's bucket, whose mass could all be its own.
    jsd: 0 alone, and the sum of the parts' lows with cross-entropy. A z-loss changes nothing: logits can be shifted until it is 0.
    weights_N, valid_rows as in topk_kl. Raises LossInputError like topk_kl.
    """
    num_tokens = teacher_ids_NK.shape[0]
    checks.check_shapes(num_tokens, teacher_ids_NK, teacher_logprobs_NK, teacher_tail_N, labels_N, weights_N, valid_rows)
    knobs = Knobs(
        temperature=float(temperature),
        kl_weight=float(kl_weight),
        ce_weight=float(ce_weight),
        z_loss_weight=0.0,
        jsd_weight=float(jsd_weight),
        divergence=divergence,
        tail=tail,
        logit_scale=1.0,
        logit_softcap=None,
        vocab_size=1,
        chunk_tokens=1,
        workspace=Workspace(),
    )
    checks.check_knobs(knobs, head_rows=1)
    checks.check_combination(knobs, teacher_tail_N, labels_N)
    dtype = closure.small_dtype(teacher_ids_NK.device)
    targets = target_values.build_targets(
        teacher_ids_NK,
        teacher_logprobs_NK,
        teacher_tail_N,
        labels_N,
        weights_N,
        target_values.valid_rows(labels_N, valid_rows),
        dtype=dtype,
    )
    if targets.ids_NK.shape[0] == 0:
        return torch.zeros((), dtype=dtype, device=teacher_ids_NK.device)
    floor_N = floor_rows(targets, knobs)
    return (floor_N if targets.weights_N is None else floor_N * targets.weights_N).sum()


def floor_rows(targets: Targets, knobs: Knobs) -> Tensor:
    """Per token: the lowest value."""
    log_q_NB, _ = closure.teacher_log_buckets(targets, knobs)
    no_mixture = knobs.ce_weight == 0 or knobs.kl_weight == 0 or knobs.temperature != 1.0 or knobs.divergence == "jsd"
    if targets.labels_N is None or no_mixture or (knobs.divergence == "reverse_kl" and knobs.tail == "drop"):
        return knobs.kl_weight * kl_floor(log_q_NB, knobs)  # and 0 for the cross-entropy
    is_label_NB = label_buckets(targets)
    if knobs.divergence == "forward_kl":
        return forward_mixture_floor(log_q_NB, is_label_NB, knobs)
    return reverse_mixture_floor(log_q_NB, is_label_NB, knobs)


def kl_floor(log_q_NB: Tensor, knobs: Knobs) -> Tensor:
    """Per token: least T^2 KL."""
    if knobs.tail != "drop" or knobs.divergence == "jsd":
        return torch.zeros_like(log_q_NB[:, 0])
    log_m_N = torch.logsumexp(log_q_NB, dim=-1)
    least_N = log_m_N.exp() * log_m_N if knobs.divergence == "forward_kl" else -log_m_N.exp() / math.e
    return knobs.temperature**2 * least_N


def label_buckets(targets: Targets) -> Tensor:
    """[N, K+1] bool: the entry that is the label; the tail if none is. An empty entry is never it."""
    assert targets.labels_N is not None
    is_entry_NK = (targets.ids_NK == targets.labels_N[:, None]) & (targets.logprobs_NK > -math.inf)
    return torch.cat([is_entry_NK, ~is_entry_NK.any(dim=-1, keepdim=True)], dim=-1)


def forward_mixture_floor(log_q_NB: Tensor, is_label_NB: Tensor, knobs: Knobs) -> Tensor:
    """Per token: kl_weight sum q ln q - sum w ln (w / sum w)."""
    q_NB = log_q_NB.exp()
    w_NB = knobs.kl_weight * q_NB + knobs.ce_weight * is_label_NB.to(q_NB.dtype)
    total_N1 = w_NB.sum(dim=-1, keepdim=True)
    return knobs.kl_weight * torch.xlogy(q_NB, q_NB).sum(dim=-1) - torch.xlogy(w_NB, w_NB / total_N1).sum(dim=-1)


def reverse_mixture_floor(log_q_NB: Tensor, is_label_NB: Tensor, knobs: Knobs) -> Tensor:
    """Per token: least of kl_weight * KL(p || q) - ce_weight ln p_label; all but the label keep the teacher's proportions.

    With s the label's probability: s ln(s / q) + (1-s) ln((1-s) / (1-q)) - (ce_weight / kl_weight) ln s, whose slope rises in s.
    """
    # "renormalize" leaves the student's tail free: a label outside the K can have all the mass, at no cost
    is_free_N = is_label_NB[:, -1] & (knobs.tail == "renormalize")
    log_label_N = log_q_NB.masked_fill(~is_label_NB, -math.inf).amax(dim=-1)
    log_rest_N = torch.logsumexp(log_q_NB.masked_fill(is_label_NB, -math.inf), dim=-1)
    ratio = knobs.ce_weight / knobs.kl_weight
    low_N, high_N = torch.zeros_like(log_rest_N), torch.ones_like(log_rest_N)
    for _ in range(BISECTIONS):
        s_N = (low_N + high_N) / 2
        slope_N = s_N.log() - log_label_N - (1 - s_N).log() + log_rest_N - ratio / s_N
        low_N, high_N = torch.where(slope_N < 0, s_N, low_N), torch.where(slope_N < 0, high_N, s_N)
    s_N = high_N
    kl_N = s_N * (s_N.log() - log_label_N) + torch.xlogy(1 - s_N, 1 - s_N) - torch.where(s_N < 1, (1 - s_N) * log_rest_N, 0.0)
    return torch.where(is_free_N, 0.0, knobs.kl_weight * kl_N - knobs.ce_weight * s_N.log())
