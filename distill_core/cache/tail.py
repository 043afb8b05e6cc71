"""The mass outside the stored entries, at any temperature from 1 to 8, from three stored numbers per position.

With lp the teacher's log-probabilities at T = 1, the tail's log-sum-exp is  f(b) = log sum over v outside the K of exp(b lp_v),  b = 1/T.
Stored: f at T = 1, 2 and 4. Free: f(0) = ln(V - K), since every token then counts 1. A cubic through the four points gives f between them;
at the stored temperatures it is exact. f is convex and smooth in b; the measured error is in the README ("Temperature").
"""
# N: positions, any leading shape   K: stored entries   V: real vocabulary

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

ANCHORS = (1.0, 2.0, 4.0)
"""Temperatures whose tail log-sum-exp is stored."""
MAX_TEMPERATURE = 8.0

Floats = NDArray[np.float32]


def tail_at(anchors_N3: Floats, temperature: float, *, num_tail_tokens: int) -> Floats:
    """Tail log-sum-exp at a temperature, [N], in nats; -inf where nothing lies outside the entries.

    Raises ConfigError for a temperature outside [1, 8].
    """
    if not 1.0 <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"temperature {temperature} is outside what the cache can answer for, [1, {MAX_TEMPERATURE:g}]. Choose one inside."
        )
    if num_tail_tokens <= 0:
        return np.full(anchors_N3.shape[:-1], -np.inf, np.float32)
    if temperature in ANCHORS:
        return anchors_N3[..., ANCHORS.index(temperature)]
    nodes = np.array([0.0, *(1 / anchor for anchor in ANCHORS)])
    at = 1 / temperature
    weights = [np.prod([(at - other) / (node - other) for other in nodes if other != node]) for node in nodes]
    interpolated = weights[0] * np.log(num_tail_tokens) + anchors_N3.astype(np.float64) @ np.array(weights[1:])
    return interpolated.astype(np.float32)


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
