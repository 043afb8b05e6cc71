"""What share of the positions keeps the quality: held-out KL over loss.position_share, from a sweep over it."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from .style import BLUE, GREY, ORANGE, Row, data_of, styled

BY = {"entropy": "where the teacher is least sure", "gap": "where the student is furthest off"}


def share_chart(rows: Sequence[Row] = ()) -> Any:
    """Rows of {'positions', 'share', 'seed', 'kl', 'mean', 'low', 'high'}; 'low' and 'high' are None with one seed."""
    rows = [{**row, "chosen": BY.get(row["positions"], row["positions"])} for row in rows]
    ends = {(row["chosen"], row["share"]): {name: row[name] for name in ("chosen", "share", "mean", "low", "high")} for row in rows}
    x = alt.X("share:Q", title="share of each window's positions that is learned from", axis=alt.Axis(format="%"))
    scale = alt.Scale(zero=False)
    title = "KL to the teacher, nats per token (less is better)"
    color = alt.Color(
        "chosen:N", title=None, scale=alt.Scale(domain=list(BY.values()), range=[BLUE, ORANGE]), legend=alt.Legend(orient="top")
    )
    figures = [alt.Tooltip(f"{name}:Q", format=".4f") for name in ("mean", "low", "high")]
    means = alt.Chart(data_of(list(ends.values())))
    seeds = (
        alt.Chart(data_of(rows))
        .mark_tick(color=GREY, thickness=1.5, size=12, opacity=0.9)
        .encode(
            x=x, y=alt.Y("kl:Q", title=title, scale=scale), tooltip=["chosen:N", "share:Q", "seed:O", alt.Tooltip("kl:Q", format=".4f")]
        )
    )
    spread = means.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.2).encode(x=x, y="low:Q", y2="high:Q", color=color)
    line = means.mark_line(point=alt.OverlayMarkDef(filled=True, size=70)).encode(
        x=x, y=alt.Y("mean:Q", title=title, scale=scale), color=color, tooltip=["chosen:N", "share:Q", *figures]
    )
    reading = "points: mean over seeds; upright lines: its 95 % interval; grey: each seed; at 100 % it is the plain run"
    return styled(alt.layer(seeds, spread, line), "What share of the positions keeps the quality?", reading, height=260)
