"""Charts and HTML of the page on runs: told apart without colour, names readable, nothing from outside unescaped."""

from typing import get_args

import pytest
import vl_convert

from distill_core.charts.comparison import COLORS, DASHES, PICTURES, overlay_chart, run_styles, short_names, spread_apart
from distill_core.charts.saving import saved
from distill_core.comparison import Deletion, views
from distill_core.runs import Kind

ROWS = [
    {"run": run, "step": step, "loss": 1.0 / step, "heldout_kl": 0.5, "peak_memory_gib": 0.7, "heldout_nll": 1.0}
    for run in ("a", "b<script>")
    for step in (1, 2, 3)
]


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("rows", [[], ROWS], ids=["empty", "rows"])
def test_overlays_draw(picture, rows):
    drawn = saved(overlay_chart(rows, picture=picture), "svg").decode()
    assert drawn.startswith("<svg")
    assert rows == [] or (">a<" in drawn and "<script>" not in drawn)


def test_a_saved_png_is_one():
    assert saved(overlay_chart(ROWS), "png")[:8] == b"\x89PNG\r\n\x1a\n"
    assert vl_convert.__version__


def test_runs_differ_in_colour_and_dash_and_past_seven_in_one_of_them():
    names = [f"run-{place}" for place in range(21)]
    styles = [(color, tuple(dash)) for color, dash in run_styles(names).values()]
    assert len(set(styles)) == 21
    first = styles[: len(COLORS)]
    assert len({color for color, _ in first}) == len({dash for _, dash in first}) == len(COLORS) == len(DASHES)


def test_long_names_are_shortened_only_where_that_keeps_them_apart():
    short = short_names(["s1", "20261130-205340-train-ab12", "20261130-205340-train-cd34"])
    assert short["s1"] == "s1"
    assert short["20261130-205340-train-ab12"] == "20261130-…ain-ab12"
    same = ["x" * 30 + "12345678" + end for end in ("", "")]
    assert len(set(short_names(["a" * 12 + "1" + "z" * 9, "a" * 12 + "2" + "z" * 9]).values())) == 2
    assert short_names(same)


def test_labels_that_would_touch_move_apart_in_order():
    assert spread_apart([1.0, 1.0, 5.0], 0.5) == [1.0, 1.5, 5.0]
    assert spread_apart([3.0, 1.0, 1.2], 1.0) == [3.0, 1.0, 2.0]
    assert spread_apart([], 1.0) == []


def test_words_before_deleting():
    cache = Deletion("cache", "mine", 2_000_000_000, ("s", "t"))
    run = Deletion("run", "s", 500_000_000)
    busy = Deletion("run", "b", 1, (), "run b is running: stop it first")
    said = views.deletion_words([cache, run, busy])
    assert said[0] == "2.5 GB come back: mine, s."
    assert said[1].startswith("Cache mine: s, t learned from it.")
    assert said[2] == "Not deleted: run b is running: stop it first."
    assert views.deletion_words([]) == []
    text = Deletion("text", "more", 10, ("c",))
    assert views.deletion_words([text])[1] == "Text more: c read it, and could not read it again."


def test_every_kind_of_run_has_its_word():
    """A kind without one would take the page down with it."""
    assert set(views.KINDS) == {*get_args(Kind), "cache"}


def test_names_from_outside_are_escaped():
    bad = "<script>x</script>"
    pieces = [
        views.legend([bad]),
        views.difference_table([{"setting": bad, bad: bad, "b": 1}], [bad, "b"]),
        views.samples([bad], [{"who": bad, "samples": [bad]}]),
        views.quality_table([{"run": bad, "measured": "judged"}, {"run": None, "cache": bad, "measured": "judged"}]),
        views.links({bad: f"?run={bad}"}),
        views.at_work([{"id": bad, "state": "running", "done": 1, "total": 2}]),
    ]
    assert all("<script>" not in piece for piece in pieces)


def test_csv_has_every_figure():
    rows = [{"id": "a", "kind": "train", "bits_per_byte": 0.123456789}, {"id": "c", "kind": "cache", "num_windows": 3}]
    lines = views.csv_of(rows).decode().splitlines()
    assert lines[1] == "a,train,0.123456789,"
    assert views.csv_of([]) == b""
