"""The teacher's entries in the student's tokens, row by row.

Exact: a kept row's number for a token is the teacher's probability that its own next token is this very byte string; every other number
of the teacher's is in the tail, at every stored temperature: a log-sum-exp takes another entry in exactly.
Not exact: the teacher may say the same continuation in other tokens. Where it has 'cats' and the student only 'cat' + 's', the mass of
'cats' is in the tail of the student's 'cat', whose own probability of 'cat' ought to hold it. Nor are the rows a fair sample of all
places: they are those where both tokenizers agree about the text's next token.
"""
# R: rows   K: entries of the source   A: anchors

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cache.tail import ANCHORS

Reals = NDArray[np.float64]


class Rows(NamedTuple):
    """What a cache holds of R positions; entries fall, equal ones by rising id, empty ones last with id 0 and -inf."""

    ids_RK: NDArray[np.int64]
    logprobs_RK: Reals
    tail_RA: Reals
    tail_mean_RA: Reals


def translated(rows: Rows, twins: NDArray[np.int64], *, top_k: int) -> Rows:
    """The same rows in the student's tokens, with room for top_k entries; a row may keep fewer, or none.

    `twins`: the student's token for each of the teacher's, -1 for none; no two have the same. What does not keep its place joins
    the tail: T at each anchor, tail' = log(exp(tail) + sum of exp(lp / T)), and the mean log-probability with the same weights.
    """
    is_entry_RK = np.isfinite(rows.logprobs_RK)
    twin_RK = np.where(is_entry_RK, twins[np.where(is_entry_RK, rows.ids_RK, 0)], -1)
    order_RK = np.lexsort((twin_RK, -np.where(twin_RK >= 0, rows.logprobs_RK, -np.inf)), axis=-1)
    twin_RK, logprobs_RK = np.take_along_axis(twin_RK, order_RK, -1), np.take_along_axis(rows.logprobs_RK, order_RK, -1)
    is_kept_RK = (twin_RK >= 0) & (np.arange(twin_RK.shape[1]) < top_k)
    out_RK = np.where(is_kept_RK, -np.inf, logprobs_RK)
    tail_RA, mean_RA = _joined(out_RK, rows.tail_RA, rows.tail_mean_RA)
    return Rows(np.where(is_kept_RK, twin_RK, 0)[:, :top_k], np.where(is_kept_RK, logprobs_RK, -np.inf)[:, :top_k], tail_RA, mean_RA)


def _joined(out_RK: Reals, tail_RA: Reals, mean_RA: Reals) -> tuple[Reals, Reals]:
    """The tail's log-sum-exp and mean log-probability with the entries of out_RK that are above -inf taken in."""
    tails, means = [], []
    value_RK = np.where(np.isfinite(out_RK), out_RK, 0.0)
    for anchor, temperature in enumerate(ANCHORS):
        scaled_RK1 = np.concatenate([out_RK / temperature, tail_RA[:, anchor, None]], axis=1)
        most_R1 = np.maximum(scaled_RK1.max(1, keepdims=True), -1e30)  # all -inf: an empty tail stays one
        weights_RK1 = np.exp(scaled_RK1 - most_R1)
        total_R = weights_RK1.sum(1)
        with np.errstate(divide="ignore"):
            tails.append(np.log(total_R) + most_R1[:, 0])
        sums_R = (weights_RK1[:, :-1] * value_RK).sum(1) + weights_RK1[:, -1] * mean_RA[:, anchor]
        means.append(np.divide(sums_R, total_R, out=np.zeros_like(sums_R), where=total_R > 0))
    return np.stack(tails, 1), np.stack(means, 1)
