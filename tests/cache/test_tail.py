"""The tail at any temperature, against the whole distribution."""

import numpy as np
import pytest

from distill_core.cache.tail import ANCHORS, bucket_logprobs, cut_to, kept_mass, log_partition, tail_at
from distill_core.errors import ConfigError


def distribution(*, rows=200, vocab=5000, top_k=50, spread=2.5, seed=0):
    logits = np.random.default_rng(seed).normal(size=(rows, vocab)) * spread
    logprobs = np.sort(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), -1)[:, ::-1]
    head, rest = logprobs[:, :top_k], logprobs[:, top_k:]
    anchors = np.stack([np.log(np.exp(rest / T).sum(-1)) for T in ANCHORS], -1)
    return logprobs, head.astype(np.float32), rest, anchors.astype(np.float32)


def test_by_hand():
    """Four equal tokens, one stored: at every T the tail is log(3 x (1/4)^(1/T)) and the kept mass 1/4."""
    lp = np.log(np.full((1, 1), 0.25, np.float32))
    anchors = np.array([[np.log(3 * 0.25 ** (1 / T)) for T in ANCHORS]], np.float32)
    for T in (1.0, 1.3, 2.0, 3.0, 5.5, 8.0):
        tail = tail_at(anchors, T, num_tail_tokens=3)
        assert tail[0] == pytest.approx(np.log(3 * 0.25 ** (1 / T)), abs=1e-6)
        assert kept_mass(lp, tail, T)[0] == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0])
def test_kept_mass_against_the_truth(temperature):
    logprobs, head, _, anchors = distribution()
    tempered = np.exp(logprobs / temperature)
    true = tempered[:, :50].sum(-1) / tempered.sum(-1)
    ours = kept_mass(head, tail_at(anchors, temperature, num_tail_tokens=4950), temperature)
    assert np.abs(ours - true).mean() < (1e-6 if temperature in ANCHORS else 0.004)


def test_one_bucket_guess_is_far_worse():
    """What a cache without the stored tail would have to guess, at T = 2: (1 - kept mass)^(1/T). It is off by more than 0.1."""
    logprobs, head, rest, _ = distribution()
    guess = np.log(np.exp(rest).sum(-1)) / 2
    true = np.exp(logprobs / 2)[:, :50].sum(-1) / np.exp(logprobs / 2).sum(-1)
    assert np.abs(kept_mass(head, guess.astype(np.float32), 2.0) - true).mean() > 0.1


@pytest.mark.parametrize("temperature", [0.5, 0.99, 8.1, -1.0])
def test_outside_the_range_is_refused_with_the_range(temperature):
    with pytest.raises(ConfigError, match=r"\[1, 8\]"):
        tail_at(np.zeros((1, 3), np.float32), temperature, num_tail_tokens=3)


def test_no_tail_at_all():
    tail = tail_at(np.full((2, 3), -np.inf, np.float32), 3.0, num_tail_tokens=0)
    assert np.isneginf(tail).all()
    assert kept_mass(np.log(np.full((2, 4), 0.25, np.float32)), tail, 3.0) == pytest.approx(1.0)


def test_buckets_sum_to_one():
    _, head, _, anchors = distribution()
    for T in (1.0, 1.7, 4.0):
        entries, rest = bucket_logprobs(head, tail_at(anchors, T, num_tail_tokens=4950), T)
        assert np.exp(entries).sum(-1) + np.exp(rest) == pytest.approx(1.0, abs=1e-5)


def test_cutting_moves_mass_to_the_tail():
    """Fewer entries: the partition function does not change, the kept mass falls to that of the first ones."""
    logprobs, head, _, anchors = distribution()
    tail = tail_at(anchors, 2.0, num_tail_tokens=4950)
    fewer, more_tail = cut_to(head, tail, 2.0, top_k=7)
    assert fewer.shape == (200, 7)
    np.testing.assert_allclose(log_partition(fewer, more_tail, 2.0), log_partition(head, tail, 2.0), atol=1e-5)
    true = np.exp(logprobs / 2)[:, :7].sum(-1) / np.exp(logprobs / 2).sum(-1)
    np.testing.assert_allclose(kept_mass(fewer, more_tail, 2.0), true, atol=1e-5)
