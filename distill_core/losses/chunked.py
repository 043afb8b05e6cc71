"""The loss in chunks of tokens, its gradient computed in the forward pass: no tensor is ever tokens x vocabulary.

One buffer of chunk x vocabulary holds the logits, then in place the tail's softmax, then in place the gradient, which is
multiplied into the gradients of hidden states and weight at once. What backward has left to do is one multiplication.
"""

# N: tokens   C: tokens of one chunk   V: real vocabulary   R: all rows of the head   D: hidden size
import math

import torch
from torch import Tensor

from .closure import RowSums, zero_sums
from .fused import Gradients, Job, input_factor
from .products import NarrowProducts, Products


def compute_chunked(hidden_ND: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, job: Job, needs: list[bool]) -> tuple[RowSums, Gradients]:
    """Sums, and the gradients that are needed of hidden states, head and bias, in the type of the logits."""
    products = make_products(lm_head_RD, bias_R, job)
    totals, hidden_grad_ND = _walk(hidden_ND, products, job, needs)
    return totals, Gradients(hidden_grad_ND, *products.finish(weight=needs[1], bias=needs[2]))


def even_chunk(num_tokens: int, chunk_tokens: int, multiple: int = 1) -> int:
    """The largest chunk within chunk_tokens that leaves no short last one; a multiple of `multiple`."""
    if num_tokens == 0:
        return multiple
    even = math.ceil(num_tokens / math.ceil(num_tokens / chunk_tokens))
    return min(math.ceil(even / multiple), chunk_tokens // multiple) * multiple


def filled_rows(hidden_ND: Tensor, multiple: int) -> Tensor:
    """Rows of zeros below, up to a multiple; the tensor itself where nothing is missing."""
    missing = -hidden_ND.shape[0] % multiple
    return torch.nn.functional.pad(hidden_ND, (0, 0, 0, missing)) if missing else hidden_ND


def make_products(lm_head_RD: Tensor, bias_R: Tensor | None, job: Job) -> Products:
    vocab_size, factor = job.knobs.vocab_size, input_factor(job.knobs)
    if job.narrow is None:
        products = Products(lm_head_RD, bias_R, vocab_size=vocab_size, factor=factor, dtype=job.dtype, in_parts=job.in_parts)
    else:
        products = NarrowProducts(lm_head_RD, bias_R, vocab_size=vocab_size, factor=factor, narrow=job.narrow)
    products.weight_grad_RD = job.kept_head_grad_RD
    return products


def _walk(hidden_ND: Tensor, products: Products, job: Job, needs: list[bool]) -> tuple[RowSums, Tensor | None]:
    """Every chunk once: logits, rows, and the products that some input's gradient needs. Rows of zeros fill up the last chunk."""
    num_tokens, vocab_size, dtype = hidden_ND.shape[0], job.knobs.vocab_size, products.dtype
    chunk = even_chunk(num_tokens, job.knobs.chunk_tokens, job.row_multiple)
    filled_ND = filled_rows(hidden_ND, job.row_multiple)
    num_filled = filled_ND.shape[0]
    buffer_CV = job.knobs.workspace.rows(min(chunk, num_filled), vocab_size, like=hidden_ND, dtype=dtype, align=job.row_align)
    hidden_grad_ND = filled_ND.new_empty(filled_ND.shape, dtype=dtype) if needs[0] else None
    totals = zero_sums(hidden_ND.device)
    for start in range(0, num_tokens, chunk):
        stop, filled = min(start + chunk, num_tokens), min(start + chunk, num_filled)
        rows_CD, filled_CV = products.rows(filled_ND[start:filled]), buffer_CV[: filled - start]
        products.logits(rows_CD, filled_CV)
        x_CV = filled_CV[: stop - start]
        totals = totals.plus(job.row_step(x_CV, job.targets.rows(start, stop), job.knobs, with_gradient=any(needs)))
        if not any(needs):
            continue
        if needs[2]:
            products.add_bias_grad(x_CV)
        dx_CV = products.gradient(filled_CV)
        if hidden_grad_ND is not None:
            products.hidden_grad(dx_CV, hidden_grad_ND[start:filled])
        if needs[1]:
            products.add_weight_grad(dx_CV, rows_CD)
    return totals, None if hidden_grad_ND is None else hidden_grad_ND[:num_tokens]
