"""Charts: valid with and without rows, honest about limits, told apart without colour."""

import json
import re

import pytest
import vl_convert

from distill_core import charts
from distill_core.charts import memory
from distill_core.charts.comparison import PICTURES, overlay_chart
from distill_core.language import in_language

ROW = {"run": "student", "step": 1, "loss": 2.0, "kl": 1.0, "ce": 2.5, "floor": 0.0, "teacher_nll": 0.7}
ROW |= {
    "top1_agreement": 0.5,
    "grad_norm": 1.5,
    "memory_gib": 0.4,
    "peak_memory_gib": 0.5,
    "windows": 8,
    "kept_mass": 0.9,
    "tokens_per_s": 100.0,
}
LOOK = {"run": "student", "step": 1, "heldout_bits_per_byte": 0.5, "heldout_kl": 0.4, "heldout_top1_agreement": 0.7}
LIVE_CHARTS = [
    charts.loss_chart,
    charts.memory_chart,
    charts.agreement_chart,
    charts.gradient_chart,
    charts.heldout_chart,
    charts.capture_chart,
    charts.speed_chart,
]
PLAN = [{"mode": mode, "part": part, "gib": 0.5} for mode in ("online", "offline fused") for part in charts.PART_COLORS]
JUDGED = [{"who": who, "bits_per_byte": 1.0, "kl_to_teacher": 0.1, "top1_agreement": 0.5} for who in charts.WHO_COLORS]


def title(spec, part="text") -> str:
    """Its lines as one."""
    return " ".join([spec["title"][part]] if isinstance(spec["title"][part], str) else spec["title"][part])


def drawn(chart) -> str:
    """The chart as SVG: Vega itself finds faults that a schema check passes."""
    spec = chart.to_dict()
    spec["width"] = 300
    return vl_convert.vegalite_to_svg(spec, vl_version="6.4")


@pytest.mark.parametrize("make", LIVE_CHARTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("rows", [[], [ROW, LOOK]], ids=["empty", "rows"])
def test_training_charts_draw(make, rows):
    assert title(make([dict(row, step=step, windows=step) for step in (1, 2) for row in rows]).to_dict()).endswith("?")
    assert drawn(make(rows)).startswith("<svg")


@pytest.mark.parametrize("make", LIVE_CHARTS, ids=lambda make: make.__name__)
def test_live_specs_start_empty_and_read_the_live_source(make):
    spec = charts.spec(make())
    assert spec["datasets"]["live"] == []
    assert '"name": "live"' in json.dumps(spec)
    assert spec["config"]["autosize"]["resize"] is True, "axis titles are cut off without it"


@pytest.mark.parametrize(
    "chart",
    [
        charts.kept_mass_chart(),
        charts.kept_mass_chart([{"temperature": t, "kept_mass": 1 - 0.1 * t} for t in (1, 2)], temperature=2),
        charts.plan_chart(),
        charts.plan_chart(PLAN, limit_gib=4),
        *(charts.judge_chart(JUDGED, measure=measure) for measure in charts.JUDGE_QUESTIONS),
        charts.judge_chart([]),
    ],
)
def test_other_charts_draw(chart):
    assert title(chart.to_dict()).endswith("?")
    assert drawn(chart).startswith("<svg")


def test_a_far_limit_is_said_and_a_near_one_is_drawn():
    far = charts.memory_chart([ROW], predicted_gib=0.5, limit_gib=80)
    assert "80.0 GiB" in title(far.to_dict(), "subtitle")
    assert "limit of this device: 1.0 GiB" in drawn(charts.memory_chart([ROW], predicted_gib=0.5, limit_gib=1.0))
    assert "planned: 0.50 GiB" in drawn(far)
    assert "far to the right" in title(charts.plan_chart(PLAN, limit_gib=400).to_dict(), "subtitle")
    assert "Dashed line" in title(charts.plan_chart(PLAN, limit_gib=4).to_dict(), "subtitle")


def test_one_spike_is_seen():
    rows = [dict(ROW, step=step, peak_memory_gib=9.0 if step == 50 else 1.0) for step in range(1, 100)]
    assert ">8<" in drawn(charts.memory_chart(rows)), "the axis must reach the spike"


def test_an_unknown_measure_is_refused():
    with pytest.raises(KeyError):
        charts.judge_chart(JUDGED, measure="beauty")


def test_portuguese_charts_write_numbers_with_a_comma():
    """On the axes, beside the bars, in labels that are words, and in the config that the browser formats tooltips by."""
    say = in_language("pt")
    made = [
        charts.plan_chart(PLAN, limit_gib=1.5, say=say),
        charts.loss_chart([dict(ROW, step=step) for step in (1, 2)], say=say),
        charts.memory_chart([dict(ROW, step=step) for step in (1, 2)], predicted_gib=0.5, limit_gib=1.0, say=say),
        charts.judge_chart(JUDGED, say=say),
        charts.kept_mass_chart([{"temperature": t, "kept_mass": 1 - 0.003 * t} for t in (1, 1.5)], temperature=1.5, say=say),
        overlay_chart([{"run": "a", "step": step, "loss": 0.1 * step} for step in (1, 2)], say=say),
        memory.memory_chart(
            [{"window_tokens": 2048, "mode": "online", "part": "gradients", "gib": 1.25}], mode="online", top_gib=1.5, say=say
        ),
        charts.belief_chart([{"label": "a", "rank": 0, "part": "kept", "p": 0.012, "low": 0, "high": 0, "at_one": 0.012}], say=say),
        charts.taught_chart([{"label": "a", "rank": 0, "mode": "drop", "p": 0.012, "teacher": 0.01}], say=say),
        charts.mass_chart([{"kind": "curve", "t": "T = 1", "k": k, "mass": 0.5} for k in (1, 2)], say=say),
    ]
    english = charts.plan_chart().to_dict()["config"]
    for chart in made:
        assert chart.to_dict()["config"]["locale"]["number"]["decimal"] == ","
        assert not re.search(r">[^<]*\d\.\d[^<]*<", re.sub(r"<style.*?</style>", "", drawn(chart))), chart.to_dict()["title"]
        assert {**chart.to_dict()["config"], "locale": None} == {**charts.plan_chart().to_dict()["config"], "locale": None}, (
            "looks the same"
        )
    assert "locale" not in english, "English is Vega's own"
    assert sum(bool(re.search(r">[^<]*\d,\d[^<]*<", drawn(chart))) for chart in made[:8]) == 8
    assert "2\u202f048" in drawn(made[6])


@pytest.mark.parametrize("code", ["en", "pt"])
def test_titles_are_in_lines_that_a_phone_shows_whole(code):
    """Measured in the picture of a chart 310 wide, with the letters' mean widths that figures.js takes."""
    say = in_language(code)
    made = [
        charts.kept_mass_chart(say=say),
        charts.plan_chart(PLAN, limit_gib=400, say=say),
        *(charts.judge_chart(JUDGED, measure=measure, say=say) for measure in charts.JUDGE_QUESTIONS),
        *(overlay_chart([], picture=name, say=say) for name in PICTURES),
        *(memory.memory_chart([], mode=mode, top_gib=1.0, say=say) for mode in memory.QUESTIONS),
    ]
    for chart in made:
        shown = chart.to_dict()["title"]
        for part, letter in (("text", 7.4), ("subtitle", 6.0)):
            lines = [shown.get(part, "")] if isinstance(shown.get(part, ""), str) else shown[part]
            assert all(len(line) * letter <= 315 for line in lines), lines


@pytest.mark.parametrize("limit_gib", [4.0, 400.0])
def test_the_plan_of_a_phone_shows_its_sums_whole(limit_gib):
    picture = vl_convert.vegalite_to_svg(charts.plan_chart(PLAN, limit_gib=limit_gib).to_dict() | {"width": 310}, vl_version="6.4")
    places = re.findall(r'transform="translate\(([\d.]+),[\d.]+\)"[^>]*>3.50 GiB<', picture)
    left = float(re.search(r'transform="translate\(([\d.]+),[\d.]+\)"', picture)[1])
    assert len(places) == 2 and all(left + float(x) + 8 * 6.2 <= 310 for x in places), "8 letters of 11 points"


def test_a_loss_that_is_the_kl_alone_draws_no_second_line_under_it():
    def fields(chart):
        return json.dumps(charts.spec(chart))

    assert '"total"' in fields(charts.loss_chart()).replace('\\"', '"')
    alone = fields(charts.loss_chart(has_total=False)).replace('\\"', '"')
    assert '"total"' not in alone
    assert "KL to teacher" in alone
