"""A sweep's result: for each setting the seeds as ticks, their mean as a point, its 95 % interval as a line."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from .style import BLUE, GREY, ORANGE, Row, data_of, styled


def sweep_chart(rows: Sequence[Row] = ()) -> Any:
    """Rows of {'setting', 'seed', 'kl', 'mean', 'low', 'high'}, best first; 'low' and 'high' are None with one seed."""
    order = list(dict.fromkeys(row["setting"] for row in rows))
    y = alt.Y("setting:N", title=None, sort=order, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    x: dict[str, Any] = {
        "title": "KL to the teacher, nats per token (less is better)",
        "scale": alt.Scale(zero=False),
        "axis": alt.Axis(tickCount=6),
    }
    ends = {row["setting"]: {name: row[name] for name in ("setting", "mean", "low", "high")} for row in rows}
    means = alt.Chart(data_of(list(ends.values())))
    seeds = (
        alt.Chart(data_of(rows))
        .mark_tick(color=GREY, thickness=1.5, size=14, opacity=0.9)
        .encode(x=alt.X("kl:Q", **x), y=y, tooltip=["setting:N", "seed:O", alt.Tooltip("kl:Q", format=".4f")])
    )
    spread = means.transform_filter("isValid(datum.low)").mark_rule(color=BLUE, strokeWidth=2.2).encode(x="low:Q", x2="high:Q", y=y)
    point = means.mark_point(color=ORANGE, filled=True, size=90, opacity=1).encode(
        x="mean:Q",
        y=y,
        tooltip=["setting:N", alt.Tooltip("mean:Q", format=".4f"), alt.Tooltip("low:Q", format=".4f"), alt.Tooltip("high:Q", format=".4f")],
    )
    reading = "orange: mean over seeds; blue: its 95 % interval; grey: each seed"
    return styled(alt.layer(seeds, spread, point), "Which setting comes closest to the teacher?", reading, height=max(120, 34 * len(order)))
