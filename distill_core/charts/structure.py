"""How many layers can go: the KL to the whole teacher against the layers that are left, before training and after."""

from collections.abc import Mapping
from typing import Any

import altair as alt

from .style import BLUE, GREEN, ORANGE, data_of, styled

SERIES = {"by importance, before training": BLUE, "evenly, before training": ORANGE, "after training": GREEN}
READING = "KL to the whole teacher, less is better: fewer layers to the left"


def layers_chart(report: Mapping[str, Any] | None = None) -> Any:
    """`report`: as structure.report.importance gives it; runs that were trained are points with their names."""
    rows = points_of(report) if report else []
    x = alt.X("num_left:O", title="layers left", axis=alt.Axis(labelAngle=0))
    y = alt.Y("kl:Q", title="nats per token, log scale", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=4))
    color = alt.Color("series:N", scale=alt.Scale(domain=list(SERIES), range=list(SERIES.values())))
    tooltip: list[Any] = ["series:N", "num_left:O", alt.Tooltip("kl:Q", format=".4f"), "name:N"]
    base = alt.Chart(data_of(rows)).encode(x=x, y=y, color=color, tooltip=tooltip)
    lines = base.transform_filter("datum.series != 'after training'").mark_line(strokeWidth=2.2, point=True)
    dashed = alt.condition("datum.series == 'evenly, before training'", alt.value([6, 6]), alt.value([1, 0]))
    lines = lines.encode(strokeDash=dashed)  # where both choices are the same, both are seen
    points = base.transform_filter("datum.series == 'after training'").mark_point(filled=True, size=110, opacity=1, shape="diamond")
    return styled(alt.layer(lines, points), "How many layers can go?", READING)


def points_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """{'num_left', 'kl', 'series', 'name'} of every point; the whole teacher, whose KL is nothing but rounding, is not drawn."""
    before, even, after = SERIES
    return [
        *({"num_left": row["num_left"], "kl": row["kl"], "series": before, "name": f"without {row['layer']}"} for row in report["removal"]),
        *({"num_left": row["num_left"], "kl": row["even_kl"], "series": even, "name": ""} for row in report["removal"]),
        *({"num_left": row["num_left"], "kl": row["kl"], "series": after, "name": row["run"]} for row in report["trained"]),
    ]
