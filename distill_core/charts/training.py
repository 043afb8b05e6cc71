"""Training and capture, live or after: rows of metrics.jsonl, or LIVE, a data source that panel.py fills."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from ..language import ENGLISH, Say
from .style import BLUE, GREEN, GREY, LIVE, PURPLE, VERMILION, Rows, data_of, styled

Parts = dict[str, tuple[str, str, list[int], float]]
"""Field of a row -> (label, colour, dash, width)."""
WHEEL = "wheel![event.ctrlKey || event.metaKey]"
DRAG = "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!"


def _zoom(name: str) -> alt.Parameter:
    """Zoom and move along x only with a key held down, so that the page still scrolls over a chart, also under a finger."""
    return alt.selection_interval(name=name, encodings=["x"], bind="scales", zoom=WHEEL, translate=DRAG)


def _x(field: str, title: str) -> alt.X:
    """Whole numbers from the first row to the last."""
    axis = alt.Axis(tickMinStep=1, tickCount=7, grid=False, format="~s")
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(nice=False, padding=6), axis=axis)


def _hover(data: Any, x: str, tooltip: list[alt.Tooltip], transforms: Iterable[str]) -> alt.Chart:
    """An upright line at the nearest row, with that row's figures as tooltip."""
    near = alt.selection_point(name="near", nearest=True, on="pointerover", clear="pointerout", encodings=["x"], empty=False)
    rule = alt.Chart(data).mark_rule(color=GREY, strokeWidth=1)
    for test in transforms:
        rule = rule.transform_filter(test)
    return rule.encode(x=f"{x}:Q", opacity=alt.condition(near, alt.value(0.8), alt.value(0)), tooltip=tooltip).add_params(near)


def _lines(
    rows: Rows,
    x: str,
    x_title: str,
    y_title: str,
    parts: Parts,
    *,
    y_zero: bool,
    y_format: str = "",
    y_log: bool = False,
    constants: Mapping[str, float] | None = None,
) -> Any:
    """Several fields of a row as lines over `x`. constants: fields that no row has. y_log leaves out what is not above 0."""
    fields = list(parts)
    fixed = {field: str(value) for field, value in (constants or {}).items()}
    names = json.dumps({field: label for field, (label, *_) in parts.items()}) + "[datum.label]"
    shown = "datum.run == shown"
    data = data_of(rows)
    legend = alt.Legend(labelExpr=names) if len(parts) > 1 else None
    lines = (
        alt.Chart(data)
        .transform_filter(shown)
        .transform_filter(f"isValid(datum.{fields[0]})")
        .transform_calculate(**fixed)
        .transform_fold([*fields], as_=["part", "value"])
        .transform_filter("datum.value > 0" if y_log else "isValid(datum.value)")
        .mark_line(interpolate="linear", clip=True)
        .encode(
            x=_x(x, x_title),
            y=alt.Y(
                "value:Q",
                title=y_title,
                scale=alt.Scale(type="log") if y_log else alt.Scale(zero=y_zero),
                axis=alt.Axis(tickCount=2 if y_log else 5, format=y_format.replace(".2%", "~%") if y_format[-1:] in ("%", "s") else "~g"),
            ),
            color=alt.Color(
                "part:N", scale=alt.Scale(domain=fields, range=[color for _, color, *_ in parts.values()]), legend=legend, sort=fields
            ),
            strokeDash=alt.StrokeDash(
                "part:N", scale=alt.Scale(domain=fields, range=[dash for *_, dash, _ in parts.values()]), legend=legend, sort=fields
            ),
            strokeWidth=alt.StrokeWidth(
                "part:N", scale=alt.Scale(domain=fields, range=[width for *_, width in parts.values()]), legend=None
            ),
        )
        .add_params(_zoom("zoom"))
    )
    tooltip = [alt.Tooltip(f"{x}:Q", title=x_title)]
    tooltip += [
        alt.Tooltip(f"{field}:Q", title=label, format=y_format or ".4f") for field, (label, *_) in parts.items() if field not in fixed
    ]
    return lines, _hover(data, x, tooltip, (shown, f"isValid(datum.{fields[0]})"))


def _with_shown(layers: Iterable[Any], shown: str) -> Any:
    return alt.layer(*layers).add_params(alt.param(name="shown", value=shown))


def loss_chart(rows: Rows = LIVE, *, run: str = "student", has_total: bool = True, say: Say = ENGLISH) -> Any:
    """Loss parts per trained token in nats, with the cache's floor and the teacher's own NLL as dashed lines of the part they bound.

    has_total: False where the total is the KL alone, so that its line would lie exactly under the KL's: the KL is the thick one then.
    """
    thick = BLUE if has_total else VERMILION
    total: Parts = {"loss": (say("total"), BLUE, [1, 0], 4.5)} if has_total else {}
    parts: Parts = total | {
        "kl": (say("KL to teacher"), VERMILION, [1, 0], 1.8 if has_total else 4.5),
        "ce": (say("cross-entropy on text"), GREEN, [1, 0], 1.8),
        "floor": (say("floor: lowest possible"), thick, [6, 4], 1.5),
        "teacher_nll": (say("teacher's cross-entropy"), GREEN, [6, 4], 1.5),
    }
    layers = _lines(rows, "step", say("step"), say("nats per token"), parts, y_zero=True, y_format=".3~f")
    return styled(_with_shown(layers, run), say("Is the student getting closer to the teacher?"), say=say)


def memory_chart(
    rows: Rows = LIVE, *, run: str = "student", predicted_gib: float | None = None, limit_gib: float | None = None, say: Say = ENGLISH
) -> Any:
    """Memory now and each step's peak in GiB, the plan's prediction and the device's limit; a limit far above is said, not drawn."""
    parts: Parts = {
        "memory_gib": (say("now"), BLUE, [1, 0], 1.8),
        "peak_memory_gib": (say("peak of the step"), VERMILION, [1, 0], 1.8),
    }
    marks, reading = {}, ""
    if predicted_gib is not None:
        parts["planned"] = (say("planned: {gib:.2f} GiB", gib=predicted_gib), GREEN, [6, 4], 1.8)
        marks["planned"] = predicted_gib
    if limit_gib is not None and predicted_gib is not None and limit_gib > 5 * predicted_gib:
        reading = say("The limit of this device, {gib:.1f} GiB, lies far above this picture.", gib=limit_gib)
    elif limit_gib is not None:
        parts["limit"] = (say("limit of this device: {gib:.1f} GiB", gib=limit_gib), GREY, [2, 3], 2.2)
        marks["limit"] = limit_gib
    layers = _lines(rows, "step", say("step"), "GiB", parts, y_zero=True, y_format=".3~f", constants=marks)
    return styled(_with_shown(layers, run), say("Does it fit in memory?"), reading, say=say)


def agreement_chart(rows: Rows = LIVE, *, run: str = "student", say: Say = ENGLISH) -> Any:
    """Share of tokens at which the student's first choice is the teacher's, on training text and on held-out text."""
    data = data_of(rows)
    parts: Parts = {"top1_agreement": (say("on training text"), BLUE, [1, 0], 1.5)}
    lines, hover = _lines(rows, "step", say("step"), say("share of tokens"), parts, y_zero=True, y_format=".0%")
    held = (
        alt.Chart(data)
        .transform_filter("datum.run == shown && isValid(datum.heldout_top1_agreement)")
        .transform_calculate(part="'held out'")
        .mark_line(point=alt.OverlayMarkDef(size=45, filled=True, color=PURPLE), color=PURPLE, strokeWidth=2.2, clip=True)
        .encode(
            x="step:Q",
            y="heldout_top1_agreement:Q",
            tooltip=[
                alt.Tooltip("step:Q", title=say("step")),
                alt.Tooltip("heldout_top1_agreement:Q", title=say("on held-out text"), format=".1%"),
            ],
        )
    )
    question, reading = say("How often does it make the teacher's first choice?"), say("Thin line: training text. Dots: text it never saw.")
    return styled(_with_shown((lines, hover, held), run), question, reading, say=say)


def gradient_chart(rows: Rows = LIVE, *, run: str = "student", say: Say = ENGLISH) -> Any:
    """Length of the gradient before clipping, each step; on a logarithmic axis, since it spans decades and its spikes are what counts."""
    parts: Parts = {"grad_norm": (say("gradient norm"), BLUE, [1, 0], 1.5)}
    lines, hover = _lines(rows, "step", say("step"), say("gradient norm (logarithmic)"), parts, y_zero=False, y_format=".3~g", y_log=True)
    return styled(_with_shown((lines, hover), run), say("Are the steps calm?"), say=say)


def heldout_chart(
    rows: Rows = LIVE, *, runs: Sequence[str] = ("student",), teacher_bits_per_byte: float | None = None, say: Say = ENGLISH
) -> Any:
    """Bits per byte on text that was never trained on, one line for each run; lower is better."""
    colors = alt.Scale(domain=list(runs), range=[BLUE, VERMILION, GREEN, PURPLE][: len(runs)])
    line = (
        alt.Chart(data_of(rows))
        .transform_filter("isValid(datum.heldout_bits_per_byte) && datum.step > 0")
        .mark_line(point=alt.OverlayMarkDef(size=45, filled=True), strokeWidth=2.2, clip=True)
        .encode(
            x=_x("step", say("step")),
            y=alt.Y("heldout_bits_per_byte:Q", title=say("bits per byte"), scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
            color=alt.Color("run:N", scale=colors, sort=list(runs)),
            tooltip=[
                alt.Tooltip("run:N", title=say("run")),
                alt.Tooltip("step:Q", title=say("step")),
                alt.Tooltip("heldout_bits_per_byte:Q", title=say("bits per byte"), format=".4f"),
                alt.Tooltip("heldout_kl:Q", title=say("KL to teacher"), format=".4f"),
            ],
        )
        .add_params(_zoom("zoom"))
    )
    layers: list[Any] = [line]
    if teacher_bits_per_byte is not None:
        label = say("the teacher {bits:.3f}", bits=teacher_bits_per_byte)
        mark = alt.Chart(alt.Data(values=[{"bits": teacher_bits_per_byte, "label": label}]))
        layers.append(mark.mark_rule(strokeDash=[6, 4], color=GREY, strokeWidth=1.5).encode(y="bits:Q"))
        layers.append(
            mark.mark_text(align="right", dx=-4, dy=-7, color=GREY, fontSize=11).encode(y="bits:Q", x=alt.value("width"), text="label:N")
        )
    return styled(alt.layer(*layers), say("Does it hold on text it never saw?"), say("Lower is better."), say=say)


def capture_chart(rows: Rows = LIVE, *, run: str = "capture", say: Say = ENGLISH) -> Any:
    """Share of the teacher's probability that the stored entries hold, while the capture goes on."""
    parts: Parts = {"kept_mass": (say("kept mass at T = 1"), BLUE, [1, 0], 2.2)}
    layers = _lines(rows, "windows", say("windows read"), say("share of probability"), parts, y_zero=True, y_format=".2%")
    return styled(_with_shown(layers, run), say("How much of the teacher's belief is kept?"), height=220, say=say)


def speed_chart(rows: Rows = LIVE, *, run: str = "capture", x: str = "windows", say: Say = ENGLISH) -> Any:
    """Tokens that are read, or learned from, in a second. x: 'windows' for a capture, 'step' for a training."""
    parts: Parts = {"tokens_per_s": (say("tokens per second"), GREEN, [1, 0], 1.8)}
    axis = say("windows read") if x == "windows" else say("step")
    question = say("How fast does the teacher read?") if x == "windows" else say("How fast does the student learn?")
    layers = _lines(rows, x, axis, say("tokens per second"), parts, y_zero=True, y_format=".3~s")
    return styled(_with_shown(layers, run), question, height=220 if x == "windows" else 280, say=say)
