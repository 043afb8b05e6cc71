"""Along a chain: how far each student is from the first teacher, and where the direct student stands."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from ..language import ENGLISH, Say, later
from ..units import show_count
from .style import BLUE, GREY, VERMILION, Row, data_of, styled

QUESTION = later("What is lost along the chain?")
AXIS = later("KL to the first teacher, nats per token (less is better)")
READING = later(
    "blue: the students of the chain in their order, with their parameters; red: straight from the teacher, as many steps in all"
)


def chain_chart(rows: Sequence[Row] = (), *, say: Say = ENGLISH) -> Any:
    """Rows as chain.rows gives them; the teacher, and links that were not judged yet, are left out."""
    shown = [
        {
            "name": row["name"],
            "link": row["link"],
            "kl": row["kl_to_teacher"],
            "size": say.figure(show_count(row["num_parameters"])),
            "bits": row["bits_per_byte"],
            "agreement": row["top1_agreement"],
        }
        for row in rows
        if row["link"] != "teacher" and row.get("kl_to_teacher") is not None
    ]
    names = [row["name"] for row in shown]
    links = [row for row in shown if row["link"] != "direct"]
    x = alt.X("name:N", title=None, sort=names, axis=alt.Axis(labelAngle=0, labelLimit=140, ticks=False))
    y = alt.Y("kl:Q", title=say(AXIS), scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5))
    tooltip = [
        "name:N",
        alt.Tooltip("kl:Q", title=say("KL to the first teacher"), format=".4f"),
        alt.Tooltip("bits:Q", title=say("bits per byte"), format=".3f"),
        alt.Tooltip("agreement:Q", title=say("same first choice"), format=".1%"),
    ]
    line = alt.Chart(data_of(links)).mark_line(color=BLUE, strokeWidth=2.2).encode(x=x, y=y)
    points = (
        alt.Chart(data_of(shown))
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=tooltip,
            color=alt.condition("datum.link == 'direct'", alt.value(VERMILION), alt.value(BLUE)),
            shape=alt.condition("datum.link == 'direct'", alt.value("diamond"), alt.value("circle")),
        )
    )
    sizes = alt.Chart(data_of(shown)).mark_text(dy=-14, fontSize=11, color=GREY).encode(x=x, y=y, text="size:N")
    return styled(alt.layer(line, points, sizes), say(QUESTION), say(READING), height=260, say=say)
