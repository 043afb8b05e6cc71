"""How far a mixture's stored tail may be from the truth, at any temperature: the error bar that a captured cache's tail has from tail.py.

A mixture of several teachers (merging/mixture.py) stores, beside its tail, `mixture_slack` [P, 3, A]: at each anchor how far the true
log-sum-exp may lie below the stored one, above it, and how far the true one of the kept entries may lie above theirs. Between anchors all
three log-sum-exps are convex in b = 1/T: below the chords through upper bounds, above the lines through a neighbour's lower bound and the
next one's upper bound; and the tail's falls in b, since no log-probability is above 0.
"""
# N: positions   A: anchors   K: entries

import numpy as np
from numpy.typing import NDArray

from .tail import ANCHORS, Floats, log_partition

BETAS = 1 / np.array(ANCHORS)


def mixture_tail_bracket(values_NA: Floats, slack_N3A: NDArray, temperature: float) -> tuple[NDArray, NDArray]:
    """Numbers that the log-sum-exp of a mixture's tail at a temperature lies between: (low [N], high [N]), nats."""
    slack_N3A = slack_N3A.astype(np.float64)
    values_NA = values_NA.astype(np.float64)
    is_empty_N = np.isneginf(values_NA[..., 0])
    values_NA = np.where(is_empty_N[..., None], 0.0, values_NA)
    rounding_N = 4e-6 + 1e-6 * np.abs(values_NA).max(-1)
    low_NA, high_NA = values_NA - slack_N3A[..., 0, :], values_NA + slack_N3A[..., 1, :]
    low_N, high_N = _below(low_NA, high_NA, temperature) - rounding_N, _chord(high_NA, temperature) + rounding_N
    return np.where(is_empty_N, -np.inf, low_N), np.where(is_empty_N, -np.inf, high_N)


def mixture_mass_bracket(
    logprobs_NK: Floats, values_NA: Floats, slack_N3A: NDArray, temperature: float, *, top_k: int
) -> tuple[NDArray, NDArray]:
    """(least, most) kept mass of a mixture's first top_k entries at a temperature, [N], 0 to 1."""
    least_NK, most_NK = mixture_mass_brackets(logprobs_NK, values_NA, slack_N3A, temperature)
    return least_NK[..., top_k - 1], most_NK[..., top_k - 1]


def mixture_mass_brackets(logprobs_NK: Floats, values_NA: Floats, slack_N3A: NDArray, temperature: float) -> tuple[NDArray, NDArray]:
    """The same of the first 1 … K entries, [N, K] both."""
    low_N, high_N = mixture_tail_bracket(values_NA, slack_N3A, temperature)
    nothing_N = np.full(len(logprobs_NK), -np.inf)
    heads_NA = np.stack([log_partition(logprobs_NK, nothing_N, anchor) for anchor in ANCHORS], -1)
    most_N = np.exp(_chord(heads_NA + slack_N3A[..., 2, :].astype(np.float64), temperature))
    kept_NK = np.exp(logprobs_NK.astype(np.float64) / temperature).cumsum(-1)
    all_N1 = kept_NK[..., -1:]
    more_N1 = np.maximum(most_N[..., None] - all_N1, 0.0)
    is_cut_K = np.arange(1, kept_NK.shape[-1] + 1) < kept_NK.shape[-1]  # what the entries lack may all belong to those that are cut
    least_NK = kept_NK / (all_N1 + more_N1 * is_cut_K + np.exp(high_N)[..., None])
    return least_NK, (kept_NK + more_N1) / (all_N1 + more_N1 + np.exp(low_N)[..., None])


def _between(temperature: float) -> tuple[int, int, float]:
    """(the anchor at or below T, the one above, how far b is from the first to the second, 0 to 1)."""
    right = next(i for i, anchor in enumerate(ANCHORS) if anchor >= temperature and i > 0)
    left = right - 1
    return left, right, float((BETAS[left] - 1 / temperature) / (BETAS[left] - BETAS[right]))


def _chord(high_NA: NDArray, temperature: float) -> NDArray:
    left, right, share = _between(temperature)
    return (1 - share) * high_NA[..., left] + share * high_NA[..., right] if 0 < share < 1 else high_NA[..., right if share else left]


def _below(low_NA: NDArray, high_NA: NDArray, temperature: float) -> NDArray:
    left, right, share = _between(temperature)
    if share in (0.0, 1.0):
        return low_NA[..., right if share else left]
    bounds = [low_NA[..., left]]  # the tail falls in b, and b at T is below the left anchor's
    for near, far in ((left, left - 1), (right, right + 1)):
        if 0 <= far < len(ANCHORS):
            reach = (1 / temperature - BETAS[near]) / (BETAS[near] - BETAS[far])
            bounds.append((1 + reach) * low_NA[..., near] - reach * high_NA[..., far])
    return np.maximum.reduce(bounds)
