"""Kept mass, the memory plan, and the judge's figures, from plain rows."""

import json
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from ..language import ENGLISH, Say, later
from .style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, Row, data_of, styled

PART_COLORS = {
    later("program"): "#c3c7cd",
    later("teacher weights"): GREY,
    later("student weights"): BLUE,
    later("gradients"): SKY,
    later("optimizer"): GREEN,
    later("activations"): ORANGE,
    later("logits and loss"): VERMILION,
}
WHO_COLORS = {later("teacher"): GREY, later("student"): BLUE, later("hard labels"): VERMILION, later("untrained student"): SKY}


def _said(colors: dict[str, str], say: Say) -> dict[str, str]:
    return {say(name): color for name, color in colors.items()}


def kept_mass_chart(rows: Sequence[Row] = (), *, temperature: float | None = None, say: Say = ENGLISH) -> Any:
    """Kept mass over temperature, rows of {'temperature', 'kept_mass'}; the chosen temperature is marked."""
    low = min([0.5, *(row["kept_mass"] for row in rows)])
    line = (
        alt.Chart(data_of(rows))
        .mark_line(point=True, color=BLUE, strokeWidth=2.2)
        .encode(
            x=alt.X(
                "temperature:Q", title=say("temperature"), scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(grid=False, tickCount=8)
            ),
            y=alt.Y(
                "kept_mass:Q",
                title=say("kept mass"),
                scale=alt.Scale(domain=[max(0.0, low - 0.02), 1.0]),
                axis=alt.Axis(format="%", tickCount=5),
            ),
            tooltip=[
                alt.Tooltip("temperature:Q", title=say("temperature")),
                alt.Tooltip("kept_mass:Q", title=say("kept mass"), format=".2%"),
            ],
        )
    )
    layers: list[Any] = [line]
    if temperature is not None:
        mark = alt.Chart(alt.Data(values=[{"temperature": temperature, "label": say("chosen: T = {t:g}", t=temperature)}]))
        layers.append(mark.mark_rule(strokeDash=[6, 4], color=VERMILION, strokeWidth=1.5).encode(x="temperature:Q"))
        text = mark.mark_text(align="left", dx=5, dy=-6, baseline="bottom", color=VERMILION, fontSize=11)
        layers.append(text.encode(x="temperature:Q", y=alt.value("height"), text="label:N"))
    return styled(alt.layer(*layers), say("How much of the teacher's belief is kept?"), say=say)


def plan_chart(
    rows: Sequence[Row] = (), *, limit_gib: float | None = None, limit_name: str = "this device's memory", say: Say = ENGLISH
) -> Any:
    """Stacked bars of {'mode', 'part', 'gib'} with the device's limit as a line; in words where it lies far to the right."""
    rows = [{**row, "mode": say(row["mode"]), "part": say(row["part"])} for row in rows]
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    totals = [sum(row["gib"] for row in rows if row["mode"] == mode) for mode in modes]
    colors = _said(PART_COLORS, say)
    order = {part: place for place, part in enumerate(colors)}
    is_near = limit_gib is not None and totals and limit_gib <= 3 * max(totals)
    # on a phone: names in two lines leave the legend its room, and the sums stand beside their bars
    lines = json.dumps({mode: textwrap.wrap(mode, 15) for mode in modes})
    scale = alt.Scale(domain=[0, max(1.3 * max(totals), limit_gib if is_near else 0)], nice=False) if totals else alt.Scale()
    bars = (
        alt.Chart(data_of([{**row, "place": order.get(row["part"], len(order))} for row in rows]))
        .mark_bar(height={"band": 0.7})
        .encode(
            y=alt.Y("mode:N", title=None, sort=modes, axis=alt.Axis(labelExpr=f"{lines}[datum.label]", ticks=False, domain=False)),
            x=alt.X("gib:Q", title="GiB", stack="zero", scale=scale, axis=alt.Axis(tickCount=5)),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(colors), range=list(colors.values())), sort=list(colors)),
            order="place:Q",
            tooltip=[
                alt.Tooltip("mode:N", title=say("way to train")),
                alt.Tooltip("part:N", title=say("part")),
                alt.Tooltip("gib:Q", title="GiB", format=".3f"),
            ],
        )
    )
    layers: list[Any] = [bars]
    sums = [{"mode": mode, "total": total, "label": say.figure(f"{total:.2f} GiB")} for mode, total in zip(modes, totals, strict=True)]
    text = alt.Chart(alt.Data(values=sums)).mark_text(align="left", dx=5, color=GREY, fontSize=11)
    layers.append(text.encode(y=alt.Y("mode:N", sort=modes), x="total:Q", text="label:N"))
    reading = ""
    if limit_gib is not None and totals and not is_near:
        name = f"{say(limit_name)[:1].upper()}{say(limit_name)[1:]}"
        reading = say("{name} is {gib:.3g} GiB: far to the right of these bars.", name=name, gib=limit_gib)
    elif limit_gib is not None:
        mark = alt.Chart(alt.Data(values=[{"gib": limit_gib, "label": say("limit: {gib:.3g} GiB", gib=limit_gib)}]))
        layers.append(mark.mark_rule(color=VERMILION, strokeDash=[6, 4], strokeWidth=2).encode(x="gib:Q", tooltip=["label:N"]))
        reading = say("Dashed line: {name}, {gib:.3g} GiB.", name=say(limit_name), gib=limit_gib)
    return styled(alt.layer(*layers), say("Where would the memory go?"), reading, height=130 + 42 * len(modes), say=say)


JUDGE_QUESTIONS: dict[str, tuple[str, str, str]] = {
    "bits_per_byte": (later("Who predicts unseen text best?"), later("bits per byte (lower is better)"), ".3f"),
    "kl_to_teacher": (later("Who thinks most like the teacher?"), later("KL to the teacher, nats (lower is better)"), ".3f"),
    "top1_agreement": (later("Who makes the teacher's first choice?"), later("share of tokens (higher is better)"), ".1%"),
}


def judge_chart(rows: Sequence[Row] = (), *, measure: str = "bits_per_byte", say: Say = ENGLISH) -> Any:
    """One bar for each row's 'who' at one measure of JUDGE_QUESTIONS, the figure beside it. Raises KeyError for another measure."""
    question, axis, form = JUDGE_QUESTIONS[measure]
    colors = _said(WHO_COLORS, say)
    known = [{**row, "who": say(row["who"])} for row in rows if row.get(measure) is not None]
    order = [who for who in colors if who in {row["who"] for row in known}]
    base = alt.Chart(data_of(known)).encode(
        y=alt.Y("who:N", title=None, sort=order, axis=alt.Axis(labelLimit=140, ticks=False, domain=False)),
        x=alt.X(f"{measure}:Q", title=say(axis), axis=alt.Axis(tickCount=4, format="%" if "%" in form else "")),
    )
    color = alt.Color("who:N", scale=alt.Scale(domain=list(colors), range=list(colors.values())), legend=None)
    tooltip = [alt.Tooltip("who:N", title=say("who")), alt.Tooltip(f"{measure}:Q", title=say(axis), format=form)]
    bars = base.mark_bar(height={"band": 0.7}).encode(color=color, tooltip=tooltip)
    figures = base.mark_text(align="left", dx=5, color=GREY, fontSize=11).encode(text=alt.Text(f"{measure}:Q", format=form))
    return styled(alt.layer(bars, figures), say(question), height=90 + 30 * len(order), say=say)
