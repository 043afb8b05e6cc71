"""The verdict over seeds, by hand-worked values."""

import math

import numpy as np
import pytest
from made_runs import judged, made

from distill_core.comparison import Gain, Pair, t_interval, verdict_over_seeds, verdicts
from distill_core.comparison.verdicts import t_975
from distill_core.runs import list_runs


def pairs(kl, bits):
    return [Pair(seed, f"s{seed}", f"t{seed}", {"kl_to_teacher": k, "bits_per_byte": b}) for seed, (k, b) in enumerate(zip(kl, bits))]


def test_interval_by_hand():
    """0.1, 0.2, 0.3: mean 0.2, s = 0.1, t(0.975, 2) = 4.3027: half a width of 4.3027 x 0.1 / sqrt(3) = 0.24841."""
    gain = t_interval([0.1, 0.2, 0.3])
    assert gain.mean == pytest.approx(0.2)
    assert gain.low == pytest.approx(0.2 - 0.248416, abs=1e-5)
    assert gain.high == pytest.approx(0.2 + 0.248416, abs=1e-5)
    same = t_interval([0.5, 0.5])
    assert (same.low, same.high) == (0.5, 0.5)


@pytest.mark.parametrize("degrees", [1, 2, 3, 10, 29, 30, 31, 60, 500])
def test_the_quantile_leaves_a_fortieth_above_it(degrees):
    """Student's density, integrated numerically up to the quantile: 0.975."""
    x = np.linspace(0, t_975(degrees), 200_001)
    log_density = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    area = np.trapezoid(np.exp(log_density - (degrees + 1) / 2 * np.log1p(x**2 / degrees)), x)
    assert 0.5 + area == pytest.approx(0.975, abs=1e-5)


@pytest.mark.parametrize(
    ("kl", "bits", "word"),
    [
        ([0.10, 0.11, 0.12], [0.050, 0.051, 0.052], "BEATS"),
        ([-0.10, -0.11, -0.12], [-0.050, -0.051, -0.052], "WORSE"),
        ([0.10, 0.11, 0.12], [-0.050, -0.051, -0.052], "MIXED"),
        ([0.10, 0.11, 0.12], [-0.01, 0.0, 0.01], "NO DIFFERENCE"),
        ([0.10, 0.11, 0.12], [0.001, 0.1, 0.2], "NO DIFFERENCE"),  # 0.100 ± 0.247
        ([0.1, 0.2], [0.1, 0.2], "NO DIFFERENCE"),  # two seeds: 0.15 ± 12.7 x 0.0707 / sqrt(2)
    ],
)
def test_words(kl, bits, word):
    verdict = verdict_over_seeds(pairs(kl, bits))
    assert verdict.word == word
    assert verdict.spread == "seeds"
    assert word in verdict.to_text()
    assert f"{len(kl)} seeds, paired by seed" in verdict.to_text()


def test_pairing_counts_the_difference_within_a_seed():
    """Seeds that differ far more than student and twin do: unpaired nothing could be said, paired the gain is clear."""
    for seed, level in enumerate((0.3, 0.9, 2.1)):
        made(f"s{seed}", seed=seed, bits=level, kl=level)
        made(f"t{seed}", seed=seed, hard=True, bits=level + 0.10 + 0.001 * seed, kl=level + 0.20 + 0.001 * seed)
    (verdict,) = verdicts(list_runs())
    assert verdict.word == "BEATS"
    assert [(pair.seed, pair.student, pair.twin) for pair in verdict.pairs] == [(0, "s0", "t0"), (1, "s1", "t1"), (2, "s2", "t2")]
    assert verdict.gains["kl_to_teacher"].mean == pytest.approx(0.201)
    assert verdict.gains["bits_per_byte"].mean == pytest.approx(0.101)


def test_one_seed_takes_the_windows_of_its_judging_and_says_so():
    student, twin = made("s", bits=0.4, kl=0.5), made("t", hard=True, bits=0.5, kl=0.7)
    (unknown,) = verdicts([student])
    assert unknown.word == "UNKNOWN"
    assert "evaluate s --baseline t" in unknown.to_text()
    judged(student, twin, gains={"kl": [0.2, 0.1, 0.3], "bits": [0.1, 0.05, 0.15]})
    (verdict,) = verdicts([student])
    assert verdict.word == "BEATS"
    assert verdict.spread == "windows"
    assert verdict.gains["bits_per_byte"] == Gain(0.1, 0.05, 0.15)
    assert "another seed may differ by more" in verdict.to_text()


def test_unfinished_and_missing_twins_make_no_pair():
    student = made("s", bits=0.4, kl=0.5)
    made("t", hard=True, bits=0.5, kl=0.7, state="stopped"), made("other", hard=True, seed=1, bits=0.5, kl=0.7)
    (verdict,) = verdicts([student])
    assert (verdict.word, verdict.pairs) == ("UNKNOWN", ())
    assert "--twin" in verdict.to_text()
    assert verdicts([]) == []


def test_each_group_has_its_own_verdict_named_by_what_tells_it_apart():
    for seed in (0, 1, 2):
        made(f"s{seed}", seed=seed, bits=1.0, kl=1.0), made(f"t{seed}", seed=seed, hard=True, bits=1.1 + seed / 1000, kl=1.2)
        made(f"hot{seed}", seed=seed, loss__temperature=2.0, bits=3.0, kl=3.0)
        made(f"hott{seed}", seed=seed, hard=True, loss__temperature=2.0, bits=1.1, kl=1.2 + seed / 1000)
    found = {verdict.name: verdict.word for verdict in verdicts(list_runs())}
    assert found == {"loss.temperature 2.0": "WORSE", "loss.temperature 1.0": "BEATS"}
