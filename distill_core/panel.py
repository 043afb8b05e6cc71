"""The live panel: one widget that pulls a run's new rows once a second and draws them, without any notebook cell running again.

The browser asks, this side answers; one question is open at a time. What a run says of itself is read once for all its viewers.
"""

import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

from . import charts, metrics, waiting
from .language import ENGLISH, Say, later
from .pictures import frame_words, module_of, picture
from .runs import Run

LOG_LINES = 12
FRESH_S = 1.0
"""A look at a run is good for this long, unless its status file changed: a dead process shows within it, whatever the viewers."""
MAX_LOOKS = 256
STATES = (later("queued"), later("running"), later("done"), later("failed"), later("stopped"))
UNITS = (later("steps"), later("windows"), later("tokens"))


LOSS_READING = later(
    "The thick line is what training pushes down; its dashed floor is the lowest it can reach. "
    "Green can hardly fall below dashed green, the teacher's own."
)
KL_READING = later(
    "The thick line is what the student's training pushes down; its dashed floor is the lowest it can reach. "
    "Green can hardly fall below dashed green, the teacher's own."
)
"""Where the loss is the KL alone; the hard-label twin pushes the green line down."""


class LivePanel(anywidget.AnyWidget):
    """Progress and charts of one or two runs, by name, while they go on and after.

    tracks: name -> run; the name is what legends and the 'run' field of every row say.
    pictures: from `training_pictures` or `capture_pictures`; none for a panel with progress only.
    say: the visitor's language. on_change: called with {name: state} when a run's state or its place in the queue has
    changed; the panel itself goes on by its own.
    """

    owner = traitlets.Unicode().tag(sync=True)
    words = traitlets.Dict().tag(sync=True)
    names = traitlets.List(traitlets.Unicode()).tag(sync=True)
    pictures = traitlets.List(traitlets.Dict()).tag(sync=True)

    def __init__(
        self,
        tracks: Mapping[str, Run],
        pictures: list[dict[str, Any]] | None = None,
        *,
        on_change: Callable[[dict[str, str]], None] | None = None,
        say: Say = ENGLISH,
    ) -> None:
        if "_esm" not in LivePanel.__dict__:  # marimo wants a class attribute; reading it at import would build it at import
            LivePanel._esm = module_of("panel.js")
        self._tracks = dict(tracks)
        self._on_change = on_change
        self._say = say
        self._seen = {name: (run.status().state, None) for name, run in self._tracks.items()}
        owner = next(iter(self._tracks.values())).id if self._tracks else "run"
        super().__init__(names=list(self._tracks), pictures=pictures or [], owner=owner, words=panel_words(say))
        self.on_msg(self._answer)

    def _answer(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict) or content.get("kind") != "pull":
            return
        reply = answer(self._tracks, content)
        known = self._say.known
        for track in reply["tracks"]:
            track |= {"phase": known(track["phase"]), "reason": known(track["reason"]), "remedies": [*map(known, track["remedies"])]}
        self.send(reply)
        states = {track["name"]: track["state"] for track in reply["tracks"]}
        seen = {track["name"]: (track["state"], track["ahead"]) for track in reply["tracks"]}
        if seen != self._seen:
            self._seen = seen
            if self._on_change is not None:
                self._on_change(states)


def panel_words(say: Say) -> dict[str, Any]:
    """What the browser's half says by itself; {placeholders} are filled there."""
    return frame_words(say) | {
        "locale": say.locale,
        "states": {state: say(state) for state in STATES} | {"queued": say("waiting")},
        "units": {unit: say(unit) for unit in UNITS},
        "of": say("{unit} {done} of {total}", unit="{unit}", done="{done}", total="{total}"),
        "speed": say("{count} tokens/s", count="{count}"),
        "left": say("{time} left", time="{time}"),
        "next": say("next in the queue"),
        "one_ahead": say("1 run ahead of it in the queue"),
        "ahead": say("{count} runs ahead of it in the queue", count="{count}"),
        "wait": say("about {time} to wait", time="{time}"),
        "no_reason": say("It failed without a reason."),
        "remedies": say("What would help:"),
        "last_lines": say("The last lines it wrote:"),
        "no_answer": say("No answer from the app for a while. The run goes on by itself; this page tries again."),
        "zoom": say("Ctrl + wheel zooms a chart, Shift + drag moves it, a double click shows all again."),
        "log": say("Log"),
        "no_log": say("Nothing written yet."),
    }


class _Look:
    """What a run said of itself a moment ago, for all viewers in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken_s = 0.0
        self.file: tuple[int, int] | None = None
        self.progress: dict[str, Any] = {}


_looks: OrderedDict[str, _Look] = OrderedDict()
_looks_lock = threading.Lock()


def progress_of(run: Run) -> dict[str, Any]:
    """A run's state and progress, with its place in the queue while it waits; read anew when its status file changed, or after FRESH_S."""
    key = str(run.folder)
    with _looks_lock:
        look = _looks.setdefault(key, _Look())
        _looks.move_to_end(key)
        while len(_looks) > MAX_LOOKS:
            _looks.popitem(last=False)
    with look.lock:
        file = _identity(run)
        if file != look.file or time.monotonic() - look.taken_s >= FRESH_S:
            look.progress, look.file, look.taken_s = _progress(run), file, time.monotonic()
        return look.progress


def _identity(run: Run) -> tuple[int, int] | None:
    """Inode and time of the status file, which is replaced with every change; none where it is missing."""
    try:
        found = os.stat(run.folder / "status.json")
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _progress(run: Run) -> dict[str, Any]:
    status = run.status()
    shown = status.model_dump(include={"state", "phase", "done", "total", "unit", "time_left_s"})
    reason, _, _ = (status.error or "").partition("\nLast lines:")  # the log's end is shown below it anyway
    ahead = waiting.runs_ahead(run) if status.state == "queued" else None
    return shown | {
        "active": status.is_active,
        "reason": reason,
        "remedies": list(status.result.get("remedies", ())),
        "ahead": None if ahead is None else len(ahead),
        "wait_s": waiting.expected_wait_s(ahead) if ahead else None,
    }


def answer(tracks: Mapping[str, Run], question: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to one pull: each run's progress, and its rows past the cursors that came with the question.

    A status is read before the rows: a run that is final in the status has no row left to write.
    """
    cursors = question.get("cursors") or {}
    progress, rows, replaced, following = [], [], [], {}
    for name, run in tracks.items():
        seen = progress_of(run)
        known = cursors.get(name)
        cursor, generation = (int(known[0]), int(known[1])) if isinstance(known, list) and len(known) == 2 else (0, None)
        part = metrics.feed(run.metrics_path).rows_since(cursor, generation)
        if part.is_whole:
            replaced.append(name)
        following[name] = [part.cursor, part.generation]
        rows += [{**row, "run": name} for row in part.rows]
        last = next((row for row in reversed(part.rows) if "tokens_per_s" in row), {})
        log = run.log_tail(LOG_LINES) if question.get("log") or seen["state"] == "failed" else []
        progress.append({"name": name, "id": run.id, **seen, "tokens_per_s": last.get("tokens_per_s"), "log": log})
    return {
        "kind": "rows",
        "viewer": question.get("viewer"),
        "gen": question.get("gen"),
        "tracks": progress,
        "rows": rows,
        "replaced": replaced,
        "cursors": following,
    }


def remembered(make: Callable[..., list[dict[str, Any]]]) -> Callable[..., list[dict[str, Any]]]:
    """The same pictures for every visitor who asks for the same ones: a set takes 0.2 s of Python, which one process has for all."""
    kept: dict[str, list[dict[str, Any]]] = {}

    @functools.wraps(make)
    def once(*args: Any, **named: Any) -> list[dict[str, Any]]:
        key = repr((args, sorted((name, value.code if isinstance(value, Say) else value) for name, value in named.items())))
        if key not in kept:
            if len(kept) >= MAX_LOOKS:
                kept.clear()
            kept[key] = make(*args, **named)
        return kept[key]

    return once


@remembered
def training_pictures(
    names: list[str],
    *,
    predicted_gib: float | None = None,
    limit_gib: float | None = None,
    teacher_bits_per_byte: float | None = None,
    eval_steps: int = 0,
    has_total: bool = True,
    say: Say = ENGLISH,
) -> list[dict[str, Any]]:
    """Loss parts, held-out text, agreement, memory, gradient and speed, for the panel of one training and, by its name, its twin."""
    first, soon = names[0], say("Appears with the first step.")
    looks = (
        say("Appears with the first look at held-out text: every {count} steps.", count=eval_steps)
        if eval_steps
        else say("Appears with the first look at held-out text.")
    )
    memory = charts.memory_chart(run=first, predicted_gib=predicted_gib, limit_gib=limit_gib, say=say)
    return [
        picture(
            charts.loss_chart(run=first, has_total=has_total, say=say),
            "loss",
            field="loss",
            empty=soon,
            reading=say(LOSS_READING if has_total else KL_READING),
        ),
        picture(
            charts.heldout_chart(runs=names, teacher_bits_per_byte=teacher_bits_per_byte, say=say),
            "held-out",
            field="heldout_bits_per_byte",
            empty=looks,
            reading=say("If a line rises again while the loss still falls, that student learns its text by heart. The best point is kept."),
        ),
        picture(
            charts.agreement_chart(run=first, say=say),
            "agreement",
            field="top1_agreement",
            empty=soon,
            reading=say("100 % would be a student that always picks the same next token as its teacher."),
        ),
        picture(
            memory,
            "memory",
            field="memory_gib",
            empty=soon,
            reading=say(
                "The teacher is not in here: it has left memory for good. Its place is taken by the cache, read from disk bit by bit."
            ),
        ),
        picture(
            charts.gradient_chart(run=first, say=say),
            "gradient",
            field="grad_norm",
            empty=soon,
            reading=say(
                "How strongly each step pulls. A spike is a step that surprised the student; a line that climbs asks for a lower rate."
            ),
        ),
        picture(
            charts.speed_chart(run=first, x="step", say=say),
            "speed",
            field="tokens_per_s",
            empty=soon,
            reading=say("A level line is a healthy one. A dip is another program on the same machine, or a slow disk."),
        ),
    ]


@remembered
def capture_pictures(name: str, *, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """Kept mass and speed, for the panel of one capture."""
    soon = say("Appears with the first windows.")
    return [
        picture(
            charts.capture_chart(run=name, say=say),
            "kept-mass",
            field="kept_mass",
            empty=soon,
            reading=say("Share of the teacher's probability that falls on the stored tokens. The rest is stored as one number."),
        ),
        picture(
            charts.speed_chart(run=name, say=say),
            "speed",
            field="tokens_per_s",
            empty=soon,
            reading=say("The teacher reads everything once, then never again."),
        ),
    ]
