"""Charts: valid with and without rows, honest about limits, told apart without colour."""

import json

import pytest
import vl_convert

from distill_core import charts

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


def drawn(chart) -> str:
    """The chart as SVG: Vega itself finds faults that a schema check passes."""
    spec = chart.to_dict()
    spec["width"] = 300
    return vl_convert.vegalite_to_svg(spec, vl_version="6.4")


@pytest.mark.parametrize("make", LIVE_CHARTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("rows", [[], [ROW, LOOK]], ids=["empty", "rows"])
def test_training_charts_draw(make, rows):
    assert make([dict(row, step=step, windows=step) for step in (1, 2) for row in rows]).to_dict()["title"]["text"].endswith("?")
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
    assert chart.to_dict()["title"]["text"].endswith("?")
    assert drawn(chart).startswith("<svg")


def test_a_far_limit_is_said_and_a_near_one_is_drawn():
    far = charts.memory_chart([ROW], predicted_gib=0.5, limit_gib=80)
    assert "80.0 GiB" in far.to_dict()["title"]["subtitle"]
    assert "limit of this device: 1.0 GiB" in drawn(charts.memory_chart([ROW], predicted_gib=0.5, limit_gib=1.0))
    assert "planned: 0.50 GiB" in drawn(far)
    assert "far to the right" in charts.plan_chart(PLAN, limit_gib=400).to_dict()["title"]["subtitle"]
    assert "Dashed line" in charts.plan_chart(PLAN, limit_gib=4).to_dict()["title"]["subtitle"]


def test_one_spike_is_seen():
    rows = [dict(ROW, step=step, peak_memory_gib=9.0 if step == 50 else 1.0) for step in range(1, 100)]
    assert ">8<" in drawn(charts.memory_chart(rows)), "the axis must reach the spike"


def test_an_unknown_measure_is_refused():
    with pytest.raises(KeyError):
        charts.judge_chart(JUDGED, measure="beauty")
