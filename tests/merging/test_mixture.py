"""The mixture's arithmetic against distributions that are known token by token."""

import numpy as np
import pytest

from distill_core.cache.bounds import mixture_mass_bracket, mixture_tail_bracket
from distill_core.cache.tail import ANCHORS, AT_ONE, tail_at
from distill_core.merging.mixture import Told, mix

V, K, R = 40, 6, 64
TEMPERATURES = (*ANCHORS, 0.7, 1.2, 1.5, 3.0, 6.0)


def dense(kind, seed):
    """[R, V] log-probabilities: wide ones, near copies of each other, or almost all of the mass on one token."""
    dice = np.random.default_rng(seed)
    shared = np.random.default_rng(99).normal(size=(R, V)) * 2
    logits = {
        "unlike": dice.normal(size=(R, V)) * 3,
        "alike": shared + dice.normal(size=(R, V)) * 0.3,
        "sure": dice.normal(size=(R, V)) * 0.5 + 12 * np.eye(V)[dice.integers(0, V, R)],
        "flat": dice.normal(size=(R, V)) * 0.01,
    }[kind]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def log_powers(logprobs, temperature):
    return np.log(np.exp(logprobs / temperature).sum(-1))


def told(logprobs, gold, stored=K):
    """What a capture with `stored` entries keeps of it."""
    order = np.argsort(-logprobs, -1, kind="stable")
    top, rest = np.take_along_axis(logprobs, order[:, :stored], -1), np.take_along_axis(logprobs, order[:, stored:], -1)
    tail = np.stack([log_powers(rest, T) for T in ANCHORS], -1) if stored < V else np.full((len(logprobs), len(ANCHORS)), -np.inf)
    powers = np.stack([np.exp(rest / T) for T in ANCHORS], -1)
    mean = (powers * rest[..., None]).sum(1) / powers.sum(1) if stored < V else np.zeros_like(tail)
    entropy = -(np.exp(logprobs) * logprobs).sum(-1)
    return Told(order[:, :stored].astype(np.uint32), top, tail, mean, logprobs[np.arange(len(gold)), gold], entropy)


def mixed(kinds, weights, *, top_k=K, stored=K):
    teachers = [dense(kind, seed) for seed, kind in enumerate(kinds)]
    gold = np.random.default_rng(5).integers(0, V, R)
    weights = np.array(weights)
    truth = np.log(sum(weight * np.exp(teacher) for weight, teacher in zip(weights, teachers, strict=True)))
    return mix([told(teacher, gold, stored) for teacher in teachers], weights, top_k=top_k, vocab_size=V), truth, gold, teachers


CASES = [
    (["unlike", "unlike"], [0.5, 0.5]),
    (["alike", "alike"], [0.7, 0.3]),
    (["alike", "unlike", "sure"], [0.2, 0.5, 0.3]),
    (["sure", "flat"], [0.9, 0.1]),
    (["sure", "sure"], [0.01, 0.99]),
]


@pytest.mark.parametrize(("kinds", "weights"), CASES)
def test_entries_and_tail_sum_to_one_and_lack_no_more_than_they_say(kinds, weights):
    mixture, truth, gold, _ = mixed(kinds, weights)
    probabilities, exact = np.exp(mixture.logprobs_RK), np.exp(np.take_along_axis(truth, mixture.ids_RK.astype(int), 1))
    np.testing.assert_allclose(probabilities.sum(1) + np.exp(mixture.tail_RA[:, AT_ONE]), 1.0, rtol=1e-12)
    lacking = exact - probabilities
    assert (lacking > -1e-12).all()
    assert (lacking.sum(1) <= mixture.uncertain_R + 1e-12).all()
    assert (np.diff(mixture.logprobs_RK) <= 0).all()
    assert all(len(set(row)) == K for row in mixture.ids_RK.tolist())
    np.testing.assert_allclose(mixture.gold_R, truth[np.arange(R), gold], rtol=1e-12)


@pytest.mark.parametrize(("kinds", "weights"), CASES)
def test_an_entry_that_all_teachers_stored_is_exact(kinds, weights):
    mixture, truth, _, teachers = mixed(kinds, weights)
    found = 0
    for row in range(R):
        by_all = set.intersection(*(set(np.argsort(-teacher[row], kind="stable")[:K].tolist()) for teacher in teachers))
        for token, logprob in zip(mixture.ids_RK[row].tolist(), mixture.logprobs_RK[row], strict=True):
            if token in by_all:
                found += 1
                assert logprob == pytest.approx(truth[row, token], rel=1e-12)
    assert found


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("kinds", "weights"), CASES)
def test_the_truth_lies_inside_the_bounds_at_any_temperature(kinds, weights, temperature):
    mixture, truth, _, _ = mixed(kinds, weights)
    ids = mixture.ids_RK.astype(int)
    kept = np.take_along_axis(truth, ids, 1)
    outside = truth.copy()
    np.put_along_axis(outside, ids, -np.inf, 1)
    tail = log_powers(outside, temperature)
    low, high = mixture_tail_bracket(mixture.tail_RA, mixture.slack_R3A, temperature)
    assert (low <= tail).all()
    assert (tail <= high).all()
    stored = tail_at(mixture.tail_RA.astype(np.float32), mixture.tail_mean_RA.astype(np.float16), temperature)
    assert (low - 2e-3 <= stored).all()
    assert (stored <= high + 2e-3).all()
    head = log_powers(kept, temperature)
    mass = np.exp(head - np.logaddexp(head, tail))
    least, most = mixture_mass_bracket(mixture.logprobs_RK, mixture.tail_RA, mixture.slack_R3A, temperature, top_k=K)
    assert (least - 1e-9 <= mass).all()
    assert (mass <= most + 1e-9).all()
    least, most = mixture_mass_bracket(mixture.logprobs_RK, mixture.tail_RA, mixture.slack_R3A, temperature, top_k=2)
    mass = np.exp(log_powers(kept[:, :2], temperature) - np.logaddexp(head, tail))
    assert (least - 1e-9 <= mass).all()
    assert (mass <= most + 1e-9).all()


@pytest.mark.parametrize(("kinds", "weights"), CASES)
def test_the_entropy_lies_inside_its_bounds(kinds, weights):
    mixture, truth, _, teachers = mixed(kinds, weights)
    mean = sum(weight * -(np.exp(teacher) * teacher).sum(-1) for weight, teacher in zip(weights, teachers, strict=True))
    own = -sum(weight * np.log(weight) for weight in weights)
    assert (mean - 1e-12 <= mixture.entropy_R).all()
    assert (mixture.entropy_R <= mean + own + 1e-12).all()
    exact = -(np.exp(truth) * truth).sum(-1)
    assert np.abs(mixture.entropy_R - exact).mean() < 0.15


def test_a_teacher_mixed_with_itself_is_itself():
    teacher = dense("unlike", 0)
    gold = np.zeros(R, int)
    alone = told(teacher, gold)
    mixture = mix([alone, alone], np.array([0.3, 0.7]), top_k=K, vocab_size=V)
    np.testing.assert_array_equal(mixture.ids_RK, alone.ids_RI)
    np.testing.assert_allclose(mixture.logprobs_RK, alone.logprobs_RI, rtol=1e-12)
    np.testing.assert_allclose(mixture.tail_RA[:, AT_ONE], alone.tail_RA[:, AT_ONE], rtol=1e-12)
    assert mixture.uncertain_R.max() == 0
    assert mixture.slack_R3A[:, :, AT_ONE].max() < 1e-12
    assert (mixture.tail_RA - mixture.slack_R3A[:, 0] <= alone.tail_RA + 1e-9).all()


def test_a_whole_vocabulary_is_mixed_exactly():
    mixture, truth, _, _ = mixed(["unlike", "sure"], [0.4, 0.6], top_k=V, stored=V)
    np.testing.assert_allclose(mixture.logprobs_RK, np.take_along_axis(truth, mixture.ids_RK.astype(int), 1), rtol=1e-10)
    assert np.isneginf(mixture.tail_RA).all()
    assert mixture.slack_R3A.max() == 0
    assert (mixture.tail_mean_RA == 0).all()


def test_by_hand():
    """Two teachers of five tokens, two entries each: 0.5 (0.6, 0.3, …) and 0.5 (…, 0.2, 0.7)."""
    first = np.log(np.array([[0.6, 0.3, 0.06, 0.03, 0.01]]))
    second = np.log(np.array([[0.05, 0.2, 0.7, 0.04, 0.01]]))
    mixture = mix([told(first, [0], 2), told(second, [0], 2)], np.array([0.5, 0.5]), top_k=2, vocab_size=5)
    assert mixture.ids_RK.tolist() == [[2, 0]]
    np.testing.assert_allclose(np.exp(mixture.logprobs_RK), [[0.35, 0.3]])
    np.testing.assert_allclose(np.exp(mixture.tail_RA[0, AT_ONE]), 0.5 * 0.1 + 0.5 * 0.1 + 0.25)
    np.testing.assert_allclose(np.exp(mixture.gold_R), [0.325])
    np.testing.assert_allclose(mixture.uncertain_R, [0.5 * 0.1 + 0.5 * 0.1])  # each lacks one entry: at most its teacher's tail


def test_fewer_entries_than_stored_may_be_kept():
    wide, truth, _, _ = mixed(["alike", "alike"], [0.5, 0.5], top_k=3, stored=K)
    assert wide.ids_RK.shape == (R, 3)
    np.testing.assert_allclose(np.exp(wide.logprobs_RK).sum(1) + np.exp(wide.tail_RA[:, AT_ONE]), 1.0, rtol=1e-12)
    exact = np.exp(np.take_along_axis(truth, wide.ids_RK.astype(int), 1))
    assert ((exact - np.exp(wide.logprobs_RK)).sum(1) <= wide.uncertain_R + 1e-12).all()
