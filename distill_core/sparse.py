"""What is kept of the teacher's distributions: the top K, the tail as three numbers, the next token's log-probability, the entropy."""
# R: rows, positions with a target   C: rows of a chunk   D: hidden size   V: real vocabulary   K: entries kept

from dataclasses import dataclass

import torch

from .heads import Head, HeadOps


@dataclass
class SparseRows:
    """What is kept of R distributions, all on the CPU."""

    ids_RK: torch.Tensor
    logprobs_RK: torch.Tensor
    tail_R3: torch.Tensor
    gold_logprob_R: torch.Tensor
    entropy_R: torch.Tensor


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


def sparse_rows(hidden_RD: torch.Tensor, gold_R: torch.Tensor, head: Head, *, top_k: int, vocab_size: int, chunk_tokens: int) -> SparseRows:
    """Top-K log-probabilities at T = 1, tail log-sum-exp at T = 1, 2, 4, the next token's log-probability and the entropy (nats) of R rows.

    Logits are float32 over the real vocabulary, chunk_tokens rows at a time. The tail is summed itself, never taken as 1 - kept mass.
    """
    chunks = [
        _sparse_chunk(fp32_logits(hidden_CD, head, vocab_size=vocab_size), gold_C, top_k)
        for hidden_CD, gold_C in zip(hidden_RD.split(chunk_tokens), gold_R.split(chunk_tokens), strict=True)
    ] or [_sparse_chunk(torch.zeros(0, vocab_size), torch.zeros(0, dtype=torch.int64), top_k)]
    return SparseRows(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _sparse_chunk(logits_CV: torch.Tensor, gold_C: torch.Tensor, top_k: int) -> tuple[torch.Tensor, ...]:
    """(ids, logprobs, tail at T = 1, 2, 4, gold logprob, entropy) of one chunk; the logits are overwritten.

    With m the highest logit of the tail and e = exp((z - m) / 4): the sums of e, e² and e⁴ are the tail's partition functions
    at T = 4, 2 and 1 over exp(m / T), so one exponential serves all three.
    """
    num_rows, vocab_size = logits_CV.shape
    gold_C1 = logits_CV.gather(1, gold_C[:, None])
    values_CK, ids_CK = logits_CV.topk(min(top_k + 1, vocab_size), dim=1)
    highest_C1 = values_CK[:, -1:].clone()
    values_CK, ids_CK = _by_value_then_id(values_CK[:, :top_k], ids_CK[:, :top_k])
    head_lse_C1 = values_CK.logsumexp(1, keepdim=True)
    if top_k == vocab_size:
        lse_C1 = head_lse_C1
        tail_C3 = torch.full((num_rows, 3), -torch.inf)
        entropy_C1 = lse_C1 - ((values_CK - lse_C1).exp() * values_CK).sum(1, keepdim=True)
    else:
        logits_CV.sub_(highest_C1).scatter_(1, ids_CK, -1000.0)  # exp(-250) is 0 in float32, and 0 x -1000 is 0 where -inf were NaN
        power_CV = (logits_CV / 4).exp_()
        sums = [power_CV.sum(1, keepdim=True)]
        sums += [power_CV.mul_(power_CV).sum(1, keepdim=True) for _ in range(2)]
        at_4, at_2, at_1 = (highest_C1 / T + total.log() for T, total in zip((4, 2, 1), sums, strict=True))
        lse_C1 = torch.logaddexp(head_lse_C1, at_1)
        tail_C3 = torch.cat([at - lse_C1 / T for T, at in ((1, at_1), (2, at_2), (4, at_4))], dim=1)
        below_C1 = torch.linalg.vecdot(power_CV, logits_CV)[:, None] + highest_C1 * sums[2]
        head_C1 = ((values_CK - lse_C1).exp() * values_CK).sum(1, keepdim=True)
        entropy_C1 = lse_C1 - head_C1 - (highest_C1 - lse_C1).exp() * below_C1
    parts = (ids_CK, values_CK - lse_C1, tail_C3, (gold_C1 - lse_C1)[:, 0], entropy_C1[:, 0])
    return tuple(part.cpu() for part in parts)


def _by_value_then_id(values_CK: torch.Tensor, ids_CK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Falling values; equal ones by rising id, so that ties do not depend on the machine's sort."""
    by_id = ids_CK.argsort(dim=1)
    values_CK, ids_CK = values_CK.gather(1, by_id), ids_CK.gather(1, by_id)
    by_value = values_CK.argsort(dim=1, descending=True, stable=True)
    return values_CK.gather(1, by_value), ids_CK.gather(1, by_value)
