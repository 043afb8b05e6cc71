"""The live panel: one widget that pulls a run's new rows once a second and draws them, without any notebook cell running again.

The browser asks, this side answers; one question is open at a time. The chart library is built once, offline, into the user's folder.
"""

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from . import charts, metrics
from .paths import PACKAGE, home
from .runs import Run

MAX_POINTS = 400
"""Rows sent at once; a longer history is thinned by the smallest and largest of each stretch."""
LOG_LINES = 12
VEGA_LITE = ".".join(charts.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one JavaScript text; built once (about 2 s, no network) into home()/assets."""
    version = importlib.metadata.version("vl-convert-python")
    path = home() / "assets" / f"vega-embed-{VEGA_LITE}-{version}.js"
    if not path.exists():
        import vl_convert

        made = vl_convert.javascript_bundle("globalThis.distillVegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_text(made, encoding="utf-8")
        os.replace(partial, path)
    return path.read_text(encoding="utf-8")


def _module() -> str:
    return vega_bundle() + "\n" + Path(PACKAGE / "panel.js").read_text(encoding="utf-8")


class LivePanel(anywidget.AnyWidget):
    """Progress and charts of one or two runs, by name, while they go on and after.

    tracks: name -> run; the name is what legends and the 'run' field of every row say.
    pictures: from `training_pictures` or `capture_pictures`; none for a panel with progress only.
    on_change: called with {name: state} when a run's state has changed; the panel itself goes on by its own.
    """

    names = traitlets.List(traitlets.Unicode()).tag(sync=True)
    pictures = traitlets.List(traitlets.Dict()).tag(sync=True)

    def __init__(
        self,
        tracks: Mapping[str, Run],
        pictures: list[dict[str, Any]] | None = None,
        *,
        on_change: Callable[[dict[str, str]], None] | None = None,
    ) -> None:
        if "_esm" not in LivePanel.__dict__:  # marimo wants a class attribute; reading it at import would build it at import
            LivePanel._esm = _module()
        self._tracks = dict(tracks)
        self._on_change = on_change
        self._seen = {name: run.status().state for name, run in self._tracks.items()}
        super().__init__(names=list(self._tracks), pictures=pictures or [])
        self.on_msg(self._answer)

    def _answer(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict) or content.get("kind") != "pull":
            return
        reply = answer(self._tracks, content)
        self.send(reply)
        states = {track["name"]: track["state"] for track in reply["tracks"]}
        if states != self._seen:
            self._seen = states
            if self._on_change is not None:
                self._on_change(states)


def answer(tracks: Mapping[str, Run], question: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to one pull: each run's progress, and its rows past the cursors that came with the question.

    A status is read before the rows: a run that is final in the status has no row left to write.
    """
    cursors = question.get("cursors") or {}
    progress, rows, replaced, following = [], [], [], {}
    for name, run in tracks.items():
        status = run.status()
        known = cursors.get(name)
        cursor, generation = (int(known[0]), int(known[1])) if isinstance(known, list) and len(known) == 2 else (0, None)
        new, end, now = metrics.feed(run.metrics_path).rows_since(cursor, generation)
        if generation != now:
            replaced.append(name)
        following[name] = [end, now]
        rows += [{**row, "run": name} for row in metrics.thin(new, MAX_POINTS)]
        last = next((row for row in reversed(new) if "tokens_per_s" in row), {})
        progress.append(
            {
                "name": name,
                "id": run.id,
                **status.model_dump(include={"state", "phase", "done", "total", "unit", "time_left_s", "error"}),
                "active": status.is_active,
                "tokens_per_s": last.get("tokens_per_s"),
                "log": run.log_tail(LOG_LINES) if question.get("log") or status.state == "failed" else [],
            }
        )
    return {
        "kind": "rows",
        "viewer": question.get("viewer"),
        "gen": question.get("gen"),
        "tracks": progress,
        "rows": rows,
        "replaced": replaced,
        "cursors": following,
    }


def _picture(chart: Any, field: str, empty: str, reading: str) -> dict[str, Any]:
    """field: the row key that this picture waits for; empty: what to say until then; reading: how to read it."""
    return {"spec": charts.spec(chart), "field": field, "empty": empty, "reading": reading}


def training_pictures(
    names: list[str],
    *,
    predicted_gib: float | None = None,
    limit_gib: float | None = None,
    teacher_bits_per_byte: float | None = None,
    eval_steps: int = 0,
) -> list[dict[str, Any]]:
    """Loss parts, held-out text, agreement and memory, for the panel of one training and, by its name, its twin."""
    looks = f"every {eval_steps} steps" if eval_steps else "now and then"
    return [
        _picture(
            charts.loss_chart(run=names[0]),
            "loss",
            "Appears with the first step.",
            "The thick line is what training pushes down; its dashed floor is the lowest it can reach. "
            "Green can hardly fall below dashed green, the teacher's own.",
        ),
        _picture(
            charts.heldout_chart(runs=names, teacher_bits_per_byte=teacher_bits_per_byte),
            "heldout_bits_per_byte",
            f"Appears with the first look at held-out text: {looks}.",
            "If a line rises again while the loss still falls, that student learns its text by heart. The best point is kept.",
        ),
        _picture(
            charts.agreement_chart(run=names[0]),
            "top1_agreement",
            "Appears with the first step.",
            "100 % would be a student that always picks the same next token as its teacher.",
        ),
        _picture(
            charts.memory_chart(run=names[0], predicted_gib=predicted_gib, limit_gib=limit_gib),
            "memory_gib",
            "Appears with the first step.",
            "The teacher is not in here: it has left memory for good. Its place is taken by the cache, read from disk bit by bit.",
        ),
    ]


def capture_pictures(name: str) -> list[dict[str, Any]]:
    """Kept mass and speed, for the panel of one capture."""
    return [
        _picture(
            charts.capture_chart(run=name),
            "kept_mass",
            "Appears with the first windows.",
            "Share of the teacher's probability that falls on the stored tokens. The rest is stored as one number.",
        ),
        _picture(
            charts.speed_chart(run=name),
            "tokens_per_s",
            "Appears with the first windows.",
            "The teacher reads everything once, then never again.",
        ),
    ]
