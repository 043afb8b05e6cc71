"""The comparison of techniques: its arithmetic by hand, what it refuses, and one whole comparison on the built-in teacher (slow)."""

import importlib
import math

import pytest

from distill_core.bench import techniques as bench
from distill_core.bench.techniques import Outcome, Pair, bench_techniques, half_width, row_of, techniques_table
from distill_core.errors import ConfigError
from distill_core.language import catalogue
from distill_core.techniques import TECHNIQUES


def test_half_width_by_hand():  # gains 1, 2, 3: s = 1, t(0.975, 2) = 4.3027
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3))
    assert half_width([1.0]) is None


def test_a_row_by_hand():
    plain, better, worse = Outcome(0.5, 10.0, 1.0), Outcome(0.4, 15.0, 1.5, before_s=3.0, more_bytes=200), Outcome(0.7, 25.0, 1.0)
    row = row_of("positions", bench.KL, [Pair(plain, better), Pair(plain, worse)])
    assert row["gains"] == pytest.approx([0.1, -0.2])
    assert row["gain"] == pytest.approx(-0.05)
    assert (row["time_ratio"], row["before_s"], row["more_disk_bytes"], row["more_memory_gib"]) == (2.0, 1.5, 100, 0.25)
    line = techniques_table([row]).splitlines()[-1]
    assert "| -0.0500 ± " in line and "| +256 MiB | × 2.00 | 2 s |" in line
    assert "± one seed" in techniques_table([row_of("positions", bench.KL, [Pair(plain, better)])])


def test_an_unknown_technique_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'positions'"):
        list(bench_techniques(["position"]))


def test_what_a_recipe_compares_is_said_in_portuguese_too():
    known = catalogue("pt")
    for name in TECHNIQUES:
        figure = getattr(importlib.import_module(f"distill_core.bench.recipes.{name}"), "FIGURE", bench.KL)
        assert figure in known, f"{name}: {figure!r} stands in the table of apps/techniques.py"
