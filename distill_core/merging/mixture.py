"""The mixture of several teachers, sum of w_i p_i, from what their caches hold of each position.

Kept entries. The union of the stored ids; an id's probability is the sum of w_i p_i over the teachers that stored it: exact where all did.
What a teacher did not store counts to the tail, so that entries and tail sum to 1; it is at most the teacher's smallest stored entry, and
its tail: `Mixed.uncertain_R` is the most that the kept entries may lack altogether. The K largest are kept, the rest joins the tail.

The tail. At T = 1 it is the sum of the teachers' tails and of the entries that were cut. At another T, with b = 1/T, it is the sum of
(w_1 p_1 + w_2 p_2 + ...)^b over tokens that nobody knows one by one. With |p_i| = (sum p_i^b)^(1/b), which each tail's stored
log-sum-exp gives, that sum lies between

    aligned    (sum w_i |p_i|)^b          Minkowski's inequality, with equality where all tails are in proportion
    disjoint   sum (w_i |p_i|)^b          (x + y)^b against x^b + y^b, with equality where no token is in two tails

for b < 1 aligned is the least and disjoint the most, for b > 1 the other way round, at b = 1 they are the same. For b < 1, n tokens
of mass M give at most n^(1-b) M^b too. Both curves are convex in b (they are log-sum-exps of something, or, aligned, b times a convex
function of 1/b), and so is what is stored: a geometric mean of the two, half as far towards disjoint as the bounds allow. That is a
guess inside proven bounds; the bounds are stored beside it (cache/bounds.py).
"""

# R: positions   K: entries kept   I: a teacher's stored entries   U: entries of all teachers together   A: anchors   M: teachers

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cache.codecs import EMPTY_ID
from ..cache.tail import ANCHORS, AT_ONE

BETAS = 1 / np.array(ANCHORS)
Reals = NDArray[np.float64]


class Told(NamedTuple):
    """What one teacher's cache holds of R positions, all of them with a target."""

    ids_RI: NDArray[np.uint32]
    logprobs_RI: Reals
    tail_RA: Reals
    tail_mean_RA: Reals
    gold_R: Reals
    entropy_R: Reals


class Mixed(NamedTuple):
    """The same of the mixture."""

    ids_RK: NDArray[np.uint32]
    logprobs_RK: Reals
    tail_RA: Reals
    tail_mean_RA: Reals
    slack_R3A: Reals
    """How far the truth may lie below the stored tail, above it, and above the stored entries' own log-sum-exp, nats; 0 or more."""
    gold_R: Reals
    """Exact: every teacher's own log-probability of the text's token is stored."""
    entropy_R: Reals
    """Of the stored entries and tail, held inside sum w_i H_i <= H <= sum w_i H_i + H(w)."""
    uncertain_R: Reals
    """The most probability that the kept entries may lack at T = 1."""


class _Union(NamedTuple):
    """Entries of all teachers by falling known probability, equal ones by rising id; places that are no entry come last, with -1."""

    ids_RU: NDArray[np.uint32]
    known_RU: Reals
    stored_MRU: NDArray[np.bool_]


def mix(told: list[Told], weights: Reals, *, top_k: int, vocab_size: int) -> Mixed:
    """The mixture with these weights (above 0, they sum to 1) of teachers that each stored at least top_k entries."""
    union = _union(told, weights)
    caps_MR = np.stack([np.minimum(_exp(each.logprobs_RI[:, -1]), _exp(each.tail_RA[:, AT_ONE])) for each in told])
    missing_RU = np.einsum("mru,mr->ru", ~union.stored_MRU, weights[:, None] * caps_MR)
    kept_RK, rest_RU = union.known_RU[:, :top_k], np.maximum(union.known_RU[:, top_k:], 0.0)
    uncertain_MR = np.minimum(
        (~union.stored_MRU[:, :, :top_k]).sum(-1) * caps_MR, np.stack([_exp(each.tail_RA[:, AT_ONE]) for each in told])
    )
    tail_RA, mean_RA, tail_slack_R2A = _tail(told, weights, union, rest_RU, caps_MR, top_k=top_k, vocab_size=vocab_size)
    logprobs_RK = _log(kept_RK)
    most_RA = _log_powers(kept_RK + missing_RU[:, :top_k]) - _log_powers(kept_RK)
    entropies_R = np.einsum("m,mr->r", weights, np.stack([each.entropy_R for each in told]))
    own = -float((weights * np.log(weights)).sum())
    inside_R = -np.where(kept_RK > 0, kept_RK * logprobs_RK, 0.0).sum(-1) - _exp(tail_RA[:, AT_ONE]) * mean_RA[:, AT_ONE]
    return Mixed(
        ids_RK=union.ids_RU[:, :top_k],
        logprobs_RK=logprobs_RK,
        tail_RA=tail_RA,
        tail_mean_RA=mean_RA,
        slack_R3A=np.concatenate([tail_slack_R2A, np.maximum(most_RA, 0.0)[:, None]], 1),
        gold_R=_log_sum([each.gold_R + _log(weight) for each, weight in zip(told, weights, strict=True)]),
        entropy_R=np.clip(inside_R, entropies_R, entropies_R + own),
        uncertain_R=np.einsum("m,mr->r", weights, uncertain_MR),
    )


def _union(told: list[Told], weights: Reals) -> _Union:
    ids_RU = np.concatenate([each.ids_RI for each in told], 1)
    shares_RU = np.concatenate([weight * _exp(each.logprobs_RI) for each, weight in zip(told, weights, strict=True)], 1)
    owners_U = np.repeat(np.arange(len(told)), [each.ids_RI.shape[1] for each in told])
    order_RU = ids_RU.argsort(axis=1, kind="stable")
    ids_RU, shares_RU, owners_RU = (
        np.take_along_axis(ids_RU, order_RU, 1), np.take_along_axis(shares_RU, order_RU, 1), owners_U[order_RU]
    )  # fmt: skip
    is_first_RU = np.ones(ids_RU.shape, bool)
    is_first_RU[:, 1:] = ids_RU[:, 1:] != ids_RU[:, :-1]
    starts = np.flatnonzero(is_first_RU)
    known_RU = np.full(ids_RU.shape, -1.0)
    known_RU.ravel()[starts] = np.add.reduceat(shares_RU.ravel(), starts)
    stored_MRU = np.ones((len(told), *ids_RU.shape), bool)  # what is no entry lacks nothing
    for number, stored_RU in enumerate(stored_MRU):
        stored_RU.ravel()[starts] = np.logical_or.reduceat((owners_RU == number).ravel(), starts)
    by_value_RU = (-known_RU).argsort(axis=1, kind="stable")
    ids_RU = np.where(is_first_RU, ids_RU, EMPTY_ID).astype(np.uint32)
    return _Union(
        np.take_along_axis(ids_RU, by_value_RU, 1),
        np.take_along_axis(known_RU, by_value_RU, 1),
        np.stack([np.take_along_axis(stored_RU, by_value_RU, 1) for stored_RU in stored_MRU]),
    )


def _tail(
    told: list[Told], weights: Reals, union: _Union, rest_RU: Reals, caps_MR: Reals, *, top_k: int, vocab_size: int
) -> tuple[Reals, Reals, Reals]:
    """(log-sum-exp, its slope in b, [how far below, how far above the truth may lie]) of all that is not kept, at the anchors."""
    log_weights_M11 = _log(weights)[:, None, None]
    tails_MRA = np.stack([each.tail_RA for each in told])
    slopes_MRA = np.stack([each.tail_mean_RA for each in told])
    cut_RA, cut_slope_RA = _log_powers(rest_RU), _slope_of_powers(rest_RU)
    aligned_RA, aligned_slope_RA = _aligned(tails_MRA, slopes_MRA, log_weights_M11)
    disjoint_RA, disjoint_slope_RA = _disjoint(tails_MRA, slopes_MRA, log_weights_M11)

    num_union_R = (union.known_RU >= 0).sum(1)
    most_RA = np.logaddexp(cut_RA, np.where(BETAS > 1, aligned_RA, disjoint_RA))
    at_one_R1 = most_RA[:, AT_ONE, None]
    flat_RA = (1 - BETAS) * np.log(np.maximum(vocab_size - 2 * top_k + num_union_R, 1))[:, None] + BETAS * at_one_R1
    most_RA = np.where(BETAS < 1, np.minimum(most_RA, flat_RA), most_RA)
    share_R1 = _feasible_share(aligned_RA, disjoint_RA, cut_RA, flat_RA)[:, None] / 2

    unseen_RA = aligned_RA + np.where(np.isneginf(aligned_RA), 0.0, share_R1 * _gap(disjoint_RA, aligned_RA))
    unseen_slope_RA = aligned_slope_RA + share_R1 * (disjoint_slope_RA - aligned_slope_RA)
    tail_RA = np.logaddexp(cut_RA, unseen_RA)
    of_cut_RA = np.exp(_gap(cut_RA, tail_RA, empty=-np.inf))
    slope_RA = of_cut_RA * cut_slope_RA + (1 - of_cut_RA) * unseen_slope_RA

    least_MRA = _least_tails(tails_MRA, union, caps_MR, top_k)
    low_RA = np.where(BETAS > 1, _disjoint(least_MRA, slopes_MRA, log_weights_M11)[0], _aligned(least_MRA, slopes_MRA, log_weights_M11)[0])
    low_RA = np.logaddexp(cut_RA, low_RA)
    together_RA = np.logaddexp(cut_RA / BETAS, aligned_RA / BETAS) * BETAS
    most_RA = np.where(BETAS > 1, together_RA, most_RA)  # a token that was cut may be in another's tail too
    is_empty_RA = np.isneginf(tail_RA)
    below_RA = np.where(np.isneginf(low_RA) & ~is_empty_RA, np.inf, _gap(tail_RA, low_RA))
    slack_R2A = np.maximum(np.stack([below_RA, _gap(most_RA, tail_RA)], 1), 0.0)
    return tail_RA, np.where(is_empty_RA, 0.0, slope_RA), slack_R2A


def _aligned(tails_MRA: Reals, slopes_MRA: Reals, log_weights_M11: Reals) -> tuple[Reals, Reals]:
    """(b log sum w_i |p_i|, its slope in b)."""
    norms_MRA = log_weights_M11 + tails_MRA / BETAS
    total_RA = np.logaddexp.reduce(norms_MRA, axis=0)
    shares_MRA = np.exp(_gap(norms_MRA, total_RA, empty=-np.inf))
    turns_MRA = slopes_MRA - np.where(np.isneginf(tails_MRA), 0.0, tails_MRA) / BETAS
    slope_RA = np.where(np.isneginf(total_RA), 0.0, total_RA) + (shares_MRA * turns_MRA).sum(0)
    return BETAS * total_RA, np.where(np.isneginf(total_RA), 0.0, slope_RA)


def _disjoint(tails_MRA: Reals, slopes_MRA: Reals, log_weights_M11: Reals) -> tuple[Reals, Reals]:
    """(log sum (w_i |p_i|)^b, its slope in b)."""
    powers_MRA = BETAS * log_weights_M11 + tails_MRA
    total_RA = np.logaddexp.reduce(powers_MRA, axis=0)
    shares_MRA = np.exp(_gap(powers_MRA, total_RA, empty=-np.inf))
    return total_RA, (shares_MRA * (log_weights_M11 + slopes_MRA)).sum(0)


def _feasible_share(aligned_RA: Reals, disjoint_RA: Reals, cut_RA: Reals, flat_RA: Reals) -> Reals:
    """How far towards disjoint a tail may lie, 0 to 1, without holding more at any T > 1 than evenly spread tokens would."""
    room_RA = _log(np.maximum(np.exp(flat_RA) - np.exp(cut_RA), 0.0))
    width_RA = _gap(disjoint_RA, aligned_RA)
    share_RA = np.where((width_RA > 0) & (BETAS < 1), _gap(room_RA, aligned_RA) / np.where(width_RA > 0, width_RA, 1.0), 1.0)
    return np.clip(share_RA.min(1), 0.0, 1.0)


def _least_tails(tails_MRA: Reals, union: _Union, caps_MR: Reals, top_k: int) -> Reals:
    """Each teacher's tail without the most that tokens of the union may hold of it: of the kept ones for b >= 1, where what is left and
    what was cut add up at least; of all of them for b < 1, where the two might be the same tokens."""
    mass_MR1 = _exp(tails_MRA[:, :, AT_ONE, None])
    num_MRA = np.where(BETAS < 1, (~union.stored_MRU).sum(-1)[..., None], (~union.stored_MRU[:, :, :top_k]).sum(-1)[..., None])
    caps_MR1 = caps_MR[..., None]
    by_cap_MRA = num_MRA * caps_MR1**BETAS
    spread_MRA = num_MRA ** np.maximum(1 - BETAS, 0.0) * mass_MR1**BETAS
    packed_MRA = mass_MR1 * caps_MR1 ** np.maximum(BETAS - 1, 0.0)
    taken_MRA = np.minimum(by_cap_MRA, np.where(BETAS < 1, spread_MRA, packed_MRA))
    return _log(np.maximum(np.exp(tails_MRA) - np.where(num_MRA > 0, taken_MRA, 0.0), 0.0))


def _log_powers(shares_RU: Reals) -> Reals:
    """log of the sum of x^b, [R, A], entries of 0 left out; -inf where there is none above 0."""
    logs_RU = _log(shares_RU)
    return _log(np.stack([np.exp(beta * logs_RU).sum(1) for beta in BETAS], 1))


def _slope_of_powers(shares_RU: Reals) -> Reals:
    """Mean of log x weighted by x^b, [R, A]; 0 where there is nothing."""
    logs_RU = np.where(shares_RU > 0, _log(shares_RU), 0.0)
    powers = [np.where(shares_RU > 0, shares_RU, 0.0) ** beta * (shares_RU > 0) for beta in BETAS]
    return np.stack([(power * logs_RU).sum(1) / np.maximum(power.sum(1), 1e-300) for power in powers], 1)


def _gap(high: Reals, low: Reals, *, empty: float = 0.0) -> Reals:
    """high - low; `empty` where either is -inf."""
    return np.where(
        np.isneginf(high) | np.isneginf(low), empty, np.where(np.isneginf(high), 0.0, high) - np.where(np.isneginf(low), 0.0, low)
    )


def _log_sum(parts: list[Reals]) -> Reals:
    return np.logaddexp.reduce(np.stack(parts), axis=0)


def _exp(logs: Reals) -> Reals:
    return np.exp(logs.astype(np.float64))


def _log(values: Reals) -> Reals:
    with np.errstate(divide="ignore"):
        return np.log(values)
