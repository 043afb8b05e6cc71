"""The tail at any temperature, against the whole distribution."""

import numpy as np
import pytest

from distill_core.cache.tail import (
    ANCHORS,
    AT_ONE,
    bucket_logprobs,
    cut_to,
    kept_mass,
    log_partition,
    tail_at,
    tail_bracket,
    tail_mean_at,
    tail_mean_bracket,
)
from distill_core.errors import ConfigError

BETWEEN = [0.55, 0.7, 0.9, 1.1, 1.25, 1.5, 1.75, 2.5, 3.0, 5.0, 6.0, 7.5]


def anchors_of(rest):
    """What a cache stores of a tail [N, n]: log-sum-exps in float32, mean log-probabilities in float16."""
    powers = np.exp(rest[..., None] / np.array(ANCHORS))
    return np.log(powers.sum(-2)).astype(np.float32), ((powers * rest[..., None]).sum(-2) / powers.sum(-2)).astype(np.float16)


def logprobs_of(family, *, rows=100, vocab=5000, seed=0):
    dice = np.random.default_rng(seed)
    draws = {
        "gauss": lambda: dice.normal(size=(rows, vocab)) * 2.5,
        "peaks": lambda: np.where(np.arange(vocab) < 20, 9.0, 0.0) + dice.normal(size=(rows, vocab)) * 2.3,
        "student": lambda: dice.standard_t(6, size=(rows, vocab)) * 1.5,
        "gumbel": lambda: dice.gumbel(size=(rows, vocab)) * 1.2,
    }
    logits = draws[family]()
    logits = logits - logits.max(-1, keepdims=True)
    return np.sort(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), -1)[:, ::-1]


def distribution(family="gauss", *, top_k=50):
    logprobs = logprobs_of(family)
    head, rest = logprobs[:, :top_k], logprobs[:, top_k:]
    return logprobs, head.astype(np.float32), rest, *anchors_of(rest)


def test_by_hand():
    """Four equal tokens, one stored: at every T the tail is log(3 x (1/4)^(1/T)) and the kept mass 1/4."""
    lp = np.log(np.full((1, 1), 0.25, np.float32))
    values, slopes = anchors_of(np.log(np.full((1, 3), 0.25)))
    np.testing.assert_allclose(values[0], [np.log(3 * 0.25 ** (1 / T)) for T in ANCHORS], rtol=1e-6)
    np.testing.assert_allclose(slopes[0], np.log(0.25), rtol=1e-3)
    for T in (0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 5.5, 8.0):
        tail = tail_at(values, slopes, T)
        assert tail[0] == pytest.approx(np.log(3 * 0.25 ** (1 / T)), abs=3e-4), "the slope is rounded to float16"
        assert kept_mass(lp, tail, T)[0] == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("family", ["gauss", "peaks", "student", "gumbel"])
@pytest.mark.parametrize("temperature", sorted([*ANCHORS, *BETWEEN]))
def test_against_the_truth(family, temperature):
    """Kept mass within 0.004 and log-partition within a thousandth of a nat on average; the error bar holds every single position."""
    logprobs, head, rest, values, slopes = distribution(family)
    tempered = np.exp(logprobs / temperature)
    ours = tail_at(values, slopes, temperature)
    true_mass = tempered[:, :50].sum(-1) / tempered.sum(-1)
    assert np.abs(kept_mass(head, ours, temperature) - true_mass).mean() < (1e-6 if temperature in ANCHORS else 0.004)
    assert np.abs(log_partition(head, ours, temperature) - np.log(tempered.sum(-1))).mean() < 1e-3
    low, high = tail_bracket(values, slopes, temperature)
    true_tail = np.log(np.exp(rest / temperature).sum(-1))
    assert ((low <= true_tail) & (true_tail <= high)).all()
    assert (high - low).mean() < (1e-4 if temperature in ANCHORS else 0.25)


@pytest.mark.parametrize("temperature", BETWEEN)
def test_the_error_bar_is_narrower_than_tangents_and_chords(temperature):
    """The plain bracket of a convex function, from the same numbers, is wider at every temperature."""
    _, _, _, values, slopes = distribution()
    low, high = tail_bracket(values, slopes, temperature)
    left = max(i for i, anchor in enumerate(ANCHORS) if anchor < temperature)
    at, a, c = 1 / temperature, 1 / ANCHORS[left], 1 / ANCHORS[left + 1]
    chord = values[:, left] + (at - a) / (c - a) * (values[:, left + 1] - values[:, left])
    tangents = np.maximum(values[:, left] + (at - a) * slopes[:, left], values[:, left + 1] + (at - c) * slopes[:, left + 1])
    assert (high - low).mean() < 0.96 * (chord - tangents).mean()


def test_one_bucket_guess_is_far_worse():
    """What a cache without the stored tail would have to guess, at T = 2: (1 - kept mass)^(1/T). It is off by more than 0.1."""
    logprobs, head, _, values, _ = distribution()
    true = np.exp(logprobs / 2)[:, :50].sum(-1) / np.exp(logprobs / 2).sum(-1)
    assert np.abs(kept_mass(head, values[:, AT_ONE] / 2, 2.0) - true).mean() > 0.1


@pytest.mark.parametrize("temperature", [0.49, 8.1, -1.0, 0.0, float("nan")])
def test_outside_the_range_is_refused_with_the_range(temperature):
    for ask in (tail_at, tail_bracket):
        with pytest.raises(ConfigError, match=r"\[0.5, 8\]"):
            ask(np.zeros((1, len(ANCHORS)), np.float32), np.zeros((1, len(ANCHORS)), np.float16), temperature)


def test_no_tail_at_all():
    """The whole vocabulary is stored, or the position carries no distribution."""
    values, slopes = np.full((2, len(ANCHORS)), -np.inf, np.float32), np.zeros((2, len(ANCHORS)), np.float16)
    for T in (0.6, 3.0, 8.0):
        assert np.isneginf(tail_at(values, slopes, T)).all()
        assert np.isneginf(tail_bracket(values, slopes, T)).all()
        assert kept_mass(np.log(np.full((2, 4), 0.25, np.float32)), tail_at(values, slopes, T), T) == pytest.approx(1.0)


def test_buckets_sum_to_one():
    _, head, _, values, slopes = distribution()
    for T in (0.7, 1.0, 1.7, 4.0):
        entries, rest = bucket_logprobs(head, tail_at(values, slopes, T), T)
        assert np.exp(entries).sum(-1) + np.exp(rest) == pytest.approx(1.0, abs=1e-5)


def test_cutting_moves_mass_to_the_tail():
    """Fewer entries: the partition function does not change, the kept mass falls to that of the first ones."""
    logprobs, head, _, values, slopes = distribution()
    tail = tail_at(values, slopes, 2.0)
    fewer, more_tail = cut_to(head, tail, 2.0, top_k=7)
    assert fewer.shape == (100, 7)
    np.testing.assert_allclose(log_partition(fewer, more_tail, 2.0), log_partition(head, tail, 2.0), atol=1e-5)
    true = np.exp(logprobs / 2)[:, :7].sum(-1) / np.exp(logprobs / 2).sum(-1)
    np.testing.assert_allclose(kept_mass(fewer, more_tail, 2.0), true, atol=1e-5)


@pytest.mark.parametrize("family", ["gauss", "peaks", "student", "gumbel"])
@pytest.mark.parametrize("temperature", sorted([*ANCHORS, *BETWEEN]))
def test_the_tails_mean_log_probability(family, temperature):
    """Within a tenth of a nat on average between the anchors, and inside its bounds at every single position."""
    _, _, rest, values, slopes = distribution(family)
    powers = np.exp(rest / temperature)
    true_mean = (powers * rest).sum(-1) / powers.sum(-1)
    low, high = tail_mean_bracket(values, slopes, temperature)
    assert (low <= true_mean).all()
    assert (true_mean <= high).all()
    ours = tail_mean_at(values, slopes, temperature)
    assert np.abs(ours - true_mean).mean() < (0.01 if temperature in ANCHORS else 0.1)


def test_the_mean_of_an_empty_tail_is_zero():
    values, slopes = np.full((1, len(ANCHORS)), -np.inf, np.float32), np.zeros((1, len(ANCHORS)), np.float16)
    assert tail_mean_at(values, slopes, 1.5).tolist() == tail_mean_at(values, slopes, 2.0).tolist() == [0.0]
