"""What the benchmark of the loss works with: inputs, what a row of its table is, and the error against float64."""

# N: tokens   V: vocabulary   D: hidden size   K: stored teacher entries per token
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..losses import Workspace, topk_kl


class Shape(NamedTuple):
    num_tokens: int
    vocab_size: int
    hidden_size: int

    def input_bytes(self, dtype: torch.dtype) -> int:
        """Hidden states and head; their gradients are as large."""
        return (self.num_tokens + self.vocab_size) * self.hidden_size * dtype.itemsize


CPU = torch.device("cpu")
CHECK_TOKENS = 48
CHECK_CHUNK_TOKENS = 32
"""The error check's own size: several chunks, the last one short, small enough for a float64 head."""
TOLERANCE = 1e-6
"""How much further from float64 than dense code of the same type, relative, is still right; with a hundredth of its error, for luck."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Inputs of one call."""

    hidden_ND: Tensor
    lm_head_VD: Tensor
    ids_NK: Tensor
    logprobs_NK: Tensor
    tail_N: Tensor
    labels_N: Tensor
    teacher_hidden_ND: Tensor
    """For losses that ask a whole teacher: its head is the student's."""
    workspace: Workspace | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One row of the table."""

    name: str
    tail: str
    run: Callable[[Case, int | None], Tensor]
    """(case, chunk_tokens) -> loss, with a graph."""
    ce_weight: float = 0.0
    share_ignored: float = 0.0
    is_head_frozen: bool = False
    keeps_gradients: bool = False
    """Whether the head's gradient is added up in place, as over the micro-batches of a step."""
    dtype: torch.dtype | None = None
    """Type of hidden states and head; None: the table's."""
    definition: Callable[[Case, int | None], Tensor] | None = None
    """The same loss in plain torch, whose float64 value is the truth. None: our reference, with this tail and cross-entropy."""
    logits_copies: float = 0.0
    """How many tensors of tokens x vocabulary it holds at its peak, as measured in float32; 0: only chunks of them."""

    def wanted_bytes(self, shape: Shape, dtype: torch.dtype) -> int | None:
        """Its peak by arithmetic, fresh gradients included, in bytes; None where it holds chunks only."""
        if not self.logits_copies:
            return None
        return int(self.logits_copies * shape.num_tokens * shape.vocab_size * dtype.itemsize) + shape.input_bytes(dtype)


def door(case: Case, chunk_tokens: int | None, *, impl: str, tail: str = "bucket", **knobs: Any) -> Tensor:
    """Our loss."""
    return topk_kl(
        case.hidden_ND,
        case.lm_head_VD,
        case.ids_NK,
        case.logprobs_NK,
        teacher_tail_N=case.tail_N,
        labels_N=case.labels_N,
        workspace=case.workspace,
        tail=tail,  # type: ignore[arg-type]
        impl=impl,  # type: ignore[arg-type]
        chunk_tokens=chunk_tokens,
        **knobs,
    ).loss


def speed_case(shape: Shape, top_k: int, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Case:
    """Seeded inputs. Targets are made up: time does not depend on them, and a true top-K would cost a pass of its own."""
    torch.manual_seed(0)
    num_tokens, vocab_size, hidden_size = shape
    stride = vocab_size // top_k
    ids_NK = torch.randint(0, vocab_size, (num_tokens, 1)) + stride * torch.arange(top_k)
    logprobs_NK = torch.log_softmax(2 * torch.randn(num_tokens, top_k), dim=-1).sort(dim=-1, descending=True).values - 0.1
    return Case(
        hidden_ND=torch.randn(num_tokens, hidden_size).to(device, dtype),
        lm_head_VD=torch.randn(vocab_size, hidden_size).mul_(2 / hidden_size**0.5).to(device, dtype),
        ids_NK=(ids_NK % vocab_size).to(device),
        logprobs_NK=logprobs_NK.to(device),
        tail_N=(-torch.expm1(logprobs_NK.logsumexp(dim=-1))).log().to(device),
        labels_N=torch.randint(0, vocab_size, (num_tokens,)).to(device),
        teacher_hidden_ND=torch.randn(num_tokens, hidden_size).to(device, dtype),
    )


def check_case(shape: Shape, top_k: int, device: torch.device = CPU) -> Case:
    """Seeded float64 inputs whose teacher is the student with a little noise (KL about 1e-3): what is hardest to get right."""
    torch.manual_seed(1)
    _, vocab_size, hidden_size = shape
    hidden_ND = torch.randn(CHECK_TOKENS, hidden_size).double().to(device)
    lm_head_VD = torch.randn(vocab_size, hidden_size).mul_(2 / hidden_size**0.5).double().to(device)
    logits_NV = hidden_ND @ lm_head_VD.T
    log_q_NV = torch.log_softmax(logits_NV.add_(0.05 * torch.randn(logits_NV.shape, device=device)), dim=-1)
    logprobs_NK, ids_NK = log_q_NV.topk(top_k)
    return Case(
        hidden_ND=hidden_ND,
        lm_head_VD=lm_head_VD,
        ids_NK=ids_NK,
        logprobs_NK=logprobs_NK,
        tail_N=log_q_NV.scatter_(-1, ids_NK, -torch.inf).logsumexp(dim=-1),
        labels_N=torch.randint(0, vocab_size, (CHECK_TOKENS,), device=device),
        teacher_hidden_ND=hidden_ND + 0.025 * torch.randn(hidden_ND.shape, device=device),  # logits as far apart: the head is 2 wide
    )


class Outcome(NamedTuple):
    loss: Tensor
    hidden_grad_ND: Tensor
    head_grad_VD: Tensor | None


def outcome(candidate: Candidate, case: Case, dtype: torch.dtype, *, chunk_tokens: int | None = None) -> Outcome:
    """Loss and gradients of one call on the case in another type."""
    hidden_ND = case.hidden_ND.detach().to(dtype).requires_grad_()
    lm_head_VD = case.lm_head_VD.detach().to(dtype).requires_grad_(not candidate.is_head_frozen)
    wide = torch.promote_types(dtype, torch.float32)  # targets are float32 where the student is narrower
    own = replace(
        case,
        hidden_ND=hidden_ND,
        lm_head_VD=lm_head_VD,
        logprobs_NK=case.logprobs_NK.to(wide),
        tail_N=case.tail_N.to(wide),
        teacher_hidden_ND=case.teacher_hidden_ND.to(dtype),
    )
    loss = candidate.run(own, chunk_tokens)
    loss.backward()
    assert hidden_ND.grad is not None
    return Outcome(loss.detach(), hidden_ND.grad, lm_head_VD.grad)


def relative_errors(found: Outcome, truth: Outcome) -> tuple[float, ...]:
    """Norm of the difference over norm of the truth, for the loss and each gradient."""
    return tuple(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True) if a is not None and b is not None)


Known = dict[tuple, tuple[Outcome, tuple[float, ...]]]


def errors(candidate: Candidate, case: Case, dtype: torch.dtype, known: Known) -> tuple[tuple[float, ...], bool]:
    """Relative errors of loss, hidden gradient and head gradient against float64 on the same inputs, and whether each is as good as
    dense code's. `known` keeps the truth, and dense code's errors, of candidates that compute the same."""
    case = replace(
        case,
        hidden_ND=case.hidden_ND.to(dtype),
        lm_head_VD=case.lm_head_VD.to(dtype),
        teacher_hidden_ND=case.teacher_hidden_ND.to(dtype),
    )
    key = (candidate.definition or (candidate.tail, candidate.ce_weight), candidate.is_head_frozen, dtype)
    if key not in known:
        reference = functools.partial(door, impl="reference", tail=candidate.tail, ce_weight=candidate.ce_weight)
        dense = replace(candidate, run=candidate.definition or reference)
        truth = outcome(dense, case, torch.float64)
        known[key] = truth, relative_errors(outcome(dense, case, dtype), truth)
    truth, plain = known[key]
    ours = relative_errors(outcome(candidate, case, dtype, chunk_tokens=CHECK_CHUNK_TOKENS), truth)
    return ours, all(error <= 1.01 * allowed + TOLERANCE for error, allowed in zip(ours, plain, strict=True))
