"""What the teacher believes at one position, what tail modes make of it, and how much K tokens keep: over charts.LIVE, for pictures.py."""

from typing import Any

import altair as alt

from ..language import ENGLISH, Say
from .style import BLUE, GREEN, GREY, LIVE, VERMILION, Rows, data_of, styled

PARTS = {"kept": BLUE, "cut": GREY, "rest": VERMILION}
"""Inside the chosen K; stored, but beyond it; everything else."""
MODES = {"bucket": BLUE, "renormalize": VERMILION, "drop": GREEN}


def _places(title: str | None = None) -> alt.Y:
    """Tokens in the order of their rank, one band each."""
    order = alt.EncodingSortField(field="rank", op="min", order="ascending")
    return alt.Y("label:N", title=title, sort=order, axis=alt.Axis(labelLimit=150, ticks=False, domain=False))


def belief_chart(rows: Rows = LIVE, *, say: Say = ENGLISH) -> Any:
    """Bars of {'label', 'rank', 'part', 'p', 'low', 'high', 'at_one'}: probability at T, a tick at T = 1, an error bar on the rest."""
    base = alt.Chart(data_of(rows))
    names = {"kept": say("among the K"), "cut": say("stored, beyond the K"), "rest": say("all the rest")}
    label = " : ".join(f"datum.label == '{part}' ? '{words}'" for part, words in names.items()) + " : datum.label"
    bars = base.mark_bar(height={"band": 0.68}).encode(
        y=_places(),
        x=alt.X("p:Q", title=say("probability"), axis=alt.Axis(format="%", tickCount=5), scale=alt.Scale(domainMin=0)),
        color=alt.Color("part:N", scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())), legend=alt.Legend(labelExpr=label)),
        tooltip=[
            alt.Tooltip("label:N", title=say("token")),
            alt.Tooltip("p:Q", title=say("probability at this T"), format=".3%"),
            alt.Tooltip("at_one:Q", title=say("at T = 1"), format=".3%"),
            alt.Tooltip("low:Q", title=say("at least"), format=".4%"),
            alt.Tooltip("high:Q", title=say("at most"), format=".4%"),
        ],
    )
    ticks = base.mark_tick(color=GREY, thickness=2.5, height={"band": 0.9}).encode(y=_places(), x="at_one:Q")
    error = base.transform_filter("datum.part == 'rest'").mark_rule(color=GREY, strokeWidth=3).encode(y=_places(), x="low:Q", x2="high:Q")
    reading = say("Upright marks: the same at T = 1.")
    return styled(alt.layer(bars, ticks, error), say("What does the teacher expect next?"), reading, height=330, say=say)


def taught_chart(rows: Rows = LIVE, *, say: Say = ENGLISH) -> Any:
    """Three bars a token, of {'label', 'rank', 'mode', 'p', 'teacher'}: where a student ends with each tail mode; a tick at the teacher."""
    base = alt.Chart(data_of(rows))
    side = alt.YOffset("mode:N", sort=list(MODES), scale=alt.Scale(domain=list(MODES)))
    bars = base.mark_bar(height={"band": 0.85}).encode(
        y=_places(),
        yOffset=side,
        x=alt.X("p:Q", title=say("probability that the student is taught"), axis=alt.Axis(format="%", tickCount=5)),
        color=alt.Color("mode:N", scale=alt.Scale(domain=list(MODES), range=list(MODES.values())), sort=list(MODES)),
        tooltip=[
            alt.Tooltip("label:N", title=say("token")),
            alt.Tooltip("mode:N", title=say("tail mode")),
            alt.Tooltip("p:Q", title=say("taught"), format=".3%"),
            alt.Tooltip("teacher:Q", title=say("the teacher's own"), format=".3%"),
        ],
    )
    ticks = base.mark_tick(color=GREY, thickness=2.5, height={"band": 1}).encode(y=_places(), yOffset=side, x="teacher:Q")
    reading = say("Upright marks: the teacher's own probability at this T.")
    return styled(alt.layer(bars, ticks), say("What would each tail mode teach?"), reading, height=330, say=say)


def mass_chart(rows: Rows = LIVE, *, say: Say = ENGLISH) -> Any:
    """Kept mass over K, a line for each temperature, of {'kind', 't', 'k', 'mass'}; kind: 'curve', 'name', 'chosen', 'point' or 'share'."""
    base = alt.Chart(data_of(rows))
    x = alt.X(
        "k:Q", title=say("K, tokens kept per position"), scale=alt.Scale(type="log", nice=False), axis=alt.Axis(tickCount=6, format="d")
    )
    y = alt.Y("mass:Q", title=say("kept mass, mean"), scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=6))
    tooltip = [
        alt.Tooltip("t:N", title="T"),
        alt.Tooltip("k:Q", title="K"),
        alt.Tooltip("mass:Q", title=say("kept mass"), format=".2%"),
    ]

    def of(kind: str) -> alt.Chart:
        return base.transform_filter(f"datum.kind == '{kind}'")

    layers = [
        of("share").mark_rule(color=GREY, strokeDash=[2, 4]).encode(y="mass:Q"),
        of("curve").mark_line(color=GREY, strokeWidth=1.3).encode(x=x, y=y, detail="t:N", tooltip=tooltip),
        of("name").mark_text(color=GREY, align="right", dx=-2, dy=-6, fontSize=10).encode(x="k:Q", y="mass:Q", text="t:N"),
        of("chosen").mark_line(color=BLUE, strokeWidth=3).encode(x=x, y=y, tooltip=tooltip),
        of("point").mark_point(color=VERMILION, size=110, filled=True, opacity=1).encode(x="k:Q", y="mass:Q", tooltip=tooltip),
    ]
    reading = say("Thick: your T. Dot: your K. Dotted: 90 % and 99 %.")
    return styled(alt.layer(*layers), say("How much of the teacher's belief do K tokens keep?"), reading, height=330, say=say)
