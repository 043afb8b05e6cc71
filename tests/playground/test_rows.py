"""Rows and sentences of the playground: nothing counted twice, nothing left out, and every figure the one that was computed."""

import itertools
import re

import numpy as np
import pytest
import vl_convert

from distill_core import charts, pictures, playground
from distill_core.language import in_language
from distill_core.playground.exercise import lesson_block
from distill_core.playground.rows import CURVES

TAILS = ("bucket", "renormalize", "drop")


@pytest.fixture
def opened(small_cache):
    return playground.open_shared("small")


@pytest.fixture
def place(opened):
    return opened.window("train", 1).place(5)


@pytest.mark.parametrize("top_k", [1, 4, 10, 11, 20])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_bars_are_one_whole_belief(place, opened, top_k, temperature):
    rows = playground.belief_rows(place, opened, temperature=temperature, top_k=top_k)
    assert sum(row["p"] for row in rows) == pytest.approx(1, abs=1e-6)
    assert sum(row["at_one"] for row in rows) == pytest.approx(1, abs=1e-6)
    belief = playground.believe(place, temperature=temperature, top_k=top_k)
    assert sum(row["p"] for row in rows if row["part"] == "kept") == pytest.approx(belief.kept_mass, abs=1e-6)
    assert [row["part"] for row in rows[:10]] == ["kept"] * min(top_k, 10) + ["cut"] * (10 - min(top_k, 10))
    assert all(row["low"] <= row["p"] + 1e-12 and row["p"] <= row["high"] + 1e-12 for row in rows)
    assert len({row["label"] for row in rows}) == len(rows), "two tokens of one text are two bars"


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
@pytest.mark.parametrize("top_k", [3, 20])
def test_what_is_taught_sums_to_one_where_it_is_a_distribution(place, opened, divergence, top_k):
    belief = playground.believe(place, temperature=2.0, top_k=top_k)
    rows = playground.taught_rows(place, opened, belief, divergence=divergence)
    for tail in TAILS:
        own = [row for row in rows if row["mode"] == tail]
        assert sum(row["p"] for row in own) == pytest.approx(1, abs=1e-6)
        assert [row["rank"] for row in own] == sorted(row["rank"] for row in own)
    factors = {row["mode"]: row["p"] / row["teacher"] for row in rows if row["rank"] == 0}
    assert factors["bucket"] == pytest.approx(1)
    assert factors["renormalize"] == pytest.approx(1 / belief.kept_mass)
    said = playground.mode_words(belief, divergence=divergence)
    assert len(said) == 3
    if divergence == "forward_kl":
        assert f"{1 / belief.kept_mass:.2f} times" in said[1]
        assert f"{belief.kept_mass:.1%} of the strength" in said[2]


def test_curves_are_the_table(opened):
    rows = playground.mass_rows(opened.mass, temperature=1.2, top_k=7)
    for row in rows:
        if row["kind"] in ("curve", "chosen", "point", "name"):
            temperature = float(row["t"].removeprefix("T = "))
            assert row["mass"] == pytest.approx(opened.mass.at(temperature)[row["k"] - 1], abs=1e-5)
    assert {row["t"] for row in rows if row["kind"] == "chosen"} == {"T = 1.2"}
    (point,) = [row for row in rows if row["kind"] == "point"]
    assert point["k"] == 7


def flat(*levels):
    """A table whose curves are level lines, one for each temperature that is always drawn."""
    masses = np.repeat(np.array(levels)[:, None], 100, axis=1)
    return playground.MassTable(CURVES, masses, masses, masses, 1)


def test_only_curves_with_room_are_named():
    apart = flat(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
    named = [row["t"] for row in playground.mass_rows(apart, temperature=1.0, top_k=7) if row["kind"] == "name"]
    assert named == ["T = 0.5", "T = 1", "T = 1.5", "T = 2", "T = 3", "T = 4", "T = 8"]
    close = flat(0.9, 0.89, 0.7, 0.69, 0.68, 0.4, 0.38)
    named = [row["t"] for row in playground.mass_rows(close, temperature=1.0, top_k=7) if row["kind"] == "name"]
    assert named == ["T = 0.5", "T = 1.5", "T = 4"], "the upper one of those that run together"
    inside = flat(0.99, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
    assert "T = 0.5" not in [row["t"] for row in playground.mass_rows(inside, temperature=1.0, top_k=7) if row["kind"] == "name"]


def test_names_of_curves_never_touch(opened):
    """Any two are apart in height, or side by side: measured in the picture, as Vega draws it."""
    for temperature in (1.0, 1.2, 4.0):
        rows = playground.mass_rows(opened.mass, temperature=temperature, top_k=7)
        picture = vl_convert.vegalite_to_svg(charts.mass_chart(rows).to_dict() | {"width": 360}, vl_version="6.4")
        names = re.findall(r'transform="translate\(([-\d.]+),([-\d.]+)\)"[^>]*>T = [^<]*<', picture)
        places = [(float(x), float(y)) for x, y in names]
        assert len(places) == len(set(places)) >= 2
        for one, other in itertools.combinations(places, 2):
            assert abs(one[0] - other[0]) > 36 or abs(one[1] - other[1]) > 10, (temperature, one, other)


def test_advice_says_what_was_counted(opened):
    table = opened.mass
    words = playground.advice(table, temperature=1.0, top_k=5)
    low, high = table.bound(1.0, 5)
    assert f"keep {table.at(1.0)[4]:.2%}" in words[0] and f"between {low:.3%} and {high:.3%}" in words[0]
    smallest = playground.smallest_k(table, 1.0, 0.99)
    assert (f"is {smallest}." in words[1]) if smallest else ("No K of this cache" in words[1])
    hot = playground.advice(table, temperature=8.0, top_k=1)
    assert any("T loses too much" in sentence for sentence in hot)
    assert "No K of this cache keeps 99 % at T = 8: all 20 together" in hot[1]
    assert not any("smaller per million" in sentence for sentence in hot)


def test_verdicts():
    assert "nearly the same" in playground.verdict(0.995)
    assert "(bucket)" in playground.verdict(0.95)
    assert "loses too much" in playground.verdict(0.5)


def test_error_bars_are_never_shown_as_nothing(place):
    belief = playground.believe(place, temperature=1.0, top_k=5)
    shown = playground.belief_facts(belief, place)
    assert shown[1][0].endswith("± 0.01%")
    assert shown[2][0].endswith("± 0.01")


def test_charts_draw_these_rows(place, opened):
    """Vega itself finds faults that a schema check passes; every token's label is in the picture."""
    belief = playground.believe(place, temperature=2.0, top_k=12)
    of_belief = playground.belief_rows(place, opened, temperature=2.0, top_k=12)
    drawn = {
        charts.belief_chart: of_belief,
        charts.taught_chart: playground.taught_rows(place, opened, belief, divergence="forward_kl"),
        charts.mass_chart: playground.mass_rows(opened.mass, temperature=2.0, top_k=12),
    }
    for make, rows in drawn.items():
        for given in (rows, []):
            spec = make(given).to_dict() | {"width": 400}
            assert spec["title"]["text"][-1].endswith("?")
            picture = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
            if make is charts.belief_chart and given:
                heights = {}
                for _, y, label in re.findall(r'transform="translate\(([-\d.]+),([-\d.]+)\)"[^>]*>([^<]*)<', picture):
                    heights[label] = float(y)
                order = [row["label"].replace("'", "&#39;").replace('"', "&quot;") for row in rows]
                placed = [heights[label] for label in order if label in heights]
                assert len(placed) >= 10
                assert placed == sorted(placed), "bars stand in the order of their rank, not of the alphabet"


def test_in_portuguese(place, opened):
    say = in_language("pt")
    belief = playground.believe(place, temperature=1.0, top_k=5)
    assert "massa guardada" in playground.belief_facts(belief, place, say=say)[0][1]
    assert playground.belief_rows(place, opened, temperature=1.0, top_k=5, say=say)[-1]["label"] == "todos os outros tokens"
    assert "Exercício" in lesson_block(say)
    assert "<details>" in lesson_block(say), "the answer is hidden"


def test_pictures_send_rows_and_make_no_chart_anew(opened):
    frames = pictures.Pictures([pictures.picture(charts.mass_chart(), "kept-mass")], owner="small")
    before = frames.pictures
    frames.show(**{"kept-mass": [{"k": 1}]})
    assert frames.rows == {"kept-mass": [{"k": 1}]}
    assert frames.pictures is before
    assert frames.pictures[0]["spec"]["datasets"]["live"] == []
