"""The mass outside the stored entries at any temperature from 0.5 to 8, with an error bar, from twelve stored numbers per position.

With lp the teacher's log-probabilities at T = 1 and b = 1/T, the tail's log-sum-exp is  f(b) = log sum over v outside the K of exp(b lp_v).
Its slope  f'(b)  is the mean log-probability of the tail at T. Both are stored at six temperatures (ANCHORS), 36 bytes together.

The value between them: a polynomial through the four nearest anchors' values and the slopes of the two around T.
The error bar: for any c, h(b) = exp(f(b) - c b) is a sum of exponentials, so its even derivatives are positive, and the error of a
polynomial through an even number n of its values and slopes, h^(n)/n! times the product of (b - node), has a known sign: nodes with value
and slope all around bound h from below, values alone at the two neighbours (and both further off) bound it from above. With n = 2 these are
tangents and chords; n = 4 and 6 are narrower.
Measured on real models: README, "Temperature".
"""
# N: positions, any leading shape   A: anchors   K: stored entries   V: real vocabulary

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

ANCHORS = (0.5, 1.0, 4 / 3, 2.0, 4.0, 8.0)
"""Temperatures at which the tail's log-sum-exp and mean log-probability are stored."""
AT_ONE = ANCHORS.index(1.0)
MIN_TEMPERATURE, MAX_TEMPERATURE = ANCHORS[0], ANCHORS[-1]
SLOPE_ROUNDING = 2.0**-11
"""Relative rounding of a float16."""

Floats = NDArray[np.float32]


def is_hard_label(teacher_logprobs_NK: NDArray, tail_N: NDArray) -> NDArray[np.bool_]:
    """Rows of one entry and an empty tail, [N]: in a translated cache the text's own next token, of which the teacher says nothing."""
    return np.isneginf(teacher_logprobs_NK[..., 1:]).all(-1) & np.isneginf(tail_N)


def check_temperature(temperature: float) -> None:
    """Raises ConfigError, with the range, for a temperature that the stored numbers cannot answer for."""
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"temperature {temperature} is outside what a cache can answer for, [{MIN_TEMPERATURE:g}, {MAX_TEMPERATURE:g}]. "
            "Choose one inside."
        )


def tail_at(values_NA: Floats, slopes_NA: NDArray, temperature: float) -> Floats:
    """Tail log-sum-exp at a temperature, [N], in nats; exact at the anchors; -inf where nothing lies outside the entries.

    values_NA: log-sum-exps at the anchors; slopes_NA: the tail's mean log-probabilities there. Raises ConfigError outside [0.5, 8].
    """
    check_temperature(temperature)
    if temperature in ANCHORS:
        return values_NA[..., ANCHORS.index(temperature)]
    left, right = _around(temperature)
    first = min(max(left - 1, 0), len(ANCHORS) - 4)
    value_weights, slope_weights = _weights(range(first, first + 4), (left, right), temperature)
    values_N4, slopes_N2 = values_NA[..., first : first + 4].astype(np.float64), slopes_NA[..., [left, right]].astype(np.float64)
    is_empty_N = np.isneginf(values_N4[..., 0])
    filled_N4 = np.where(is_empty_N[..., None], 0.0, values_N4)
    return np.where(is_empty_N, -np.inf, filled_N4 @ value_weights + slopes_N2 @ slope_weights).astype(np.float32)


def tail_bracket(values_NA: Floats, slopes_NA: NDArray, temperature: float) -> tuple[Floats, Floats]:
    """Numbers that the tail's log-sum-exp at a temperature lies between, rounding of what is stored included: (low [N], high [N])."""
    check_temperature(temperature)
    is_empty_N = np.isneginf(values_NA[..., 0])
    values_NA = np.where(is_empty_N[..., None], 0.0, values_NA.astype(np.float64))
    rounding_N = 4e-6 + 1e-6 * np.abs(values_NA).max(-1)
    if temperature in ANCHORS:
        low_N = high_N = values_NA[..., ANCHORS.index(temperature)]
    else:
        low_N, high_N = _bracket(values_NA, slopes_NA.astype(np.float64), temperature)
    empty = np.float32(-np.inf)
    return (
        np.where(is_empty_N, empty, low_N - rounding_N).astype(np.float32),
        np.where(is_empty_N, empty, high_N + rounding_N).astype(np.float32),
    )


def tail_mean_at(values_NA: Floats, slopes_NA: NDArray, temperature: float) -> Floats:
    """Mean log-probability of the tail's tokens at a temperature, [N], in nats: the slope of its log-sum-exp in 1/T; 0 for an empty tail.

    Exact at the anchors, but for float16; between them the slope of the same polynomial, held inside what `tail_mean_bracket` allows.
    """
    low_N, high_N = tail_mean_bracket(values_NA, slopes_NA, temperature)
    if temperature in ANCHORS:
        return ((low_N + high_N) / 2).astype(np.float32)
    left, right = _around(temperature)
    first = min(max(left - 1, 0), len(ANCHORS) - 4)
    value_weights, slope_weights = _weights(range(first, first + 4), (left, right), temperature, order=1)
    values_N4, slopes_N2 = values_NA[..., first : first + 4].astype(np.float64), slopes_NA[..., [left, right]].astype(np.float64)
    filled_N4 = np.where(np.isneginf(values_N4), 0.0, values_N4)
    return np.clip(filled_N4 @ value_weights + slopes_N2 @ slope_weights, low_N, high_N).astype(np.float32)


def tail_mean_bracket(values_NA: Floats, slopes_NA: NDArray, temperature: float) -> tuple[Floats, Floats]:
    """Numbers that the tail's mean log-probability at a temperature lies between: (low [N], high [N]).

    The log-sum-exp is convex in 1/T: its slope at T lies between the stored slopes around it, and on its own side of the two chords
    that lead to T.
    """
    check_temperature(temperature)
    is_empty_N = np.isneginf(values_NA[..., 0])
    slopes_NA = slopes_NA.astype(np.float64)
    rounding_NA = np.abs(slopes_NA) * SLOPE_ROUNDING
    if temperature in ANCHORS:
        left = right = ANCHORS.index(temperature)
        low_N, high_N = slopes_NA[..., left] - rounding_NA[..., left], slopes_NA[..., left] + rounding_NA[..., left]
    else:
        left, right = _around(temperature)
        values_NA = np.where(is_empty_N[..., None], 0.0, values_NA.astype(np.float64))
        least_N, _ = tail_bracket(values_NA, slopes_NA, temperature)
        at, of_left, of_right = 1 / temperature, 1 / ANCHORS[left], 1 / ANCHORS[right]
        value_rounding_N = 1e-6 * np.abs(values_NA).max(-1)
        from_right_N = (least_N - values_NA[..., right] - value_rounding_N) / (at - of_right)
        to_left_N = (values_NA[..., left] - least_N + value_rounding_N) / (of_left - at)
        low_N = np.maximum(slopes_NA[..., right] - rounding_NA[..., right], from_right_N)
        high_N = np.minimum(slopes_NA[..., left] + rounding_NA[..., left], to_left_N)
    return np.where(is_empty_N, 0.0, low_N).astype(np.float32), np.where(is_empty_N, 0.0, high_N).astype(np.float32)


def _bracket(values_NA: NDArray, slopes_NA: NDArray, temperature: float) -> tuple[NDArray, NDArray]:
    left, right = _around(temperature)
    outer = [anchor for anchor in (left - 1, right + 1) if 0 <= anchor < len(ANCHORS)]
    lows: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((left,), (left,)), ((right,), (right,)), ((left, right), (left, right))]
    lows += [((left, right, other), (left, right, other)) for other in outer]
    highs: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((left, right), ())]
    highs += [((left, right, other), (other,)) for other in outer]
    if len(outer) == 2:
        highs.append(((left, right, *outer), tuple(outer)))
    low_N = np.maximum.reduce([_exponential(values_NA, slopes_NA, temperature, *nodes, no_bound=-np.inf) for nodes in lows])
    high_N = np.minimum.reduce([_exponential(values_NA, slopes_NA, temperature, *nodes, no_bound=np.inf) for nodes in highs])
    return low_N, high_N


def _exponential(
    values_NA: NDArray, slopes_NA: NDArray, temperature: float, nodes: tuple[int, ...], doubled: tuple[int, ...], *, no_bound: float
) -> NDArray:
    """f at T from the polynomial through h's values at the nodes and slopes at the doubled ones, with c the chord's slope.

    A stored slope may be off by its rounding; for upper and lower bounds alike, the side that loosens them is down for anchors with a
    smaller b and up for those with a larger one.
    """
    at, betas = 1 / temperature, 1 / np.array(ANCHORS)
    left, right = _around(temperature)
    chord_N = (values_NA[..., left] - values_NA[..., right]) / (betas[left] - betas[right])

    def h(anchor: int) -> NDArray:
        return np.exp(values_NA[..., anchor] - values_NA[..., left] - chord_N * (betas[anchor] - betas[left]))

    value_weights, slope_weights = _weights(nodes, doubled, temperature)
    total_N = sum(weight * h(anchor) for weight, anchor in zip(value_weights, nodes, strict=True))
    for weight, anchor in zip(slope_weights, doubled, strict=True):
        slope_N = slopes_NA[..., anchor]
        loosened_N = slope_N + np.abs(slope_N) * (SLOPE_ROUNDING if betas[anchor] > at else -SLOPE_ROUNDING)
        total_N = total_N + weight * h(anchor) * (loosened_N - chord_N)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound_N = np.log(total_N) + values_NA[..., left] + chord_N * (at - betas[left])
    return np.where(total_N > 0, bound_N, no_bound)


def _around(temperature: float) -> tuple[int, int]:
    """The anchors on both sides of a temperature."""
    right = next(i for i, anchor in enumerate(ANCHORS) if anchor >= temperature and i > 0)
    return right - 1, right


def _weights(nodes: tuple[int, ...] | range, doubled: tuple[int, ...], temperature: float, *, order: int = 0) -> tuple[NDArray, NDArray]:
    """What to multiply values at the nodes and slopes at the doubled ones with, for the polynomial's value (order 0) or slope (1)."""
    values = np.array([1 / ANCHORS[node] for node in nodes])
    slopes = np.array([1 / ANCHORS[node] for node in doubled])
    powers = np.arange(len(values) + len(slopes))
    rows = np.concatenate([values[:, None] ** powers, powers * slopes[:, None] ** np.maximum(powers - 1, 0)])
    at = 1 / temperature
    wanted = at**powers if order == 0 else powers * at ** np.maximum(powers - 1, 0)
    weights = np.linalg.solve(rows.T, wanted)
    return weights[: len(values)], weights[len(values) :]


def log_partition(logprobs_NK: Floats, tail_N: Floats, temperature: float) -> Floats:
    """log of the sum over all tokens of exp(lp / T), [N]: what normalises the teacher at T."""
    with np.errstate(divide="ignore"):
        highest_N1 = np.maximum(logprobs_NK.max(-1, keepdims=True), -1e30) / temperature
        head_N = np.log(np.exp(logprobs_NK / temperature - highest_N1).sum(-1)) + highest_N1[..., 0]
    return np.logaddexp(head_N, tail_N)


def kept_mass(logprobs_NK: Floats, tail_N: Floats, temperature: float) -> Floats:
    """Share of the teacher's probability at T that lies inside the stored entries, [N], 0 to 1."""
    return -np.expm1(np.minimum(tail_N - log_partition(logprobs_NK, tail_N, temperature), 0.0))


def bucket_logprobs(logprobs_NK: Floats, tail_N: Floats, temperature: float) -> tuple[Floats, Floats]:
    """Log-probabilities at T of the entries [N, K] and of all the rest together [N]; they sum to 1 but for rounding."""
    partition_N = log_partition(logprobs_NK, tail_N, temperature)
    return logprobs_NK / temperature - partition_N[..., None], tail_N - partition_N


def cut_to(logprobs_NK: Floats, tail_N: Floats, temperature: float, *, top_k: int) -> tuple[Floats, Floats]:
    """Keep the first top_k entries; what is cut joins the tail, exactly."""
    cut_N = log_partition(logprobs_NK[..., top_k:], tail_N, temperature) if top_k < logprobs_NK.shape[-1] else tail_N
    return logprobs_NK[..., :top_k], cut_N
