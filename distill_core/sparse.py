"""What is kept of the teacher's distributions: the top K, the tail at six temperatures, the next token's log-probability, the entropy."""
# B: windows   L: tokens in a window   P = L - 1: positions
# R: rows, positions with a target   C: rows of a chunk   D: hidden size   V: real vocabulary   K: entries kept   A: temperatures

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .batches import model_inputs
from .cache.codecs import EMPTY_ID
from .cache.tail import ANCHORS, AT_ONE
from .heads import Head, HeadOps, run_body
from .hidden_states import HiddenKeeper

IN_CPU_CACHE = 2**18
"""Logits whose exponentials stay in a CPU's cache from one temperature to the next: 0.15 ms a row of 49,152 instead of 0.85."""


@dataclass
class SparseRows:
    """What is kept of R distributions, all on the CPU."""

    ids_RK: torch.Tensor
    logprobs_RK: torch.Tensor
    tail_RA: torch.Tensor
    tail_mean_RA: torch.Tensor
    gold_logprob_R: torch.Tensor
    entropy_R: torch.Tensor
    hidden: dict[str, torch.Tensor] = field(default_factory=dict, kw_only=True)
    """Columns of hidden states [R, ...], where they are kept."""


def widened(head: Head) -> Head:
    """The head with a float32 copy of its weight on a CPU, where half-precision products are slower and round; itself elsewhere."""
    if head.weight_VD.device.type != "cpu" or head.weight_VD.dtype == torch.float32:
        return head
    return head._replace(weight_VD=head.weight_VD.float())


def fp32_logits(hidden_CD: torch.Tensor, head: Head, *, vocab_size: int) -> torch.Tensor:
    """The model's logits over the real vocabulary, [C, V], accumulated and kept in float32 whatever the types of the inputs."""
    weight_VD = head.weight_VD[:vocab_size]
    hidden_CD = hidden_CD.to(weight_VD.dtype)
    if weight_VD.dtype == torch.float32:
        raw_CV = hidden_CD @ weight_VD.T
    else:
        raw_CV = torch.mm(hidden_CD, weight_VD.T, out_dtype=torch.float32)  # CUDA only; `widened` keeps CPUs away
    if head.bias_V is not None:
        raw_CV += head.bias_V[:vocab_size].float()
    return HeadOps(head.logit_scale, head.logit_softcap).apply(raw_CV)


def sparse_rows(
    hidden_RD: torch.Tensor,
    gold_R: torch.Tensor,
    head: Head,
    *,
    top_k: int,
    vocab_size: int,
    chunk_tokens: int,
    num_exact: int | None = None,
    seed: int = 0,
) -> SparseRows:
    """Top-K log-probabilities at T = 1, the tail's log-sum-exp and mean log-probability at each of ANCHORS, the next token's
    log-probability and the entropy (nats) of R rows.

    Logits are float32 over the real vocabulary, chunk_tokens rows at a time. The tail is summed itself, never taken as 1 - kept mass.
    With num_exact, only so many entries are the top ones; the other top_k - num_exact are drawn from the tail (`draw_tail`).
    """
    ranked = top_k if num_exact is None else num_exact
    chance_R = torch.rand(len(gold_R), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chunks = []
    for hidden_CD, gold_C, chance_C in zip(*(part.split(chunk_tokens) for part in (hidden_RD, gold_R, chance_R)), strict=True):
        logits_CV = fp32_logits(hidden_CD, head, vocab_size=vocab_size)
        ids_CK, logprobs_CK, tail_CA, *others = _sparse_chunk(logits_CV, gold_C, ranked)
        if ranked < top_k:
            drawn_ids, log_weights = draw_tail(logits_CV, tail_CA[:, AT_ONE], chance_C, num_draws=top_k - ranked)
            ids_CK, logprobs_CK = torch.cat([ids_CK, drawn_ids], 1), torch.cat([logprobs_CK, log_weights], 1)
        chunks.append((ids_CK, logprobs_CK, tail_CA, *others))
    return SparseRows(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def draw_tail(shifted_CV: torch.Tensor, tail_C: torch.Tensor, chance_C: torch.Tensor, *, num_draws: int) -> tuple[torch.Tensor, ...]:
    """(ids, log weights) [C, num_draws] of tokens drawn from the tail in proportion to their probability, on the CPU.

    shifted_CV: logits less any number of the row's own, far below 0 outside the tail; tail_C: log of the tail's mass r; chance_C: one
    uniform number a row. Systematic sampling: points 1 / num_draws apart on the cumulated tail, so a token of share s of the tail is met
    s * num_draws times on average, never more than one off. Its weight is r / num_draws a time: weights sum to r exactly, and their
    expectation is each token's probability, so the expected gradient of forward KL is that of the whole vocabulary (the bias of leaving
    the tail out: arXiv 2503.16870). A token met twice is one entry; what is left over is empty: id EMPTY_ID, weight 0.
    """
    heaps_CV = shifted_CV.double().exp_().cumsum_(1)
    points_CN = (torch.arange(num_draws, dtype=torch.float64) + chance_C[:, None]).to(heaps_CV.device) / num_draws * heaps_CV[:, -1:]
    ids_CN = torch.searchsorted(heaps_CV, points_CN, right=True).clamp_(max=shifted_CV.shape[1] - 1).cpu()
    is_new_CN = torch.ones_like(ids_CN, dtype=torch.bool)
    is_new_CN[:, 1:] = ids_CN[:, 1:] != ids_CN[:, :-1]
    slots_CN = is_new_CN.cumsum(1) - 1
    counts_CN = torch.zeros(ids_CN.shape).scatter_add_(1, slots_CN, torch.ones(ids_CN.shape))
    distinct_CN = torch.full_like(ids_CN, EMPTY_ID).scatter_(1, slots_CN, ids_CN)
    return distinct_CN, tail_C[:, None] + (counts_CN / num_draws).log()


@torch.no_grad()
def read_batch(
    model: Any,
    head: Head,
    input_ids_BL: torch.Tensor,
    position_ids_BL: torch.Tensor,
    targets_BP: torch.Tensor,
    *,
    packing: bool,
    top_k: int,
    vocab_size: int,
    chunk_tokens: int,
    num_exact: int | None = None,
    seed: int = 0,
    keeper: HiddenKeeper | None = None,
) -> SparseRows:
    """One forward pass over windows; only positions with a target go through the head. `keeper`: for hidden states, if they are kept."""
    input_ids_BL, position_ids_BL, targets_BP = (part.to(head.weight_VD.device) for part in (input_ids_BL, position_ids_BL, targets_BP))
    inputs = model_inputs({"input_ids": input_ids_BL, "position_ids": position_ids_BL}, packing=packing)
    body = run_body(model, with_layers=keeper is not None, **inputs)  # type: ignore[arg-type]
    hidden_RD = body.hidden_BLD[:, :-1][targets_BP]
    gold_R = input_ids_BL[:, 1:][targets_BP]
    sizes: dict[str, Any] = {"top_k": top_k, "vocab_size": vocab_size, "chunk_tokens": chunk_tokens, "num_exact": num_exact}
    rows = sparse_rows(hidden_RD, gold_R, head, **sizes, seed=seed)
    return replace(rows, hidden=keeper.columns(model, body, targets_BP)) if keeper is not None else rows


def _sparse_chunk(logits_CV: torch.Tensor, gold_C: torch.Tensor, top_k: int) -> tuple[torch.Tensor, ...]:
    """(ids, logprobs, tail, tail mean, gold logprob, entropy) of one chunk; the logits are overwritten."""
    num_rows, vocab_size = logits_CV.shape
    gold_C1 = logits_CV.gather(1, gold_C[:, None])
    values_CK, ids_CK = logits_CV.topk(min(top_k + 1, vocab_size), dim=1)
    highest_C1 = values_CK[:, -1:].clone()
    values_CK, ids_CK = _by_value_then_id(values_CK[:, :top_k], ids_CK[:, :top_k])
    head_lse_C1 = values_CK.logsumexp(1, keepdim=True)
    betas_A = torch.tensor([1 / T for T in ANCHORS], device=logits_CV.device)
    if top_k == vocab_size:
        lse_C1 = head_lse_C1
        tail_CA = torch.full((num_rows, len(ANCHORS)), -torch.inf, device=logits_CV.device)
        mean_CA = torch.zeros_like(tail_CA)
    else:
        logits_CV.sub_(highest_C1).scatter_(1, ids_CK, -1000.0)  # exp(-1000 / 8) is 0 in float32, and 0 x -1000 is 0 where -inf were NaN
        rows = num_rows if logits_CV.is_cuda else max(1, IN_CPU_CACHE // vocab_size)
        parts = [_tail_at_anchors(some_CV) for some_CV in logits_CV.split(max(1, rows))]
        log_sum_CA, mean_CA = (torch.cat(part) for part in zip(*parts, strict=True))
        lse_C1 = torch.logaddexp(head_lse_C1, log_sum_CA[:, AT_ONE, None] + highest_C1)
        tail_CA = log_sum_CA + betas_A * (highest_C1 - lse_C1)
        mean_CA += highest_C1 - lse_C1
    logprobs_CK = values_CK - lse_C1
    entropy_C = -(logprobs_CK.exp() * logprobs_CK).sum(1) - tail_CA[:, AT_ONE].exp() * mean_CA[:, AT_ONE]
    kept = (ids_CK, logprobs_CK, tail_CA, mean_CA, (gold_C1 - lse_C1)[:, 0], entropy_C)
    return tuple(part.cpu() for part in kept)


def _tail_at_anchors(shifted_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log of the sum of exp(x / T), mean of x under its softmax at T) for each of ANCHORS, [C, A] both.

    The hottest first, in one buffer: at half the temperature the exponentials are squared, elsewhere taken anew.
    """
    powers_CV = torch.empty_like(shifted_CV)
    found, before = {}, None
    for temperature in sorted(ANCHORS, key=lambda T: (T not in _HALVES, -T)):
        if before == 2 * temperature:
            powers_CV.mul_(powers_CV)
        else:
            torch.mul(shifted_CV, 1 / temperature, out=powers_CV).exp_()
        total_C = powers_CV.sum(1)
        found[temperature] = total_C.log(), torch.linalg.vecdot(powers_CV, shifted_CV) / total_C
        before = temperature
    log_sums, means = zip(*(found[temperature] for temperature in ANCHORS), strict=True)
    return torch.stack(log_sums, 1), torch.stack(means, 1)


_HALVES = (8.0, 4.0, 2.0, 1.0, 0.5)
"""Anchors that follow from one another by squaring."""


def _by_value_then_id(values_CK: torch.Tensor, ids_CK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Falling values; equal ones by rising id, so that ties do not depend on the machine's sort."""
    by_id = ids_CK.argsort(dim=1)
    values_CK, ids_CK = values_CK.gather(1, by_id), ids_CK.gather(1, by_id)
    by_value = values_CK.argsort(dim=1, descending=True, stable=True)
    return values_CK.gather(1, by_value), ids_CK.gather(1, by_value)
