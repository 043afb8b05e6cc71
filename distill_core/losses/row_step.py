"""One chunk's rows, from logits to gradient in place: in torch operations here, in two kernels in triton_loss.py.

The dense part is a softmax over the tail, times a factor per row; what happens at the K entries and the label is small (closure.py).
"""

# C: tokens of one chunk, or of one block of it   V: real vocabulary   K: stored teacher entries per token   B: K + 1 buckets, the tail last
import math
from typing import Protocol

import torch
from torch import Tensor

from . import closure
from .closure import BlockGradient, Entries, RowSums, finish_rows, needs_second_softmax, zero_sums
from .contract import Knobs, Targets

SCRATCH_SHARE = 8
SCRATCH_BYTES = 4 * 2**20
"""Where a second temperature or a softcap needs the logits twice, rows are worked on in blocks: of an eighth of a chunk, or of
4 MiB if that is more, since below that a block is little else than calls."""


class RowStep(Protocol):
    """Sums of the rows; x_CV is overwritten, by dloss/dx if with_gradient."""

    def __call__(self, x_CV: Tensor, targets: Targets, knobs: Knobs, *, with_gradient: bool) -> RowSums: ...


def torch_row_step(x_CV: Tensor, targets: Targets, knobs: Knobs, *, with_gradient: bool) -> RowSums:
    """The row step in torch operations: the whole chunk at once, or in blocks where it needs scratch."""
    needs_scratch = needs_second_softmax(targets, knobs) or (knobs.logit_softcap is not None and with_gradient)
    num_rows, vocab_size = x_CV.shape
    block = max(math.ceil(num_rows / SCRATCH_SHARE), SCRATCH_BYTES // (vocab_size * x_CV.element_size())) if needs_scratch else num_rows
    totals = zero_sums(x_CV.device)
    for start in range(0, num_rows, block):
        stop = min(start + block, num_rows)
        sums = _row_block(x_CV[start:stop], targets.rows(start, stop), knobs, with_gradient=with_gradient)
        totals = totals.plus(sums)
    return totals


def _row_block(x_CV: Tensor, targets: Targets, knobs: Knobs, *, with_gradient: bool) -> RowSums:
    slope_CV = _softcap_(x_CV, knobs, with_gradient=with_gradient) if knobs.logit_softcap is not None else None
    entries = read_entries(x_CV, targets)
    x_CV.scatter_(-1, targets.ids_NK, -math.inf)  # what is left is the tail
    most_C1 = x_CV.amax(dim=-1, keepdim=True)
    tail_at_1_CV, tail_at_1_C = None, None
    if needs_second_softmax(targets, knobs):
        tail_at_1_CV = x_CV * knobs.temperature
        tail_at_1_C = _tail_softmax_(tail_at_1_CV, most_C1 * knobs.temperature, targets)
    tail_C = _tail_softmax_(x_CV, most_C1, targets)
    sums, gradient = finish_rows(entries, tail_C, tail_at_1_C, most_C1.squeeze(-1), targets, knobs)
    if with_gradient:
        x_CV.mul_(gradient.tail_C1)
        if tail_at_1_CV is not None and gradient.tail_at_1_C1 is not None:
            x_CV.add_(tail_at_1_CV.mul_(gradient.tail_at_1_C1))
        add_sparse_(x_CV, gradient, targets)
        if slope_CV is not None:
            x_CV.mul_(slope_CV)
    return sums


def divergence_rows(x_CV: Tensor, targets: Targets, knobs: Knobs) -> Tensor:
    """Each row's divergence from the teacher, [C], nats, T^2 not in it; x_CV is overwritten, no gradient."""
    if knobs.logit_softcap is not None:
        _softcap_(x_CV, knobs, with_gradient=False)
    entries = read_entries(x_CV, targets)
    x_CV.scatter_(-1, targets.ids_NK, -math.inf)
    tail_C = _tail_softmax_(x_CV, x_CV.amax(dim=-1, keepdim=True), targets)
    log_p_CB = torch.log_softmax(closure.student_buckets(entries.y_CK, tail_C, targets), dim=-1)
    return closure.kl_rows(log_p_CB, closure.teacher_log_buckets(targets, knobs)[0], knobs).value_C


def _softcap_(x_CV: Tensor, knobs: Knobs, *, with_gradient: bool) -> Tensor | None:
    """x becomes y = cap / T * tanh(x); gives dy/dx = cap / T * (1 - tanh(x)^2) = cap / T - y^2 / (cap / T) if it will be needed."""
    assert knobs.logit_softcap is not None
    height = knobs.logit_softcap / knobs.temperature
    x_CV.tanh_().mul_(height)
    return torch.addcmul(x_CV.new_full((), height), x_CV, x_CV, value=-1 / height) if with_gradient else None


def _tail_softmax_(y_CV: Tensor, most_C1: Tensor, targets: Targets) -> Tensor:
    """In place: softmax over the tokens outside the K. Gives their log-sum-exp, -inf for a row that has none."""
    is_empty_C1 = most_C1 == -math.inf
    # a row of nothing but -inf would become NaN; one entry at 0 makes it a harmless row, whose factor is 0
    y_CV.scatter_(-1, targets.ids_NK[:, :1], torch.where(is_empty_C1, 0.0, -math.inf).to(y_CV.dtype))
    if has_in_place_softmax(y_CV.device):
        torch.softmax(y_CV, dim=-1, out=y_CV)  # one pass in cache, bit-equal to the softmax that is not in place
        total_C1 = y_CV.amax(dim=-1, keepdim=True).reciprocal()  # the largest entry is exp(0) over the sum
    else:
        total_C1 = y_CV.sub_(most_C1.masked_fill(is_empty_C1, 0.0)).exp_().sum(dim=-1, keepdim=True)
        y_CV.div_(total_C1)
    return log_sum(most_C1, total_C1).squeeze(-1)


def has_in_place_softmax(device: torch.device) -> bool:
    """Tried on a CPU only."""
    return device.type == "cpu"


def log_sum(most: Tensor, total: Tensor) -> Tensor:
    """most + log(total), in float64: in float32 it would be 1e-5 off for logits of hundreds. -inf for an empty tail."""
    dtype = closure.small_dtype(most.device)
    return most.to(dtype) + total.to(dtype).log()


def read_entries(y_CV: Tensor, targets: Targets) -> Entries:
    label_C = None if targets.labels_N is None else y_CV.gather(-1, targets.labels_N[:, None]).squeeze(-1)
    return Entries(y_CV.gather(-1, targets.ids_NK), label_C)


def add_sparse_(dx_CV: Tensor, gradient: BlockGradient, targets: Targets) -> None:
    """The single entries: added, since an empty entry repeats an id that is also stored for real."""
    dx_CV.scatter_add_(-1, targets.ids_NK, gradient.ids_CK)
    if targets.labels_N is not None and gradient.label_C1 is not None:
        dx_CV.scatter_add_(-1, targets.labels_N[:, None], gradient.label_C1)
