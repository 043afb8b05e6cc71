"""The two row kernels of the loss: the tail's log-sum-exp, and the gradient in place. Imported only where triton is.

One program reads a row in float32 blocks, whatever the inputs were. Both kernels see x, the head's product, and rebuild
y = x, or with a softcap y = height * tanh(x), in registers; HOLE in x marks the stored ids, which are not in the tail.
"""

# V: real vocabulary
import triton
import triton.language as tl

HOLE = -3.4028234663852886e38
"""The most negative float32: not -inf, which tanh would turn into a plain number, and not NaN, which must stay visible."""


@triton.jit
def tanh_of(x):
    """exp alone loses the digits of a small x; below a quarter the series is exact to float32."""
    square = x * x
    series = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0)))))
    shrunk = tl.exp(-2.0 * tl.abs(x))
    ratio = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0, -ratio, ratio))


@triton.jit
def fold_block(x, most, total, total_at_1, height, temperature, HAS_CAP: tl.constexpr, NEEDS_AT_1: tl.constexpr, HOLE: tl.constexpr):
    """Each lane keeps its own maximum and sum: one exp for each element, one combination at the end."""
    y = x
    if HAS_CAP:
        y = height * tanh_of(x)
    y = tl.where(x == HOLE, -float("inf"), y)
    is_more = y > most
    gap = tl.abs(y - most)
    shrunk = tl.exp(-gap)
    total = tl.where(is_more, total * shrunk + 1.0, total + shrunk)
    if NEEDS_AT_1:
        shrunk_at_1 = tl.exp(-gap * temperature)
        total_at_1 = tl.where(is_more, total_at_1 * shrunk_at_1 + 1.0, total_at_1 + shrunk_at_1)
    return tl.where(is_more, y, most), total, total_at_1


@triton.jit
def tail_stats_kernel(
    x_ptr,
    stride_x,
    most_ptr,
    total_ptr,
    total_at_1_ptr,
    V,
    height,
    temperature,
    HAS_CAP: tl.constexpr,
    NEEDS_AT_1: tl.constexpr,
    HOLE: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Per row, over the tail: the largest y, the sum of exp(y - largest), and of exp(T (y - largest)) if NEEDS_AT_1.

    Largest and sum stay apart: their log-sum-exp, rounded to float32, would be 1e-5 off for logits of hundreds.
    A row without tail has -inf and 0. Whole blocks are read without a mask: with one, a vocabulary that 16 does not divide
    (50,257) would be read 4 bytes at a time.
    """
    row = tl.program_id(0)
    x_row_ptr = x_ptr + row.to(tl.int64) * stride_x
    most = tl.full([BLOCK_V], -1.0e38, tl.float32)
    total = tl.zeros([BLOCK_V], tl.float32)
    total_at_1 = tl.zeros([BLOCK_V], tl.float32)
    whole = V // BLOCK_V * BLOCK_V
    for start in range(0, whole, BLOCK_V):
        x = tl.load(x_row_ptr + start + tl.arange(0, BLOCK_V))
        most, total, total_at_1 = fold_block(x, most, total, total_at_1, height, temperature, HAS_CAP, NEEDS_AT_1, HOLE)
    if whole < V:
        at = whole + tl.arange(0, BLOCK_V)
        x = tl.load(x_row_ptr + at, mask=at < V, other=HOLE)
        most, total, total_at_1 = fold_block(x, most, total, total_at_1, height, temperature, HAS_CAP, NEEDS_AT_1, HOLE)
    row_most = tl.max(most, 0)
    row_total = tl.sum(total * tl.exp(most - row_most), 0)
    # a NaN must stay one: only a sum that is exactly 0 means that the tail is empty
    tl.store(most_ptr + row, tl.where(row_total == 0.0, -float("inf"), row_most))
    tl.store(total_ptr + row, row_total)
    if NEEDS_AT_1:
        tl.store(total_at_1_ptr + row, tl.sum(total_at_1 * tl.exp((most - row_most) * temperature), 0))


@triton.jit
def gradient_of(x, most, factor, factor_at_1, height, temperature, HAS_CAP: tl.constexpr, NEEDS_AT_1: tl.constexpr, HOLE: tl.constexpr):
    """factor * exp(y - largest) (+ the same at T = 1), times dy/dx; 0 at the holes."""
    y = x
    slope = 1.0
    if HAS_CAP:
        bent = tanh_of(x)
        y = height * bent
        slope = height * (1.0 - bent * bent)
    below = y - most
    dx = factor * tl.exp(below)
    if NEEDS_AT_1:
        dx += factor_at_1 * tl.exp(below * temperature)
    if HAS_CAP:
        dx *= slope
    return tl.where((x == HOLE) | (y == -float("inf")), 0.0, dx)


@triton.jit
def tail_gradient_kernel(
    x_ptr,
    stride_x,
    most_ptr,
    factor_ptr,
    factor_at_1_ptr,
    V,
    height,
    temperature,
    HAS_CAP: tl.constexpr,
    NEEDS_AT_1: tl.constexpr,
    HOLE: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """In place: x becomes the gradient. One program for each block of a row; whole blocks without a mask, as above."""
    row = tl.program_id(0)
    start = tl.program_id(1) * BLOCK_V
    block_ptr = x_ptr + row.to(tl.int64) * stride_x + start
    at = tl.arange(0, BLOCK_V)
    most, factor = tl.load(most_ptr + row), tl.load(factor_ptr + row)
    factor_at_1 = factor
    if NEEDS_AT_1:
        factor_at_1 = tl.load(factor_at_1_ptr + row)
    if start + BLOCK_V <= V:
        x = tl.load(block_ptr + at)
        tl.store(block_ptr + at, gradient_of(x, most, factor, factor_at_1, height, temperature, HAS_CAP, NEEDS_AT_1, HOLE))
    else:
        is_inside = start + at < V
        x = tl.load(block_ptr + at, mask=is_inside, other=HOLE)
        dx = gradient_of(x, most, factor, factor_at_1, height, temperature, HAS_CAP, NEEDS_AT_1, HOLE)
        tl.store(block_ptr + at, dx, mask=is_inside)
