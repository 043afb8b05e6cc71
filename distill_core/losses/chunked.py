"""The loss in chunks of tokens, its gradient computed in the forward pass: no tensor is ever tokens x vocabulary.

One buffer of chunk x vocabulary holds the logits, then in place the tail's softmax, then in place the gradient, which is
multiplied into the gradients of hidden states and weight at once. What backward has left to do is one multiplication.
"""

# N: tokens   C: tokens of one chunk   V: real vocabulary   D: hidden size
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .contract import Knobs, LossParts, Targets, compute_dtype
from .products import NarrowProducts, Products, narrow_dtype
from .row_step import RowStep, RowSums, torch_row_step, zero_sums


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that is no tensor of the student, in one object."""

    targets: Targets
    knobs: Knobs
    row_step: RowStep
    is_grad_enabled: bool
    narrow: torch.dtype | None
    """bfloat16 or float16 on a GPU, where its matrix units are to be used."""


def topk_kl_chunked(hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None, targets: Targets, knobs: Knobs) -> LossParts:
    """Sums over N of the loss and its parts, in nats, on any device."""
    return run_job(hidden_ND, lm_head_VD, bias_V, targets, knobs, torch_row_step)


def run_job(hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None, targets: Targets, knobs: Knobs, row_step: RowStep) -> LossParts:
    device_type = hidden_ND.device.type
    autocast = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    narrow = narrow_dtype(device_type, autocast, lm_head_VD.dtype, hidden_ND.dtype)
    job = Job(targets=targets, knobs=knobs, row_step=row_step, is_grad_enabled=torch.is_grad_enabled(), narrow=narrow)
    loss, kl, ce, agreement = _ChunkedLoss.apply(hidden_ND, lm_head_VD, bias_V, job)
    return LossParts(loss, kl, ce, agreement, torch.full_like(agreement, hidden_ND.shape[0]))


def input_factor(knobs: Knobs) -> float:
    """x = factor * (h W^T + b): what the row step starts from is y = z / T, or with a softcap the argument of its tanh."""
    return knobs.logit_scale / (knobs.temperature if knobs.logit_softcap is None else knobs.logit_softcap)


def even_chunk(num_tokens: int, chunk_tokens: int) -> int:
    """The largest chunk within chunk_tokens that leaves no short last one."""
    return max(1, math.ceil(num_tokens / math.ceil(num_tokens / chunk_tokens))) if num_tokens else 1


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None, job: Job):
        needs = [job.is_grad_enabled and needed for needed in ctx.needs_input_grad[:3]]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            dtype = compute_dtype(hidden_ND, lm_head_VD)
            products = make_products(lm_head_VD, bias_V, job, dtype)
            totals, hidden_grad_ND = _walk(hidden_ND, products, job, needs)
            weight_grad_VD, bias_grad_V = products.finish(weight=needs[1], bias=needs[2])
        ctx.save_for_backward(hidden_grad_ND, weight_grad_VD, bias_grad_V)
        ctx.input_dtypes = (hidden_ND.dtype, lm_head_VD.dtype, None if bias_V is None else bias_V.dtype)
        knobs = job.knobs
        loss = (knobs.kl_weight * knobs.temperature**2 * totals.kl + knobs.ce_weight * totals.ce).to(dtype)
        kl, ce = totals.kl.to(dtype), totals.ce.to(dtype)
        ctx.mark_non_differentiable(kl, ce, totals.agreement)
        ctx.set_materialize_grads(False)
        return loss, kl, ce, totals.agreement

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor | None, *_):
        if upstream is None:
            return None, None, None, None
        # on a CPU a look at the value is free; elsewhere it would wait for the device
        is_one = upstream.device.type == "cpu" and upstream.item() == 1.0
        grads = [
            None if grad is None else (grad if is_one else grad * upstream).to(dtype)  # never in place: backward may come twice
            for grad, dtype in zip(ctx.saved_tensors, ctx.input_dtypes, strict=True)
        ]
        return (*grads, None)


def make_products(lm_head_VD: Tensor, bias_V: Tensor | None, job: Job, dtype: torch.dtype) -> Products:
    vocab_size, factor = job.knobs.vocab_size, input_factor(job.knobs)
    if job.narrow is None:
        return Products(lm_head_VD, bias_V, vocab_size=vocab_size, factor=factor, dtype=dtype)
    return NarrowProducts(lm_head_VD, bias_V, vocab_size=vocab_size, factor=factor, narrow=job.narrow)


def _walk(hidden_ND: Tensor, products: Products, job: Job, needs: list[bool]) -> tuple[RowSums, Tensor | None]:
    """Every chunk once: logits, rows, and the products that some input's gradient needs."""
    num_tokens, vocab_size, dtype = hidden_ND.shape[0], job.knobs.vocab_size, products.dtype
    chunk = even_chunk(num_tokens, job.knobs.chunk_tokens)
    buffer_CV = hidden_ND.new_empty(min(chunk, num_tokens), vocab_size, dtype=dtype)
    hidden_grad_ND = hidden_ND.new_empty(hidden_ND.shape, dtype=dtype) if needs[0] else None
    totals = zero_sums(hidden_ND.device)
    for start in range(0, num_tokens, chunk):
        stop = min(start + chunk, num_tokens)
        rows_CD, x_CV = products.rows(hidden_ND[start:stop]), buffer_CV[: stop - start]
        products.logits(rows_CD, x_CV)
        sums = job.row_step(x_CV, job.targets.rows(start, stop), job.knobs, with_gradient=any(needs))
        totals = RowSums(*(total + part for total, part in zip(totals, sums, strict=True)))
        if not any(needs):
            continue
        if needs[2]:
            products.add_bias_grad(x_CV)
        dx_CV = products.gradient(x_CV)
        if hidden_grad_ND is not None:
            products.hidden_grad(dx_CV, hidden_grad_ND[start:stop])
        if needs[1]:
            products.add_weight_grad(dx_CV, rows_CD)
    return totals, hidden_grad_ND
