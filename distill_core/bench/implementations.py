"""The rows of `bench loss`: ours, what one would otherwise write, and the losses of other libraries where they are installed.

No other library has this loss: the top K of a teacher from a cache. What comes nearest, each held to its own definition in float64:

* Liger's fused JSD at beta 0: forward KL to a *whole* teacher, whose hidden states and head it multiplies too (a fourth matrix product).
  The one distillation loss of Liger that runs without a GPU: eagerly there; on a GPU it compiles itself, as it does by default.
* Liger's fused linear KL (Triton, so on GPUs only): the same loss as `renormalize`, from a dense matrix of the teacher's probabilities.
* Hard labels, for the price of the fused pass alone: ours without a teacher, torch's linear_cross_entropy in chunks (torch 2.13), and
  on GPUs Liger's.

Those that take the size of a chunk get ours, since on a CPU it is faster than their own defaults.
Of Liger's two Triton losses the arithmetic is tested in Triton's interpreter; none of these rows has been run on a GPU.
"""

# N: tokens   V: vocabulary   D: hidden size   K: stored teacher entries per token
import functools
import importlib.util

import torch
from torch import Tensor
from torch.nn import functional

from ..losses import default_chunk_tokens
from ..losses.choice import has_triton
from .cases import Candidate, Case, door

HARD = "hard labels"
"""Instead of a tail: cross-entropy with the text's own next tokens."""
WHOLE = "full teacher"
"""Instead of a tail: every token's probability, from the teacher's hidden states and head."""


def candidates(device_type: str = "cpu") -> tuple[Candidate, ...]:
    """Ours first. Triton is for GPUs: its interpreter's time would say nothing."""
    is_gpu = device_type == "cuda"
    best = "triton" if is_gpu and has_triton() else "chunked"
    ours = functools.partial(door, impl=best)
    part = functools.partial
    chosen = [
        Candidate(name=best, tail="bucket", run=ours),
        Candidate(name=best, tail="renormalize", run=part(ours, tail="renormalize")),
        Candidate(name=f"{best}, kept gradient", tail="bucket", run=part(ours, accumulate_head_grad=True), keeps_gradients=True),
        Candidate(name=f"{best}, bfloat16 inputs", tail="bucket", run=ours, dtype=torch.bfloat16),
        Candidate(name=f"{best} + cross-entropy", tail="bucket", run=part(ours, ce_weight=0.5), ce_weight=0.5),
        Candidate(name=f"{best}, half ignored", tail="bucket", run=ours, share_ignored=0.5),
        Candidate(name=f"{best}, frozen head", tail="bucket", run=ours, is_head_frozen=True),
        Candidate(name="tiled", tail="bucket", run=part(door, impl="tiled")),
        Candidate(name="reference", tail="bucket", run=part(door, impl="reference"), logits_copies=7.3),
        Candidate(name="sparse autograd", tail="renormalize", run=sparse_autograd, logits_copies=3),
        Candidate(name="dense kl_div", tail="renormalize", run=dense_kl_div, logits_copies=5),
        Candidate(name=best, tail=HARD, run=part(ours, kl_weight=0.0, ce_weight=1.0), definition=hard_labels),
    ]
    if is_gpu:  # the table is bfloat16's there, and a gradient in bfloat16 cannot be summed in place
        chosen = [candidate for candidate in chosen if not candidate.keeps_gradients and candidate.dtype is None]
    return (*chosen, *peers(is_gpu=is_gpu))


def peers(*, is_gpu: bool) -> list[Candidate]:
    """The losses of other libraries that are installed and can run there."""
    found = []
    if hasattr(functional, "linear_cross_entropy"):
        found.append(Candidate(name="torch linear_cross_entropy", tail=HARD, run=torch_linear_ce, definition=hard_labels))
    if importlib.util.find_spec("liger_kernel") is None:
        return found
    if is_gpu:
        found.append(Candidate(name="Liger fused linear CE", tail=HARD, run=liger_linear_ce, definition=hard_labels))
        found.append(Candidate(name="Liger fused linear KL", tail="renormalize", run=liger_linear_kl))
    return [*found, Candidate(name="Liger fused JSD, beta 0", tail=WHOLE, run=liger_jsd, definition=full_kl)]


def sparse_autograd(case: Case, _: int | None) -> Tensor:
    """Full logits, log_softmax, gather: the usual top-K loss."""
    log_p_NV = torch.log_softmax(case.hidden_ND @ case.lm_head_VD.T, dim=-1)
    log_q_NK = torch.log_softmax(case.logprobs_NK, dim=-1)
    return (log_q_NK.exp() * (log_q_NK - log_p_NV.gather(-1, case.ids_NK))).sum()


def dense_kl_div(case: Case, _: int | None) -> Tensor:
    """Full logits and a full teacher for torch's own kl_div."""
    log_p_NV = torch.log_softmax(case.hidden_ND @ case.lm_head_VD.T, dim=-1)
    q_NV = torch.zeros_like(log_p_NV).scatter(-1, case.ids_NK, torch.softmax(case.logprobs_NK, dim=-1))
    return functional.kl_div(log_p_NV, q_NV, reduction="sum")


def wide_logits(hidden_ND: Tensor, lm_head_VD: Tensor) -> Tensor:
    """At least float32, as our reference has them."""
    wide = torch.promote_types(hidden_ND.dtype, torch.float32)
    return hidden_ND.to(wide) @ lm_head_VD.to(wide).T


def hard_labels(case: Case, _: int | None) -> Tensor:
    """Definition: the sum of the cross-entropies with the labels."""
    return functional.cross_entropy(wide_logits(case.hidden_ND, case.lm_head_VD), case.labels_N, reduction="sum")


def full_kl(case: Case, _: int | None) -> Tensor:
    """Definition: the mean over N of KL(teacher || student) over the whole vocabulary."""
    log_p_NV = torch.log_softmax(wide_logits(case.hidden_ND, case.lm_head_VD), dim=-1)
    log_q_NV = torch.log_softmax(wide_logits(case.teacher_hidden_ND, case.lm_head_VD.detach()), dim=-1)
    return functional.kl_div(log_p_NV, log_q_NV, reduction="batchmean", log_target=True)


def our_chunk(case: Case) -> int:
    """Tokens. Torch's own choice takes 2.4 to 2.7 times as long on a CPU, Liger's 1,024 up to 1.2 times (8,192 and 32,000 entries)."""
    return default_chunk_tokens(case.lm_head_VD.shape[0], case.hidden_ND.device)


def torch_linear_ce(case: Case, chunk_tokens: int | None) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk_tokens or our_chunk(case))
    return functional.linear_cross_entropy(case.hidden_ND, case.lm_head_VD, case.labels_N, reduction="sum", options=options)


def liger_jsd(case: Case, chunk_tokens: int | None) -> Tensor:
    """A mean, as it is: a factor would cost it a copy of its gradients."""
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    sizes = {"compiled": case.hidden_ND.is_cuda, "chunk_size": chunk_tokens or our_chunk(case)}
    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.0, **sizes)
    return loss(case.hidden_ND, case.lm_head_VD, case.teacher_hidden_ND, case.lm_head_VD.detach(), case.labels_N)


def liger_linear_kl(case: Case, _: int | None) -> Tensor:
    from liger_kernel.ops.fused_linear_kl_div import LigerFusedLinearKLDivFunction

    q_NV = case.hidden_ND.new_zeros(case.hidden_ND.shape[0], case.lm_head_VD.shape[0])
    q_NV.scatter_(-1, case.ids_NK, torch.softmax(case.logprobs_NK, dim=-1).to(q_NV.dtype))
    return LigerFusedLinearKLDivFunction.apply(case.hidden_ND, case.lm_head_VD, q_NV, None, "sum")


def liger_linear_ce(case: Case, _: int | None) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    whole = LigerFusedLinearCrossEntropyFunction.apply(case.hidden_ND, case.lm_head_VD, case.labels_N, None, None, -100, 0.0, 0.0, "sum")
    return whole[0] if isinstance(whole, tuple) else whole  # newer releases return accuracy and predictions beside it
