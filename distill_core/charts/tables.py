"""Kept mass, the memory plan, and the judge's figures, from plain rows."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from .style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, Row, data_of, styled

PART_COLORS = {
    "program": "#c3c7cd",
    "teacher weights": GREY,
    "student weights": BLUE,
    "gradients": SKY,
    "optimizer": GREEN,
    "activations": ORANGE,
    "logits and loss": VERMILION,
}
WHO_COLORS = {"teacher": GREY, "student": BLUE, "hard labels": VERMILION, "untrained student": SKY}


def kept_mass_chart(rows: Sequence[Row] = (), *, temperature: float | None = None) -> Any:
    """Kept mass over temperature, rows of {'temperature', 'kept_mass'}; the chosen temperature is marked."""
    low = min([0.5, *(row["kept_mass"] for row in rows)])
    line = (
        alt.Chart(data_of(rows))
        .mark_line(point=True, color=BLUE, strokeWidth=2.2)
        .encode(
            x=alt.X("temperature:Q", title="temperature", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(grid=False, tickCount=8)),
            y=alt.Y(
                "kept_mass:Q",
                title="kept mass",
                scale=alt.Scale(domain=[max(0.0, low - 0.02), 1.0]),
                axis=alt.Axis(format="%", tickCount=5),
            ),
            tooltip=[alt.Tooltip("temperature:Q"), alt.Tooltip("kept_mass:Q", title="kept mass", format=".2%")],
        )
    )
    layers: list[Any] = [line]
    if temperature is not None:
        mark = alt.Chart(alt.Data(values=[{"temperature": temperature, "label": f"chosen: T = {temperature:g}"}]))
        layers.append(mark.mark_rule(strokeDash=[6, 4], color=VERMILION, strokeWidth=1.5).encode(x="temperature:Q"))
        text = mark.mark_text(align="left", dx=5, dy=-6, baseline="bottom", color=VERMILION, fontSize=11)
        layers.append(text.encode(x="temperature:Q", y=alt.value("height"), text="label:N"))
    return styled(alt.layer(*layers), "How much of the teacher's belief is kept?")


def plan_chart(rows: Sequence[Row] = (), *, limit_gib: float | None = None, limit_name: str = "this device's memory") -> Any:
    """Stacked bars of {'mode', 'part', 'gib'} with the device's limit as a line; in words where it lies far to the right."""
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    totals = [sum(row["gib"] for row in rows if row["mode"] == mode) for mode in modes]
    order = {part: place for place, part in enumerate(PART_COLORS)}
    bars = (
        alt.Chart(data_of([{**row, "place": order.get(row["part"], len(order))} for row in rows]))
        .mark_bar(height={"band": 0.7})
        .encode(
            y=alt.Y("mode:N", title=None, sort=modes, axis=alt.Axis(labelLimit=160, ticks=False, domain=False)),
            x=alt.X("gib:Q", title="GiB", stack="zero", axis=alt.Axis(tickCount=6)),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(PART_COLORS), range=list(PART_COLORS.values())), sort=list(PART_COLORS)),
            order="place:Q",
            tooltip=["mode:N", "part:N", alt.Tooltip("gib:Q", title="GiB", format=".3f")],
        )
    )
    layers: list[Any] = [bars]
    sums = [{"mode": mode, "total": total, "label": f"{total:.3g} GiB"} for mode, total in zip(modes, totals, strict=True)]
    text = alt.Chart(alt.Data(values=sums)).mark_text(align="left", dx=5, color=GREY, fontSize=11)
    layers.append(text.encode(y=alt.Y("mode:N", sort=modes), x="total:Q", text="label:N"))
    reading = ""
    if limit_gib is not None and totals and limit_gib > 3 * max(totals):
        reading = f"{limit_name[:1].upper()}{limit_name[1:]} is {limit_gib:.3g} GiB: far to the right of these bars."
    elif limit_gib is not None:
        mark = alt.Chart(alt.Data(values=[{"gib": limit_gib, "label": f"limit: {limit_gib:.3g} GiB"}]))
        layers.append(mark.mark_rule(color=VERMILION, strokeDash=[6, 4], strokeWidth=2).encode(x="gib:Q", tooltip=["label:N"]))
        reading = f"Dashed line: {limit_name}, {limit_gib:.3g} GiB."
    return styled(alt.layer(*layers), "Where would the memory go?", reading, height=130 + 42 * len(modes))


JUDGE_QUESTIONS: dict[str, tuple[str, str, str]] = {
    "bits_per_byte": ("Who predicts unseen text best?", "bits per byte (lower is better)", ".3f"),
    "kl_to_teacher": ("Who thinks most like the teacher?", "KL to the teacher, nats (lower is better)", ".3f"),
    "top1_agreement": ("Who makes the teacher's first choice?", "share of tokens (higher is better)", ".1%"),
}


def judge_chart(rows: Sequence[Row] = (), *, measure: str = "bits_per_byte") -> Any:
    """One bar for each row's 'who' at one measure of JUDGE_QUESTIONS, the figure beside it. Raises KeyError for another measure."""
    question, axis, form = JUDGE_QUESTIONS[measure]
    known = [row for row in rows if row.get(measure) is not None]
    order = [who for who in WHO_COLORS if who in {row["who"] for row in known}]
    base = alt.Chart(data_of(known)).encode(
        y=alt.Y("who:N", title=None, sort=order, axis=alt.Axis(labelLimit=140, ticks=False, domain=False)),
        x=alt.X(f"{measure}:Q", title=axis, axis=alt.Axis(tickCount=4, format="%" if "%" in form else "")),
    )
    colors = alt.Color("who:N", scale=alt.Scale(domain=list(WHO_COLORS), range=list(WHO_COLORS.values())), legend=None)
    bars = base.mark_bar(height={"band": 0.7}).encode(color=colors, tooltip=["who:N", alt.Tooltip(f"{measure}:Q", title=axis, format=form)])
    figures = base.mark_text(align="left", dx=5, color=GREY, fontSize=11).encode(text=alt.Text(f"{measure}:Q", format=form))
    return styled(alt.layer(bars, figures), question, height=90 + 30 * len(order))
