"""What every fused implementation is to autograd: gradients are computed in the forward pass, backward hands them out."""

# N: tokens   V: real vocabulary   R: all rows of the head   D: hidden size
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import LossInputError
from ..multipliers import by_onednn
from .closure import RowSums
from .contract import Knobs, LossParts, Targets, compute_dtype
from .products import ROW_MULTIPLE, goes_to_onednn, narrow_dtype
from .row_step import RowStep


class Gradients(NamedTuple):
    """Of hidden states, head and bias; None for what was not asked for."""

    hidden_ND: Tensor | None
    head_RD: Tensor | None
    bias_R: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that is no tensor of the student, in one object."""

    targets: Targets
    knobs: Knobs
    row_step: RowStep
    dtype: torch.dtype
    """Type of the logits."""
    row_align: int
    """Rows of logits start at a multiple of this many elements."""
    narrow: torch.dtype | None
    """bfloat16 or float16 on a GPU, where its matrix units are to be used."""
    is_by_onednn: bool = False
    """Whether the products go to the other of a CPU's two libraries."""
    in_parts: bool = False
    """Whether logits are sums of short sums there: float32 hidden states show the difference, bfloat16 ones do not."""
    kept_head_grad_RD: Tensor | None = None
    """Where the head's gradient is added up, if not in a tensor of its own."""

    @property
    def row_multiple(self) -> int:
        """Products have a multiple of this many rows."""
        return ROW_MULTIPLE if self.is_by_onednn else 1


Compute = Callable[[Tensor, Tensor, Tensor | None, Job, list[bool]], tuple[RowSums, Gradients]]
"""(hidden_ND, lm_head_RD, bias_R, job, which gradients are needed) -> sums and gradients."""


def input_factor(knobs: Knobs) -> float:
    """x = factor * (h W^T + b): what the row step starts from is y = z / T, or with a softcap the argument of its tanh."""
    return knobs.logit_scale / (knobs.temperature if knobs.logit_softcap is None else knobs.logit_softcap)


def apply(hidden_ND: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, compute: Compute, job: Job) -> LossParts:
    """The loss with its graph."""
    loss, *rest = _FusedLoss.apply(hidden_ND, lm_head_RD, bias_R, compute, job, torch.is_grad_enabled())
    return loss_parts(loss, RowSums(*rest), num_valid=hidden_ND.shape[0])


def make_job(hidden_ND: Tensor, lm_head_RD: Tensor, targets: Targets, knobs: Knobs, row_step: RowStep, *, row_align: int) -> Job:
    device_type = hidden_ND.device.type
    has_autocast = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    autocast = torch.get_autocast_dtype(device_type) if has_autocast else None
    narrow = narrow_dtype(device_type, autocast, lm_head_RD.dtype, hidden_ND.dtype)
    dtype = compute_dtype(hidden_ND, lm_head_RD)
    is_by_onednn = goes_to_onednn(hidden_ND, lm_head_RD, knobs.chunk_tokens)
    return Job(
        targets=targets,
        knobs=knobs,
        row_step=row_step,
        dtype=dtype,
        narrow=narrow,
        row_align=row_align,
        is_by_onednn=is_by_onednn,
        in_parts=is_by_onednn and hidden_ND.dtype == torch.float32,
    )


@contextlib.contextmanager
def bare(hidden_ND: Tensor, job: Job) -> Iterator[None]:
    """Inside: no graph, no autocast, and the products by the library that the job chose."""
    device_type = hidden_ND.device.type
    no_autocast = torch.autocast(device_type, enabled=False) if torch.amp.is_autocast_available(device_type) else contextlib.nullcontext()
    with torch.no_grad(), no_autocast, by_onednn(is_on=job.is_by_onednn):
        yield


def run(
    hidden_ND: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, compute: Compute, job: Job, needs: list[bool]
) -> tuple[RowSums, Gradients]:
    """The computation itself: no graph, no autocast."""
    with bare(hidden_ND, job):
        return compute(hidden_ND.detach(), lm_head_RD.detach(), None if bias_R is None else bias_R.detach(), job, needs)


def total_loss(sums: RowSums, job: Job) -> Tensor:
    knobs = job.knobs
    loss = knobs.kl_weight * knobs.temperature**2 * sums.kl + knobs.ce_weight * sums.ce + knobs.z_loss_weight * sums.z_loss
    return (loss if job.targets.divisor is None else loss / job.targets.divisor).to(job.dtype)


def loss_parts(loss: Tensor, sums: RowSums, *, num_valid: int) -> LossParts:
    return LossParts(
        loss=loss,
        kl=sums.kl,
        ce=sums.ce,
        agreement=sums.agreement,
        num_valid=torch.full_like(sums.agreement, num_valid),
        z_loss=sums.z_loss,
        teacher_mass=sums.teacher_mass,
        student_mass=sums.student_mass,
    )


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, compute: Compute, job: Job, is_grad_enabled: bool):  # noqa: FBT001 - autograd passes by position
        needs = [is_grad_enabled and needed for needed in ctx.needs_input_grad[:3]]
        ctx.is_accumulated = needs[1] and job.knobs.accumulate_head_grad
        if ctx.is_accumulated:
            job = replace(job, kept_head_grad_RD=lm_head_RD.grad)
        sums, grads = run(hidden_ND, lm_head_RD, bias_R, compute, job, needs)
        if ctx.is_accumulated:
            lm_head_RD.grad = grads.head_RD
            grads = grads._replace(head_RD=None)
        ctx.was_used = False
        ctx.save_for_backward(*grads)
        ctx.input_dtypes = (hidden_ND.dtype, lm_head_RD.dtype, None if bias_R is None else bias_R.dtype)
        rest = RowSums(*(part if part.dtype == torch.int64 else part.to(job.dtype) for part in sums))
        ctx.mark_non_differentiable(*rest)
        ctx.set_materialize_grads(False)
        return (total_loss(sums, job), *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor | None, *_):
        if upstream is None:
            return (None,) * 6
        # on a CPU a look at the value is free; elsewhere it would wait for the device
        is_one = upstream.device.type == "cpu" and upstream.item() == 1.0
        if ctx.is_accumulated:
            _check_accumulated(ctx, upstream, is_one=is_one)
        grads = [
            None if grad is None else (grad if is_one else grad * upstream).to(dtype)  # never in place: backward may come twice
            for grad, dtype in zip(ctx.saved_tensors, ctx.input_dtypes, strict=True)
        ]
        return (*grads, None, None, None)


def _check_accumulated(ctx, upstream: Tensor, *, is_one: bool) -> None:
    """The head's gradient is in place already: it can be neither scaled nor handed out twice."""
    if ctx.was_used:
        raise LossInputError(
            "accumulate_head_grad=True: backward came a second time, but the head's gradient was added once, in the forward pass."
            " Use accumulate_head_grad=False with retain_graph."
        )
    ctx.was_used = True
    if upstream.device.type != "cpu":
        torch._assert_async(upstream == 1.0, "accumulate_head_grad=True: the loss was scaled after it was computed; use divisor")
    elif not is_one:
        raise LossInputError(
            f"accumulate_head_grad=True: the loss was scaled by {upstream.item():g} after it was computed, which the head's gradient,"
            " added in the forward pass, cannot follow. Pass divisor=, or use accumulate_head_grad=False (as with a GradScaler)."
        )
