"""The loss in chunks of tokens, its gradient computed in the forward pass: no tensor is ever tokens x vocabulary.

One buffer of chunk x vocabulary holds the logits, then in place the tail's softmax, then in place the gradient, which is
multiplied into the gradients of hidden states and weight at once. What backward has left to do is one multiplication.
"""

# N: tokens   C: tokens of one chunk   V: real vocabulary   R: all rows of the head   D: hidden size
import math

from torch import Tensor

from .closure import RowSums, zero_sums
from .fused import Gradients, Job, input_factor
from .products import NarrowProducts, Products


def compute_chunked(hidden_ND: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, job: Job, needs: list[bool]) -> tuple[RowSums, Gradients]:
    """Sums, and the gradients that are needed of hidden states, head and bias, in the type of the logits."""
    products = make_products(lm_head_RD, bias_R, job)
    totals, hidden_grad_ND = _walk(hidden_ND, products, job, needs)
    return totals, Gradients(hidden_grad_ND, *products.finish(weight=needs[1], bias=needs[2]))


def even_chunk(num_tokens: int, chunk_tokens: int) -> int:
    """The largest chunk within chunk_tokens that leaves no short last one."""
    return max(1, math.ceil(num_tokens / math.ceil(num_tokens / chunk_tokens))) if num_tokens else 1


def make_products(lm_head_RD: Tensor, bias_R: Tensor | None, job: Job) -> Products:
    vocab_size, factor = job.knobs.vocab_size, input_factor(job.knobs)
    if job.narrow is None:
        products = Products(lm_head_RD, bias_R, vocab_size=vocab_size, factor=factor, dtype=job.dtype)
    else:
        products = NarrowProducts(lm_head_RD, bias_R, vocab_size=vocab_size, factor=factor, narrow=job.narrow)
    products.weight_grad_RD = job.kept_head_grad_RD
    return products


def _walk(hidden_ND: Tensor, products: Products, job: Job, needs: list[bool]) -> tuple[RowSums, Tensor | None]:
    """Every chunk once: logits, rows, and the products that some input's gradient needs."""
    num_tokens, vocab_size, dtype = hidden_ND.shape[0], job.knobs.vocab_size, products.dtype
    chunk = even_chunk(num_tokens, job.knobs.chunk_tokens)
    buffer_CV = job.knobs.workspace.rows(min(chunk, num_tokens), vocab_size, like=hidden_ND, dtype=dtype, align=job.row_align)
    hidden_grad_ND = hidden_ND.new_empty(hidden_ND.shape, dtype=dtype) if needs[0] else None
    totals = zero_sums(hidden_ND.device)
    for start in range(0, num_tokens, chunk):
        stop = min(start + chunk, num_tokens)
        rows_CD, x_CV = products.rows(hidden_ND[start:stop]), buffer_CV[: stop - start]
        products.logits(rows_CD, x_CV)
        totals = totals.plus(job.row_step(x_CV, job.targets.rows(start, stop), job.knobs, with_gradient=any(needs)))
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
