"""The loss with its two row kernels in triton, over the same chunks, products and small maths as chunked.py.

Run so far in triton's interpreter only; not measured on a GPU.
"""

# N: tokens   C: tokens of one chunk   V: real vocabulary   D: hidden size   K: stored teacher entries per token
import contextlib
import os

import torch
from torch import Tensor

from ..errors import LossInputError
from .closure import BlockGradient, Entries, RowSums, finish_rows, needs_second_softmax
from .contract import Knobs, Targets
from .row_step import add_sparse_, log_sum

BLOCK_V = 4096
"""Elements of one row in flight; with 8 warps at most 104 registers a thread on seven GPUs, no spills (tests/losses/test_aot.py)."""
NUM_WARPS = 8
ROW_ALIGN = 16
"""Rows of logits start at a multiple of 16 elements: the compiler then loads 16 bytes at once, at any vocabulary."""


def check_triton(device: torch.device, dtype: torch.dtype) -> None:
    """Raises LossInputError where the kernels cannot run."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not is_interpreted:
        raise LossInputError(f"impl='triton' needs a GPU, the student is on {device.type}. Use impl='chunked', or 'auto'.")
    if dtype != torch.float32:
        raise LossInputError("impl='triton' computes in float32, the student is float64. Use impl='chunked' or 'reference'.")


def triton_row_step(x_CV: Tensor, targets: Targets, knobs: Knobs, *, with_gradient: bool) -> RowSums:
    """One chunk's rows: the kernels do what is as wide as the vocabulary, closure.py the rest."""
    from . import triton_kernels as kernels

    num_rows, vocab_size = x_CV.shape
    has_cap, needs_at_1 = knobs.logit_softcap is not None, needs_second_softmax(targets, knobs)
    height = 1.0 if knobs.logit_softcap is None else knobs.logit_softcap / knobs.temperature
    shared = (vocab_size, height, knobs.temperature)
    constants = {"HAS_CAP": has_cap, "NEEDS_AT_1": needs_at_1, "HOLE": kernels.HOLE, "BLOCK_V": BLOCK_V, "num_warps": NUM_WARPS}
    entries = _read_entries(x_CV, targets, height=height, has_cap=has_cap)
    x_CV.scatter_(-1, targets.ids_NK, kernels.HOLE)
    most_C, total_C, total_at_1_C = x_CV.new_empty(3, num_rows).unbind(0)
    with _on_device(x_CV.device):
        kernels.tail_stats_kernel[(num_rows,)](x_CV, x_CV.stride(0), most_C, total_C, total_at_1_C, *shared, **constants)
        tail_C = log_sum(most_C, total_C)
        tail_at_1_C = log_sum(most_C * knobs.temperature, total_at_1_C) if needs_at_1 else None
        sums, gradient = finish_rows(entries, tail_C, tail_at_1_C, most_C, targets, knobs)
        if with_gradient:
            factor_C = _share(gradient.tail_C1, total_C)
            factor_at_1_C = factor_C if gradient.tail_at_1_C1 is None else _share(gradient.tail_at_1_C1, total_at_1_C)
            constants["NEEDS_AT_1"] = gradient.tail_at_1_C1 is not None
            grid = (num_rows, -(-vocab_size // BLOCK_V))
            kernels.tail_gradient_kernel[grid](x_CV, x_CV.stride(0), most_C, factor_C, factor_at_1_C, *shared, **constants)
            add_sparse_(x_CV, _with_slope(gradient, entries, height) if has_cap else gradient, targets)
    return sums


def _read_entries(x_CV: Tensor, targets: Targets, *, height: float, has_cap: bool) -> Entries:
    x_CK = x_CV.gather(-1, targets.ids_NK)
    x_C1 = None if targets.labels_N is None else x_CV.gather(-1, targets.labels_N[:, None])
    if has_cap:
        x_CK, x_C1 = height * x_CK.tanh(), None if x_C1 is None else height * x_C1.tanh()
    return Entries(x_CK, None if x_C1 is None else x_C1.squeeze(-1))


def _share(factor_C1: Tensor, total_C: Tensor) -> Tensor:
    """The row's factor over its sum; 0 for a row without tail."""
    return torch.where(total_C == 0, 0.0, factor_C1.squeeze(-1) / total_C)


def _with_slope(gradient: BlockGradient, entries: Entries, height: float) -> BlockGradient:
    """The single entries' gradients with respect to x: dy/dx = height - y^2 / height."""
    label_C1 = gradient.label_C1
    if label_C1 is not None and entries.y_label_C is not None:
        label_C1 = label_C1 * (height - entries.y_label_C.square() / height)[:, None]
    return gradient._replace(ids_CK=gradient.ids_CK * (height - entries.y_CK.square() / height), label_C1=label_C1)


def _on_device(device: torch.device) -> contextlib.AbstractContextManager:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
