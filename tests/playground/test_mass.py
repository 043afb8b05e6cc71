"""The mass table and its advice, against the whole distribution."""

import made
import numpy as np
import pytest

from distill_core import playground
from distill_core.cache import ANCHORS


@pytest.fixture
def made_table(distill_home):
    _, truth = made.make("made", 24)
    shared = playground.open_shared("made")
    return shared.mass, truth


def true_mass(truth, temperature):
    """Mean over the sample's positions (all of the 20 training windows) of what the first 1, 2, … entries hold, from the dense truth."""
    logprobs = truth.logprobs_NPV[:20][truth.targets_NP[:20]]
    powers = -np.sort(-np.exp(logprobs / temperature), -1)
    return (powers / powers.sum(-1, keepdims=True)).mean(0).cumsum()[: made.K]


def test_the_table_against_the_truth(made_table):
    table, truth = made_table
    assert table.mass_TK.shape == (len(playground.TEMPERATURES), made.K)
    for temperature in table.temperatures:
        expected = true_mass(truth, temperature)
        assert table.at(temperature) == pytest.approx(expected, abs=1e-4 if temperature in ANCHORS else 5e-3)
        for k in (1, made.K):
            low, high = table.bound(temperature, k)
            assert low - 1e-4 <= expected[k - 1] <= high + 1e-4, "float16 entries are off by 1e-4"


def test_advice_against_counting(made_table):
    table, truth = made_table
    for temperature in (0.5, 1.0, 2.0):
        expected = true_mass(truth, temperature)
        for share in (0.3, 0.6, 0.9):
            counted = next((k for k in range(1, made.K + 1) if expected[k - 1] >= share), None)
            assert playground.smallest_k(table, temperature, share) == counted
    for k in (1, 4, made.K):
        fits = [t for t in table.temperatures if true_mass(truth, t)[k - 1] >= 0.5]
        assert playground.highest_temperature(table, k, 0.5) == (max(fits) if fits else None)


def test_by_hand():
    """Two positions, (3/4, 1/4) and (1/2, 1/2): one entry keeps 5/8 on average, two keep all."""
    logprobs = np.log(np.array([[0.75, 0.25], [0.5, 0.5]], np.float32))
    mass = playground.mass_of_top(logprobs, np.full(2, -np.inf, np.float32), 1.0)
    assert mass == pytest.approx([0.625, 1.0])
