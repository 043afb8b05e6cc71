"""The three matrix products of a head: logits, gradient of the hidden states, gradient of the weight. Nothing else here is large.

With x = factor * (h W^T + b):   dh = factor * dx W,   dW = factor * dx^T h,   db = factor * sum of dx.
"""

# C: tokens of one chunk   V: real vocabulary   D: hidden size   R: all rows of the head, padding included   W: head rows widened at once
from collections.abc import Iterator

import torch
from torch import Tensor

from ..multipliers import is_onednn_faster

WIDEN_ROWS = 2048
"""Head rows widened to float32 at a time: a few MB that stay in a core's cache, so that widening costs no memory and next to no time."""
ROW_MULTIPLE = 32
"""oneDNN compiles code for every shape, milliseconds and half a MB each: chunks whose rows are a multiple of this make few shapes."""
PART_ROWS, PART_WIDTH = 1024, 128
"""oneDNN adds up a logit's products in one long sum: at hidden sizes of 512 and 1,024 gradients near the optimum were 6e-5 and 4e-5
off, dense code's 2e-5 and 3e-5. Sums of 128 added up make them 2e-5, for a quarter more of the logits' time; the 1,024 logits of each
row that are added to stay in a core's cache."""
LARGE = 2**26
"""Multiplications in one product from which that is worth it: about a millisecond of MKL's time where it is slow."""
NARROW_ALIGN = 8
"""Rows of a narrow gradient start every 16 bytes: tensor cores want it, and a vocabulary of 50,257 would not give it."""


class Products:
    """Products in the type of the logits (float32, or float64): the CPU's way, also for bfloat16 and float16 inputs.

    A narrower head is widened piece by piece: no product of torch on a CPU takes bfloat16 in and gives float32 out, so bfloat16
    logits would be rounded, and gradients would lose a third near the optimum. See goes_to_onednn for which library multiplies.
    """

    def __init__(
        self, lm_head_RD: Tensor, bias_R: Tensor | None, *, vocab_size: int, factor: float, dtype: torch.dtype, in_parts: bool = False
    ):
        self.lm_head_VD = lm_head_RD[:vocab_size]
        self.bias_V = None if bias_R is None else bias_R[:vocab_size].to(dtype) * factor
        self.head_rows = lm_head_RD.shape[0]
        self.factor = factor
        self.dtype = dtype
        self.multiply = multiply_in_parts if in_parts else multiply
        self.weight_grad_RD: Tensor | None = None
        self.bias_grad_R: Tensor | None = None
        self._wide_WD: Tensor | None = None

    def rows(self, hidden_CD: Tensor) -> Tensor:
        """The chunk's hidden states as the products take them; the factor goes into them, not into C x V logits."""
        hidden_CD = hidden_CD.to(self.dtype)
        return hidden_CD if self.factor == 1.0 else hidden_CD * self.factor

    def logits(self, rows_CD: Tensor, out_CV: Tensor) -> None:
        """out = factor * (h W^T + b)."""
        if self.lm_head_VD.dtype == self.dtype:
            self.multiply(rows_CD, self.lm_head_VD, out_CV)
        else:
            for start, wide_WD in self._widened():
                self.multiply(rows_CD, wide_WD, out_CV[:, start : start + wide_WD.shape[0]])
        if self.bias_V is not None:
            out_CV.add_(self.bias_V)

    def gradient(self, dx_CV: Tensor) -> Tensor:
        """dx as the products below take it."""
        return dx_CV

    def hidden_grad(self, dx_CV: Tensor, out_CD: Tensor) -> None:
        if self.lm_head_VD.dtype == self.dtype:
            torch.mm(dx_CV, self.lm_head_VD, out=out_CD)
        else:
            out_CD.zero_()
            for start, wide_WD in self._widened():
                out_CD.addmm_(dx_CV[:, start : start + wide_WD.shape[0]], wide_WD)
        if self.factor != 1.0:
            out_CD.mul_(self.factor)

    def add_hidden_grad(self, dx_CV: Tensor, out_CD: Tensor) -> None:
        """The same, added to what is there."""
        if self.lm_head_VD.dtype == self.dtype:
            out_CD.addmm_(dx_CV, self.lm_head_VD, alpha=self.factor)
        else:
            for start, wide_WD in self._widened():
                out_CD.addmm_(dx_CV[:, start : start + wide_WD.shape[0]], wide_WD, alpha=self.factor)

    def add_weight_grad(self, dx_CV: Tensor, rows_CD: Tensor) -> None:
        """Accumulates in the type of the logits: a bfloat16 sum over many chunks would be a percent off."""
        if self.weight_grad_RD is None:
            self.weight_grad_RD = self._empty_grad(rows_CD.shape[1])
            torch.mm(dx_CV.t(), rows_CD, out=self.weight_grad_RD[: dx_CV.shape[1]])
        else:
            self.weight_grad_RD[: dx_CV.shape[1]].addmm_(dx_CV.t(), rows_CD)

    def add_bias_grad(self, dx_CV: Tensor) -> None:
        if self.bias_grad_R is None:
            self.bias_grad_R = dx_CV.new_zeros(self.head_rows)
        self.bias_grad_R[: dx_CV.shape[1]].add_(dx_CV.sum(dim=0), alpha=self.factor)

    def finish(self, *, weight: bool, bias: bool) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of weight and bias; zeros if there was not one chunk."""
        if weight and self.weight_grad_RD is None:
            self.weight_grad_RD = self._empty_grad(self.lm_head_VD.shape[1]).zero_()
        if bias and self.bias_grad_R is None:
            self.bias_grad_R = self.lm_head_VD.new_zeros(self.head_rows, dtype=self.dtype)
        return self.weight_grad_RD, self.bias_grad_R

    def _empty_grad(self, width: int) -> Tensor:
        """Room for the weight's gradient: zero for padding rows, unwritten for the rest, since the first product fills it."""
        grad_RD = self.lm_head_VD.new_empty(self.head_rows, width, dtype=self.dtype)
        grad_RD[self.lm_head_VD.shape[0] :].zero_()
        return grad_RD

    def _widened(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, wide copy) of one piece of the head after the other, all in one buffer."""
        if self._wide_WD is None:
            self._wide_WD = self.lm_head_VD.new_empty(min(WIDEN_ROWS, self.lm_head_VD.shape[0]), self.lm_head_VD.shape[1], dtype=self.dtype)
        for start in range(0, self.lm_head_VD.shape[0], WIDEN_ROWS):
            piece_WD = self.lm_head_VD[start : start + WIDEN_ROWS]
            wide_WD = self._wide_WD[: piece_WD.shape[0]]
            wide_WD.copy_(piece_WD)
            yield start, wide_WD


class NarrowProducts(Products):
    """A GPU's way with bfloat16 or float16: narrow inputs for its tensor cores, float32 results.

    The logits and both sums stay float32; dx alone is rounded, once. Not run on a GPU yet: the tests check its arithmetic
    with the mixed product replaced by a widened one.
    """

    def __init__(self, lm_head_RD: Tensor, bias_R: Tensor | None, *, vocab_size: int, factor: float, narrow: torch.dtype):
        super().__init__(lm_head_RD.to(narrow), bias_R, vocab_size=vocab_size, factor=factor, dtype=torch.float32)
        self.narrow = narrow

    def rows(self, hidden_CD: Tensor) -> Tensor:
        return hidden_CD.to(self.narrow)

    def logits(self, rows_CD: Tensor, out_CV: Tensor) -> None:
        mixed_mm(rows_CD, self.lm_head_VD.t(), out_CV)
        if self.factor != 1.0:  # into the float32 logits, and into dx: it would round the narrow hidden states
            out_CV.mul_(self.factor)
        if self.bias_V is not None:
            out_CV.add_(self.bias_V)

    def gradient(self, dx_CV: Tensor) -> Tensor:
        if self.factor != 1.0:
            dx_CV.mul_(self.factor)
        padded = -(-dx_CV.shape[1] // NARROW_ALIGN) * NARROW_ALIGN
        return dx_CV.new_empty(dx_CV.shape[0], padded, dtype=self.narrow)[:, : dx_CV.shape[1]].copy_(dx_CV)

    def hidden_grad(self, dx_CV: Tensor, out_CD: Tensor) -> None:
        mixed_mm(dx_CV, self.lm_head_VD, out_CD)

    def add_hidden_grad(self, dx_CV: Tensor, out_CD: Tensor) -> None:
        mixed_addmm(dx_CV, self.lm_head_VD, out_CD)

    def add_weight_grad(self, dx_CV: Tensor, rows_CD: Tensor) -> None:
        if self.weight_grad_RD is None:
            self.weight_grad_RD = self._empty_grad(rows_CD.shape[1])
            mixed_mm(dx_CV.t(), rows_CD, self.weight_grad_RD[: dx_CV.shape[1]])
        else:
            mixed_addmm(dx_CV.t(), rows_CD, self.weight_grad_RD[: dx_CV.shape[1]])


def multiply(rows_CD: Tensor, lm_head_VD: Tensor, out_CV: Tensor) -> None:
    """out = rows lm_head^T."""
    torch.mm(rows_CD, lm_head_VD.t(), out=out_CV)


def multiply_in_parts(rows_CD: Tensor, lm_head_VD: Tensor, out_CV: Tensor) -> None:
    """The same, as sums of short sums."""
    for start in range(0, lm_head_VD.shape[0], PART_ROWS):
        piece_VD, piece_CV = lm_head_VD[start : start + PART_ROWS], out_CV[:, start : start + PART_ROWS]
        torch.mm(rows_CD[:, :PART_WIDTH], piece_VD[:, :PART_WIDTH].t(), out=piece_CV)
        for at in range(PART_WIDTH, rows_CD.shape[1], PART_WIDTH):
            piece_CV.addmm_(rows_CD[:, at : at + PART_WIDTH], piece_VD[:, at : at + PART_WIDTH].t())


def mixed_mm(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a b, narrow in, float32 out (CUDA, torch >= 2.8)."""
    torch.mm(a, b, out_dtype=torch.float32, out=out)


def mixed_addmm(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out += a b, narrow in, float32 out (CUDA, torch >= 2.8)."""
    torch.addmm(out, a, b, out_dtype=torch.float32, out=out)


def narrow_dtype(device_type: str, autocast: torch.dtype | None, *dtypes: torch.dtype) -> torch.dtype | None:
    """What a GPU multiplies in: autocast's type, else that of a narrow input; None for wide products, and on any other device."""
    if device_type != "cuda" or torch.float64 in dtypes:
        return None
    return next((dtype for dtype in (autocast, *dtypes) if dtype in (torch.bfloat16, torch.float16)), None)


def goes_to_onednn(hidden_ND: Tensor, lm_head_RD: Tensor, chunk_tokens: int) -> bool:
    """Whether a CPU's products of float32 go to oneDNN (multipliers.py): where it is the faster library and nothing is lost, or where
    both inputs are bfloat16 numbers anyway, which a CPU's matrix units take without rounding them (dx alone is rounded, once)."""
    if hidden_ND.device.type != "cpu" or torch.float64 in (hidden_ND.dtype, lm_head_RD.dtype) or chunk_tokens < ROW_MULTIPLE:
        return False
    is_large = min(hidden_ND.shape[0], chunk_tokens) * lm_head_RD.numel() >= LARGE
    return is_large and ({hidden_ND.dtype, lm_head_RD.dtype} == {torch.bfloat16} or is_onednn_faster())
