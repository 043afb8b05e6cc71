"""Which windows make a step, and how much of them is computed."""

import numpy as np
import pytest
import torch
from steps import capture_here, train_here

from distill_core import metrics
from distill_core.batches import Collate, Visits, grouped_by_length, to_tensors, window_lengths, without_idle_end
from distill_core.cache import open_cache
from distill_core.config import with_overrides


def test_grouping_keeps_every_window_and_brings_like_lengths_together():
    random = np.random.default_rng(0)
    order, lengths = random.permutation(403), random.integers(10, 200, 403)
    grouped = grouped_by_length(order, lengths, windows_per_step=8, random=random)
    assert sorted(grouped) == list(range(403))
    steps = grouped[:400].reshape(-1, 8)
    spread = np.mean([np.ptp(lengths[step]) for step in steps])
    assert spread < 0.1 * np.mean([np.ptp(lengths[step]) for step in order[:400].reshape(-1, 8)])
    assert np.any(np.diff(lengths[grouped]) < 0), "steps are not fed from short to long"
    assert set(grouped[:400]) == set(order[:400]), "what is read together stays together"


@pytest.mark.parametrize("num", [0, 1, 7])
def test_grouping_of_less_than_a_step(num):
    order = np.arange(num)
    lengths = np.arange(num)
    if num:
        assert sorted(grouped_by_length(order, lengths, windows_per_step=8, random=np.random.default_rng(0))) == list(range(num))


@pytest.fixture
def alone(small_cache, small_config):
    """A cache without packing: a window holds one document and padding."""
    config = with_overrides(small_config, {"text.packing": False, "capture.name": "alone"})
    capture_here(config)
    return config, open_cache("alone")


def test_what_comes_after_the_last_learned_token_is_not_computed(alone):
    config, cache = alone
    lengths = window_lengths(cache)
    assert len(lengths) == 24 and lengths.max() <= 64 and lengths.min() < 64
    rows = cache.rows("train", [0, 1])
    batch, whole = Collate(cache, config.loss)([0, 1]), to_tensors(rows)
    longest = int(max(lengths[:2]))
    assert batch["input_ids"].shape == (2, longest) and batch["labels"].shape == (2, longest - 1)
    for name in ("labels", "teacher_ids", "teacher_logprobs"):
        assert torch.equal(batch[name], whole[name][:, : longest - 1])
    rows["targets"][:] = False
    assert without_idle_end(rows)["input_ids"].shape == (2, 64), "nothing learned: left as it is"


def test_a_shorter_batch_teaches_the_same(alone, monkeypatch):
    """The same run, its windows cut and uncut: what was cut off had no part in the loss."""
    config, _ = alone
    config = with_overrides(config, {"train.max_steps": 3})
    cut = train_here(config, cache="alone")
    monkeypatch.setattr("distill_core.batches.without_idle_end", lambda rows: rows)
    uncut = train_here(config, cache="alone")
    for ours, theirs in zip(metrics.read(cut.metrics_path), metrics.read(uncut.metrics_path), strict=True):
        assert ours.get("loss", 0) == pytest.approx(theirs.get("loss", 0), rel=1e-5)
        assert ours.get("grad_norm", 0) == pytest.approx(theirs.get("grad_norm", 0), rel=1e-4)


def test_a_grouped_run_feeds_each_window_once_an_epoch(alone):
    _, cache = alone
    visits = Visits(cache, num_visits=48, seed=1, group_by_length=4)
    order = [visits[i] for i in range(48)]
    assert sorted(order[:24]) == sorted(order[24:]) == list(range(24)) and order[:24] != order[24:]
    lengths = window_lengths(cache)[order[:24]].reshape(-1, 4)
    assert np.mean(np.ptp(lengths, axis=1)) < np.ptp(lengths) / 2
