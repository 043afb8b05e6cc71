"""The loss in tiles of the vocabulary, for when even one chunk x vocabulary is too much: logits are computed twice, and never kept.

A first walk over the tiles gives each row's log-sum-exp, a second one recomputes the logits, turns them into the gradient and
multiplies it on: 8 N V D operations instead of 6, and a buffer of chunk_tokens x TILE. Each row of the head's gradient is written
once if all tokens fit one chunk, in the head's own type: no float32 copy of V x D either.
"""

# N: tokens   C: tokens of one chunk   W: tokens of the vocabulary in one tile   K: stored teacher entries per token   D: hidden size
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .chunked import even_chunk, filled_rows
from .closure import BlockGradient, Entries, RowSums, finish_rows, needs_second_softmax, small_dtype, zero_sums
from .contract import Knobs, Targets
from .fused import Gradients, Job, input_factor
from .products import NarrowProducts, Products
from .row_step import log_sum

TILE = 1024
"""Of 1024 to 8192 the smallest was the fastest on a CPU."""


def compute_tiled(hidden_ND: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, job: Job, needs: list[bool]) -> tuple[RowSums, Gradients]:
    """Sums, and the gradients that are needed of hidden states, head and bias."""
    num_tokens, head_rows = hidden_ND.shape[0], lm_head_RD.shape[0]
    chunk = even_chunk(num_tokens, job.knobs.chunk_tokens, job.row_multiple)
    filled_ND = filled_rows(hidden_ND, job.row_multiple)
    is_kept = job.kept_head_grad_RD is not None
    # one chunk writes each row once: it can be rounded at once
    dtype = lm_head_RD.dtype if num_tokens <= chunk and not job.knobs.accumulate_head_grad else job.dtype
    grads = Gradients(
        torch.zeros_like(filled_ND, dtype=job.dtype) if needs[0] else None,
        (job.kept_head_grad_RD if is_kept else torch.zeros_like(lm_head_RD, dtype=dtype)) if needs[1] else None,
        lm_head_RD.new_zeros(head_rows, dtype=job.dtype) if needs[2] else None,
    )
    totals = zero_sums(hidden_ND.device)
    for start in range(0, num_tokens, chunk):
        filled = slice(start, min(start + chunk, filled_ND.shape[0]))
        targets = job.targets.rows(start, min(start + chunk, num_tokens))
        walk = TileWalk(filled_ND[filled], lm_head_RD, bias_R, targets, job)
        stats = walk.statistics()
        sums, gradient = finish_rows(
            stats.entries, log_sum(stats.most_C, stats.total_C), stats.log_sum_at_1(job.knobs), stats.most_C, walk.targets, job.knobs
        )
        totals = totals.plus(sums)
        if any(needs):
            mine = grads if grads.hidden_ND is None else grads._replace(hidden_ND=grads.hidden_ND[filled])
            walk.add_gradients(stats, gradient, mine)
    return totals, grads if grads.hidden_ND is None else grads._replace(hidden_ND=grads.hidden_ND[:num_tokens])


class Statistics(NamedTuple):
    """What the first walk finds out about each row."""

    entries: Entries
    most_C: Tensor
    total_C: Tensor
    total_at_1_C: Tensor | None

    def log_sum_at_1(self, knobs: Knobs) -> Tensor | None:
        return None if self.total_at_1_C is None else log_sum(self.most_C * knobs.temperature, self.total_at_1_C)


class Tile(NamedTuple):
    """One tile: its logits y, dy/dx under a softcap, and which stored entries and labels lie in it."""

    start: int
    stop: int
    y_CW: Tensor
    slope_CW: Tensor | None
    products: Products
    rows_CD: Tensor
    """Rows of zeros below the chunk's own, where products want more; y_CW has none."""
    filled_CW: Tensor
    """y_CW with rows for those."""
    entry_rows: Tensor
    entry_places: Tensor
    entry_ids: Tensor
    label_rows: Tensor | None
    label_ids: Tensor | None


class TileWalk:
    """One chunk of tokens against every tile. Finding which entries lie in which tile makes the host wait, once."""

    def __init__(self, hidden_CD: Tensor, lm_head_RD: Tensor, bias_R: Tensor | None, targets: Targets, job: Job):
        self.hidden_CD, self.lm_head_RD, self.bias_R, self.targets, self.job = hidden_CD, lm_head_RD, bias_R, targets, job
        self.num_rows = targets.ids_NK.shape[0]
        self.edges = [*range(0, job.knobs.vocab_size, TILE), job.knobs.vocab_size]
        self.order, self.bounds = self._by_tile(targets.ids_NK.flatten())
        self.labels = None if targets.labels_N is None else self._by_tile(targets.labels_N)

    def _by_tile(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """The order that sorts the ids, and where in it each tile begins and ends."""
        sorted_ids, order = ids.sort()
        return order, torch.searchsorted(sorted_ids, torch.tensor(self.edges, device=ids.device)).tolist()

    def tiles(self, *, with_slope: bool) -> Iterator[Tile]:
        knobs, top_k = self.job.knobs, self.targets.ids_NK.shape[1]
        factor = input_factor(knobs)
        height = None if knobs.logit_softcap is None else knobs.logit_softcap / knobs.temperature
        for at, (start, stop) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            products = self._products(start, stop, factor)
            rows_CD = products.rows(self.hidden_CD)
            filled_CW = knobs.workspace.rows(rows_CD.shape[0], stop - start, like=self.hidden_CD, dtype=self.job.dtype)
            products.logits(rows_CD, filled_CW)
            y_CW = filled_CW[: self.num_rows]
            slope_CW = None
            if height is not None:
                y_CW.tanh_().mul_(height)
                slope_CW = torch.addcmul(y_CW.new_full((), height), y_CW, y_CW, value=-1 / height) if with_slope else None
            picked = self.order[self.bounds[at] : self.bounds[at + 1]]
            rows, places = picked // top_k, picked % top_k
            ids = self.targets.ids_NK[rows, places] - start
            label_rows = label_ids = None
            if self.labels is not None and self.targets.labels_N is not None:
                order, bounds = self.labels
                label_rows = order[bounds[at] : bounds[at + 1]]
                label_ids = self.targets.labels_N[label_rows] - start
            yield Tile(start, stop, y_CW, slope_CW, products, rows_CD, filled_CW, rows, places, ids, label_rows, label_ids)

    def _products(self, start: int, stop: int, factor: float) -> Products:
        head_WD, bias_W = self.lm_head_RD[start:stop], None if self.bias_R is None else self.bias_R[start:stop]
        if self.job.narrow is None:
            return Products(head_WD, bias_W, vocab_size=stop - start, factor=factor, dtype=self.job.dtype, in_parts=self.job.in_parts)
        return NarrowProducts(head_WD, bias_W, vocab_size=stop - start, factor=factor, narrow=self.job.narrow)

    def statistics(self) -> Statistics:
        """The entries' and labels' logits, and over the tail the largest one and the sums of exp(y - largest)."""
        num_rows, knobs = self.num_rows, self.job.knobs
        wide = small_dtype(self.hidden_CD.device)
        y_CK = self.hidden_CD.new_empty(self.targets.ids_NK.shape, dtype=self.job.dtype)
        label_C = None if self.targets.labels_N is None else y_CK.new_empty(num_rows)
        most_C, total_C = y_CK.new_full((num_rows,), -math.inf), y_CK.new_zeros(num_rows, dtype=wide)
        total_at_1_C = torch.zeros_like(total_C) if needs_second_softmax(self.targets, knobs) else None
        for tile in self.tiles(with_slope=False):
            y_CK[tile.entry_rows, tile.entry_places] = tile.y_CW[tile.entry_rows, tile.entry_ids]
            if label_C is not None:
                label_C[tile.label_rows] = tile.y_CW[tile.label_rows, tile.label_ids]
            tile.y_CW[tile.entry_rows, tile.entry_ids] = -math.inf  # what is left is the tail
            more_C = torch.maximum(most_C, tile.y_CW.amax(dim=-1))
            base_C = more_C.masked_fill(more_C == -math.inf, 0.0)
            shrink_C = (most_C - base_C).to(wide)
            below_CW = tile.y_CW.sub_(base_C[:, None])
            if total_at_1_C is not None:
                at_1_C = (below_CW * knobs.temperature).exp_().sum(dim=-1)
                total_at_1_C = total_at_1_C * (shrink_C * knobs.temperature).exp() + at_1_C
            total_C = total_C * shrink_C.exp() + below_CW.exp_().sum(dim=-1)
            most_C = more_C
        return Statistics(Entries(y_CK, label_C), most_C, total_C, total_at_1_C)

    def add_gradients(self, stats: Statistics, gradient: BlockGradient, grads: Gradients) -> None:
        """The second walk: logits again, in place the gradient, and its products."""
        temperature = self.job.knobs.temperature
        base_C1 = stats.most_C.masked_fill(stats.most_C == -math.inf, 0.0)[:, None]
        share_C1 = self._share(gradient.tail_C1, stats.total_C)
        at_1_C1 = None
        if gradient.tail_at_1_C1 is not None and stats.total_at_1_C is not None:
            at_1_C1 = self._share(gradient.tail_at_1_C1, stats.total_at_1_C)
        for tile in self.tiles(with_slope=True):
            tile.y_CW[tile.entry_rows, tile.entry_ids] = -math.inf
            dx_CW = tile.y_CW.sub_(base_C1)
            second_CW = None if at_1_C1 is None else (dx_CW * temperature).exp_().mul_(at_1_C1)
            dx_CW.exp_().mul_(share_C1)
            if second_CW is not None:
                dx_CW.add_(second_CW)
            dx_CW.index_put_((tile.entry_rows, tile.entry_ids), gradient.ids_CK[tile.entry_rows, tile.entry_places], accumulate=True)
            if gradient.label_C1 is not None:
                dx_CW.index_put_((tile.label_rows, tile.label_ids), gradient.label_C1[tile.label_rows, 0], accumulate=True)
            if tile.slope_CW is not None:
                dx_CW.mul_(tile.slope_CW)
            _add_products(tile, grads)

    def _share(self, factor_C1: Tensor, total_C: Tensor) -> Tensor:
        """The row's factor over its sum; 0 for a row without tail."""
        total_C1 = total_C[:, None]
        return torch.where(total_C1 == 0, 0.0, factor_C1 / total_C1).to(self.job.dtype)


def _add_products(tile: Tile, grads: Gradients) -> None:
    """y_CW holds the gradient by now."""
    products = tile.products
    if grads.bias_R is not None:
        grads.bias_R[tile.start : tile.stop].add_(tile.y_CW.sum(dim=0), alpha=products.factor)
    dx_CW = products.gradient(tile.filled_CW)
    if grads.hidden_ND is not None:
        products.add_hidden_grad(dx_CW, grads.hidden_ND)
    if grads.head_RD is not None:
        products.add_weight_grad(dx_CW, tile.rows_CD)
        assert products.weight_grad_RD is not None
        grads.head_RD[tile.start : tile.stop].add_(products.weight_grad_RD)
