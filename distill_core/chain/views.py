"""A chain on the screen: its table, line by line, in the visitor's language."""

from collections.abc import Sequence
from typing import Any

from ..language import ENGLISH, Say, later
from ..units import show_count, show_disk, show_time
from .results import Row

KINDS = {
    "progressive": later("smaller and smaller students"),
    "iterative": later("the student teaches the next one"),
    "born_again": later("born again, from hard labels"),
    "on_policy": later("the student writes, the teacher reads"),
}
"""chain.kind -> what a form calls it."""
STATES = {
    "waiting": later("waiting"),
    "queued": later("waiting"),
    "running": later("running"),
    "done": later("done"),
    "failed": later("failed"),
    "stopped": later("stopped"),
}


def table_rows(found: Sequence[Row], *, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """The rows of chain.rows as lines for a table, heads and states in the visitor's language; '' where there is no figure yet."""
    return [_line(row, say) for row in found]


def _line(row: Row, say: Say) -> dict[str, Any]:
    def shown(name: str, form: str) -> str:
        return "" if row[name] is None else say.figure(format(row[name], form))

    teacher = (row["teacher"] or "").removeprefix("run:")
    return {
        say("student"): say("teacher") + f": {row['name']}" if row["link"] == "teacher" else row["name"],
        say("learned from"): teacher,
        say("state"): say(STATES[row["state"]]),
        say("steps"): "" if row["steps"] is None else say.figure(f"{row['steps']:,}"),
        say("KL to the first teacher"): shown("kl_to_teacher", ".4f"),
        say("bits per byte"): shown("bits_per_byte", ".3f"),
        say("same first choice"): shown("top1_agreement", ".1%"),
        say("parameters"): "" if row["num_parameters"] is None else say.figure(show_count(row["num_parameters"])),
        say("on disk"): "" if row["disk_bytes"] is None else say.figure(show_disk(row["disk_bytes"])),
        say("training time"): "" if row["train_s"] is None else say.figure(show_time(row["train_s"])),
    }
