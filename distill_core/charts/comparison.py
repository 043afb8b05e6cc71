"""Several runs in one picture: one colour and one dash for each, its name at the end of its line."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from .. import metrics
from ..language import ENGLISH, Say, later
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Row, data_of, styled

MAX_POINTS = 300
"""Of each run, kept by its dips and peaks."""
LABEL_ROOM = 1.45
"""The step axis is so much longer than the longest run: room for the names at the ends of the lines."""
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [10, 4], [4, 1, 1, 1], [3, 5])
PICTURES: dict[str, tuple[str, str, str, str]] = {
    "loss": (
        "loss",
        later("Which run learns fastest?"),
        later("loss per token, nats"),
        later("As each run counts it: only runs with the same loss settings compare here."),
    ),
    "kl": (
        "heldout_kl",
        later("Which run comes closest to its teacher?"),
        later("KL to the teacher, nats per token"),
        later("On held-out text. Lower is better, whatever the loss was."),
    ),
    "memory": (
        "peak_memory_gib",
        later("What does each run need in memory?"),
        later("peak of the step, GiB"),
        later("On a CPU the whole process, on a GPU its tensors."),
    ),
}
"""Name -> key in metrics.jsonl, question, axis, how to read it."""


def run_styles(runs: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
    """Colour and dash of each run by its place: seven colours, and past them the same with the next dash."""
    return {
        run: (COLORS[place % len(COLORS)], list(DASHES[(place + place // len(COLORS)) % len(DASHES)])) for place, run in enumerate(runs)
    }


def short_names(runs: Sequence[str], *, longest: int = 18) -> dict[str, str]:
    """Names for the end of a line: long ones keep their beginning and end; whole where two would look the same."""
    short = {run: run if len(run) <= longest else f"{run[: longest - 9]}…{run[-8:]}" for run in runs}
    taken = list(short.values())
    return {run: name if taken.count(name) == 1 else run for run, name in short.items()}


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, moved up as little as needed for neighbours to be `gap` apart; their order is kept."""
    placed = [0.0] * len(heights)
    above = float("-inf")
    for place in sorted(range(len(heights)), key=lambda index: heights[index]):
        above = placed[place] = max(heights[place], above + gap)
    return placed


def overlay_chart(rows: Sequence[Row] = (), *, picture: str = "loss", say: Say = ENGLISH) -> Any:
    """Lines of several runs over their steps, rows of {'run', 'step', …}. Raises KeyError for a picture that is not in PICTURES."""
    field, question, axis, reading = PICTURES[picture]
    runs = list(dict.fromkeys(row["run"] for row in rows))
    shown = []
    for run in runs:
        known = [dict(row) for row in rows if row["run"] == run and row.get(field) is not None]
        shown += [{"run": run, "step": row["step"], "value": row[field]} for row in metrics.thin(known, MAX_POINTS)]
    styles = run_styles(runs)
    last_step = max((row["step"] for row in shown), default=1)
    steps = alt.Axis(tickMinStep=1, tickCount=6, grid=False, format="~s", labelExpr=f"datum.value > {last_step} ? '' : datum.label")
    colors = alt.Scale(domain=runs, range=[color for color, _ in styles.values()])
    dashes = alt.Scale(domain=runs, range=[dash for _, dash in styles.values()])
    lines = (
        alt.Chart(data_of(shown))
        .mark_line(strokeWidth=2.2, point=alt.OverlayMarkDef(size=28, filled=True) if picture == "kl" else False)
        .encode(
            x=alt.X("step:Q", title=say("step"), scale=alt.Scale(nice=False, domain=[0, last_step * LABEL_ROOM]), axis=steps),
            y=alt.Y("value:Q", title=say(axis), scale=alt.Scale(zero=picture == "memory"), axis=alt.Axis(tickCount=5)),
            color=alt.Color("run:N", scale=colors, sort=runs, legend=None),
            strokeDash=alt.StrokeDash("run:N", scale=dashes, sort=runs, legend=None),
            tooltip=["run:N", "step:Q", alt.Tooltip("value:Q", title=say(axis), format=".4f")],
        )
    )
    chart = styled(
        alt.layer(lines, *_ends(shown, colors, lowest=0.0 if picture == "memory" else None)),
        say(question),
        say(reading),
        height=300,
        say=say,
    )
    return chart.properties(usermeta={"embedOptions": {"actions": False}})


def _ends(shown: Sequence[Row], colors: Any, *, lowest: float | None) -> list[Any]:
    """The name of each run at the end of its line, in its colour, moved apart where lines end close together. lowest: of the axis."""
    last = {row["run"]: row for row in shown}
    if not last:
        return []
    values = [row["value"] for row in shown]
    heights = spread_apart([row["value"] for row in last.values()], (max(values) - (min(values) if lowest is None else lowest)) / 15)
    names = short_names(list(last))
    labels = [
        {"run": run, "step": row["step"], "height": height, "name": names[run]}
        for (run, row), height in zip(last.items(), heights, strict=True)
    ]
    text = alt.Chart(data_of(labels)).mark_text(align="left", dx=6, fontSize=11, fontWeight=600)
    return [text.encode(x="step:Q", y="height:Q", text="name:N", color=alt.Color("run:N", scale=colors, legend=None))]
