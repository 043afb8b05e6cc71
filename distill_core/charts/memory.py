"""Where the memory goes: stacked bars over the window length for one way to distil, with GPUs as lines and published points."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from ..language import ENGLISH, Say, later
from .style import GREY, PURPLE, Row, data_of, styled
from .tables import PART_COLORS

QUESTIONS = {
    "online": (later("Online: what does the teacher in memory cost?"), later("Teacher and student side by side, full logits of both.")),
    "offline dense": (later("Offline dense: what does a cache save?"), later("The teacher is gone; the student's full logits stay.")),
    "offline fused": (later("Offline fused: what do chunks save?"), later("What this package does: no matrix of tokens × vocabulary.")),
}
"""Mode -> question, how to read it."""
PART_NAMES = {
    "program": later("program"),
    "teacher weights": later("teacher's weights"),
    "student weights": later("student's weights"),
    "gradients": later("gradients"),
    "optimizer": later("optimiser"),
    "activations": later("activations"),
    "logits and loss": later("logits and loss"),
}


def top_of(rows: Sequence[Row], points: Sequence[Row] = ()) -> float:
    """Height that all modes' bars and the published points fit under, GiB: one axis for all three pictures."""
    bars: dict[tuple[Any, Any], float] = {}
    for row in rows:
        bars[row["mode"], row["window_tokens"]] = bars.get((row["mode"], row["window_tokens"]), 0.0) + row["gib"]
    return 1.08 * max([0.1, *bars.values(), *(point["gib"] for point in points)])


def memory_chart(
    rows: Sequence[Row],
    *,
    mode: str,
    top_gib: float,
    limits: Sequence[Row] = (),
    points: Sequence[Row] = (),
    say: Say = ENGLISH,
) -> Any:
    """Stacked bars of {'window_tokens', 'mode', 'part', 'gib'} for one mode, up to `top_gib`.

    limits: {'name', 'gib'} drawn as lines where they lie under the top; points: {'mode', 'window_tokens', 'gib', 'label', 'kind'}.
    Raises KeyError for an unknown mode.
    """
    question, reading = QUESTIONS[mode]
    order = {part: place for place, part in enumerate(PART_COLORS)}
    mine = [
        {
            "window": say.figure(f"{row['window_tokens']:,}"),
            "part": say(PART_NAMES[row["part"]]),
            "gib": row["gib"],
            "place": order[row["part"]],
        }
        for row in rows
        if row["mode"] == mode
    ]
    windows = list(dict.fromkeys(row["window"] for row in mine))
    names = [say(PART_NAMES[part]) for part in PART_COLORS]
    x = alt.X("window:N", title=say("tokens in a window"), sort=windows, axis=alt.Axis(labelAngle=0, ticks=False))
    y_scale = alt.Scale(domain=[0, top_gib], nice=False)
    bars = (
        alt.Chart(data_of(mine))
        .mark_bar(clip=True)
        .encode(
            x=x,
            y=alt.Y("gib:Q", title="GiB", scale=y_scale, stack="zero", axis=alt.Axis(tickCount=5)),
            color=alt.Color("part:N", scale=alt.Scale(domain=names, range=list(PART_COLORS.values())), sort=names),
            order="place:Q",
            tooltip=[
                alt.Tooltip("window:N", title=say("tokens in a window")),
                alt.Tooltip("part:N", title=say("part")),
                alt.Tooltip("gib:Q", title="GiB", format=".2f"),
            ],
        )
    )
    layers = [bars, *_limits(limits, top_gib), *_points(points, mode, windows, say)]
    chart = styled(alt.layer(*layers), say(question), say(reading), height=360, say=say)
    return chart.properties(usermeta={"embedOptions": {"actions": False}})


def _limits(limits: Sequence[Row], top_gib: float) -> list[Any]:
    near = [dict(limit) for limit in limits if limit["gib"] <= top_gib]
    if not near:
        return []
    base = alt.Chart(data_of(near)).encode(y="gib:Q")
    rule = base.mark_rule(color=GREY, strokeDash=[6, 4], strokeWidth=1.5).encode(tooltip=["name:N", alt.Tooltip("gib:Q", format=".1f")])
    return [rule, *_readable(base.encode(x=alt.value(2), text="name:N"), align="left", dy=-2)]


def _readable(base: Any, *, align: str, dy: int) -> list[Any]:
    """Dark words on a wide white rim: they stand over bars of any colour, and on a light or dark page."""
    place: dict[str, Any] = {"align": align, "baseline": "bottom", "dy": dy, "fontSize": 11, "fontWeight": 600}
    rim = base.mark_text(**place, color="white", stroke="white", strokeWidth=6, strokeJoin="round")
    return [rim, base.mark_text(**place, color="#2b2f36")]


def _points(points: Sequence[Row], mode: str, windows: Sequence[str], say: Say) -> list[Any]:
    shown = [{**point, "window": say.figure(f"{point['window_tokens']:,}")} for point in points if point["mode"] == mode]
    shown = [point for point in shown if point["window"] in windows]
    if not shown:
        return []
    base = alt.Chart(data_of(shown)).encode(x=alt.X("window:N", sort=list(windows)), y="gib:Q")
    marks = base.mark_point(shape="diamond", size=120, filled=True, color=PURPLE, stroke="white", strokeWidth=1, opacity=1)
    return [marks.encode(tooltip=["label:N"]), *_readable(base.encode(text="kind:N"), align="center", dy=-9)]
