"""What the teacher believes at one position, at any temperature and top K, with error bars; and what each tail mode makes of it.

Entropy of the whole vocabulary, not of the stored entries only. With u the tail's share at T and b = 1/T,
    H = h(u) + (1 - u) H(entries among themselves) + u H(tail within itself),     h(u) = -u ln u - (1 - u) ln(1 - u),
and the tail's own entropy is  f - b f'  for its log-sum-exp f and mean log-probability f', both of which the cache stores (cache/tail.py).
H is concave in u, and rises with the tail's own entropy: the bounds of u and of f - b f' give the bounds of H.
"""
# K: stored entries   A: anchors of the tail

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cache import tail_at, tail_bracket, tail_mean_at, tail_mean_bracket
from ..cache.bounds import mixture_mass_bracket, mixture_tail_bracket
from ..config import Divergence, Tail
from ..errors import ConfigError

Bound = tuple[float, float]
"""(lowest, highest)."""


@dataclass(frozen=True)
class Place:
    """What the cache holds of one position: natural logs at T = 1, most likely first; no empty entry."""

    ids_K: NDArray[np.int64]
    logprobs_K: NDArray[np.float32]
    tail_A: NDArray[np.float32]
    """The tail's log-sum-exp at the anchors; -inf where nothing is outside the entries."""
    tail_mean_A: NDArray
    gold_id: int
    """The token that the text goes on with."""
    gold_logprob: float
    mixture_slack_3A: NDArray | None = None
    """A mixture of teachers only: how far the truth may be from the tail that is stored (cache/bounds.py)."""
    log_vocab: float = math.inf
    """The most entropy that a tail may hold."""


@dataclass(frozen=True)
class Belief:
    """The teacher's distribution at one temperature: the first top_k entries, and all the rest as one."""

    temperature: float
    probabilities_K: NDArray[np.float64]
    rest: float
    """Probability outside the entries: what was cut off with top_k, and the cache's tail."""
    rest_bound: Bound
    entropy: float
    """Of the whole vocabulary, nats; it does not depend on top_k."""
    entropy_bound: Bound

    @property
    def kept_mass(self) -> float:
        return 1 - self.rest

    @property
    def kept_mass_bound(self) -> Bound:
        return 1 - self.rest_bound[1], 1 - self.rest_bound[0]


def believe(place: Place, *, temperature: float, top_k: int) -> Belief:
    """Raises ConfigError for a top_k outside 1 to the stored K, or a temperature outside [0.5, 8]."""
    if not 1 <= top_k <= len(place.logprobs_K):
        raise ConfigError(f"top_k {top_k} is outside what this position holds, 1 to {len(place.logprobs_K)}. Choose one inside.")
    low, high = _tail_bound(place, temperature)
    tail = min(max(float(tail_at(place.tail_A, place.tail_mean_A, temperature)), low), high)
    probabilities_K, rest = _shares(place, tail, temperature, top_k)
    within, within_low, within_high = _within_tail(place, temperature, tail, low, high)
    shares = [_shares(place, at, temperature, len(place.logprobs_K))[1] for at in (low, tail, high)]
    return Belief(
        temperature=temperature,
        probabilities_K=probabilities_K,
        rest=rest,
        rest_bound=_rest_bound(place, (low, high), temperature, top_k),
        entropy=_entropy(place, temperature, shares[1], within),
        entropy_bound=_entropy_bound(place, temperature, (shares[0], shares[2]), (within_low, within_high)),
    )


def _tail_bound(place: Place, temperature: float) -> Bound:
    if place.mixture_slack_3A is None:
        low, high = tail_bracket(place.tail_A, place.tail_mean_A, temperature)
    else:
        low, high = mixture_tail_bracket(place.tail_A, place.mixture_slack_3A, temperature)
    return float(low), float(high)


def _rest_bound(place: Place, tail: Bound, temperature: float, top_k: int) -> Bound:
    if place.mixture_slack_3A is None:
        return _shares(place, tail[0], temperature, top_k)[1], _shares(place, tail[1], temperature, top_k)[1]
    one = (place.logprobs_K[None], place.tail_A[None], place.mixture_slack_3A[None])
    least, most = mixture_mass_bracket(*one, temperature, top_k=top_k)
    return 1 - float(most[0]), 1 - float(least[0])


def _shares(place: Place, tail: float, temperature: float, top_k: int) -> tuple[NDArray[np.float64], float]:
    """Probabilities at T of the first top_k entries, and of the rest, for one value of the tail's log-sum-exp."""
    powers_K = np.exp((place.logprobs_K.astype(np.float64) - float(place.logprobs_K[0])) / temperature)
    outside = math.exp(tail - float(place.logprobs_K[0]) / temperature)
    total = float(powers_K.sum()) + outside
    return powers_K[:top_k] / total, (float(powers_K[top_k:].sum()) + outside) / total


def _within_tail(place: Place, temperature: float, tail: float, low: float, high: float) -> tuple[float, float, float]:
    """Entropy of the tail's tokens among themselves, nats: (value, lowest, highest); 0 for an empty tail."""
    if math.isinf(tail):
        return 0.0, 0.0, 0.0
    mean = float(tail_mean_at(place.tail_A, place.tail_mean_A, temperature))
    if place.mixture_slack_3A is not None:  # of a mixture's tail the mean is a guess at every T
        return max(0.0, tail - mean / temperature), 0.0, place.log_vocab
    mean_low, mean_high = (float(bound) for bound in tail_mean_bracket(place.tail_A, place.tail_mean_A, temperature))
    lowest, highest = low - mean_high / temperature, high - mean_low / temperature
    return max(0.0, tail - mean / temperature), max(0.0, lowest), max(0.0, highest)


def _entropy(place: Place, temperature: float, share: float, within: float) -> float:
    return _binary(share) + (1 - share) * _within_entries(place, temperature) + share * within


def _entropy_bound(place: Place, temperature: float, shares: Bound, within: Bound) -> Bound:
    """H is concave in the tail's share u, with its top at  u / (1 - u) = exp(H within tail - H within entries)."""
    lowest = min(_entropy(place, temperature, share, within[0]) for share in shares)
    top = 1 / (1 + math.exp(min(700.0, _within_entries(place, temperature) - within[1])))
    highest = _entropy(place, temperature, min(max(top, shares[0]), shares[1]), within[1])
    return lowest, highest


def _within_entries(place: Place, temperature: float) -> float:
    probabilities_K, _ = _shares(place, -math.inf, temperature, len(place.logprobs_K))
    return float(-(probabilities_K * np.log(np.maximum(probabilities_K, 1e-300))).sum())


def _binary(share: float) -> float:
    return -sum(part * math.log(part) for part in (share, 1 - share) if 0 < part < 1)


# ---- what each tail mode teaches


@dataclass(frozen=True)
class Lesson:
    """The distribution at which a loss is lowest: where a student that can do anything ends."""

    probabilities_K: NDArray[np.float64]
    rest: float | None
    """Probability of all tokens outside the entries together; None where the loss does not look at it, and the entries' sum is free too."""


def lesson(belief: Belief, *, tail: Tail, divergence: Divergence = "forward_kl") -> Lesson:
    """The minimum of KL(teacher, student) with this tail mode, over all student distributions at the same temperature.

    With q the entries and m their sum. Wherever the tail is a term of its own, the minimum is the teacher itself. Without one:
    forward KL, sum q ln(q/p): the entries in proportion, nothing outside: p = q/m ("drop" pulls with weight m, "renormalize" with 1).
    reverse KL, "drop", sum p ln(p/q): its slope ln(p/q) + 1 is 0 at p = q/e, all else goes outside. "renormalize": proportions only.
    jsd, "renormalize": p = q/m; "drop": p = q is its 0. tests/playground minimises the loss itself and compares.
    """
    q_K, mass = belief.probabilities_K, float(belief.probabilities_K.sum())
    if tail == "bucket" or (tail == "drop" and divergence == "jsd"):
        return Lesson(q_K, 1 - mass)
    if divergence == "reverse_kl":
        return Lesson(q_K / math.e, 1 - mass / math.e) if tail == "drop" else Lesson(q_K / mass, None)
    return Lesson(q_K / mass, 0.0)
