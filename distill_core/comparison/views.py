"""Pieces of the page on runs, as HTML text; every text from outside is escaped here, and looks are in apps/walk.css."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..charts.comparison import run_styles
from ..language import ENGLISH, Say, later
from ..units import show_count, show_disk, show_time
from .deletion import Deletion

Row = Mapping[str, Any]

KINDS = {
    "train": later("training"),
    "capture": later("capture"),
    "merge": later("merging"),
    "write": later("writing"),
    "translate": later("translating"),
    "evaluate": later("judging"),
    "cache": later("cache"),
}
STATES = {
    "queued": later("waiting"),
    "running": later("running"),
    "done": later("done"),
    "failed": later("failed"),
    "stopped": later("stopped"),
    "complete": later("complete"),
    "unfinished": later("unfinished"),
    "damaged": later("damaged"),
}
COLUMNS = {
    "id": later("name"),
    "kind": later("kind"),
    "state": later("state"),
    "age": later("age"),
    "owner": later("owner"),
    "teacher": later("teacher"),
    "text": later("text"),
    "cache": later("learned from"),
    "top_k": "K",
    "temperature": "T",
    "divergence": later("divergence"),
    "hard_share": later("hard labels"),
    "max_steps": later("steps"),
    "seed": later("seed"),
    "parameters": later("parameters"),
    "disk": later("on disk"),
    "bits_per_byte": later("bits per byte"),
    "kl_to_teacher": later("KL to teacher"),
    "top1_agreement": later("same first choice"),
}
"""Columns of the table, in order -> their head."""
FORMS = {"bits_per_byte": ".3f", "kl_to_teacher": ".3f", "top1_agreement": ".1%"}


def table_rows(rows: Sequence[Row], *, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """Lines for the screen, columns named in the visitor's language; owners only where there are any."""
    shown = [name for name in COLUMNS if name != "owner" or any(row.get("owner") for row in rows)]
    lines = []
    for row in rows:
        weights = (row.get("kl_weight") or 0) + (row.get("ce_weight") or 0)
        cells: dict[str, Any] = {
            **row,
            "kind": say(KINDS[row["kind"]]),
            "state": say(STATES[row["state"]]),
            "age": show_time(row["age_s"]),
            "hard_share": f"{row['ce_weight'] / weights:.0%}" if weights else None,
            "parameters": say.figure(show_count(row["num_parameters"])) if row.get("num_parameters") else None,
            "disk": say.figure(show_disk(row["disk_bytes"])),
            **{name: _figure(row.get(name), form, say) for name, form in FORMS.items()},
        }
        lines.append({say(COLUMNS[name]): "" if cells.get(name) is None else cells[name] for name in shown})
    return lines


def _figure(value: float | None, form: str, say: Say) -> str | None:
    return None if value is None else say.figure(format(value, form))


def csv_of(rows: Sequence[Row]) -> bytes:
    """All lines with every figure unrounded, as CSV."""
    import polars as pl

    return pl.DataFrame([dict(row) for row in rows], infer_schema_length=None).write_csv().encode() if rows else b""


def legend(runs: Sequence[str]) -> str:
    """The runs in their colours, as in the charts."""
    chips = "".join(
        f'<li><svg width="34" height="10" aria-hidden="true"><path d="M0 5h34" stroke="{color}" stroke-width="3" '
        f'stroke-dasharray="{" ".join(map(str, dash)) if dash[1] else "none"}"/></svg> {escape(run)}</li>'
        for run, (color, dash) in run_styles(runs).items()
    )
    return f'<ul class="runs-legend">{chips}</ul>'


def difference_table(rows: Sequence[Row], runs: Sequence[str], *, say: Say = ENGLISH) -> str:
    """Settings that differ, a column for each run."""
    if len(runs) < 2:
        return f'<p class="walk-quiet">{escape(say("Choose two or more runs to see in which settings they differ."))}</p>'
    if not rows:
        return f'<p class="walk-quiet">{escape(say("They have the same settings in everything but their names."))}</p>'
    head = "".join(f"<th>{escape(run)}</th>" for run in runs)
    lines = "".join(
        f"<tr><th><code>{escape(row['setting'])}</code></th>"
        + "".join(f'<td data-label="{escape(run)}">{_setting(row.get(run), say)}</td>' for run in runs)
        + "</tr>"
        for row in rows
    )
    return _table(f"<th>{escape(say('setting'))}</th>{head}", lines)


def _setting(value: Any, say: Say) -> str:
    if value is None:
        return f'<span class="walk-quiet">{escape(say("not set"))}</span>'
    return escape(f"{value:g}" if isinstance(value, float) else str(value))


def quality_table(rows: Sequence[Row], *, say: Say = ENGLISH) -> str:
    """Quality, size and speed, a line for each run; a dash where nothing was measured."""
    if not rows:
        words = say("None of these has been measured yet: a training shows figures after its first look at the held-out text.")
        return f'<p class="walk-quiet">{escape(words)}</p>'
    heads = (
        say("bits per byte ↓"),
        say("KL to teacher ↓"),
        say("same first choice ↑"),
        say("parameters"),
        say("on disk"),
        say("tokens/s ↑"),
        say("measured"),
    )
    lines = []
    for row in rows:
        cells = [_figure(row.get(name), form, say) for name, form in FORMS.items()]
        cells.append(say.figure(show_count(row["num_parameters"])) if row.get("num_parameters") else None)
        cells.append(say.figure(show_disk(row["disk_bytes"])) if row.get("disk_bytes") else None)
        cells.append(_figure(row.get("tokens_per_s"), ",.0f", say))
        cells.append(say("when judged") if row["measured"] == "judged" else say("while training"))
        measured = "".join(
            f'<td data-label="{escape(head)}">{escape(cell) if cell else "–"}</td>' for head, cell in zip(heads, cells, strict=True)
        )
        name = row["run"] or say("teacher of {cache}", cache=row["cache"])
        lines.append(f"<tr><th>{escape(name)}</th>{measured}</tr>")
    return _table("<th></th>" + "".join(f"<th>{escape(head)}</th>" for head in heads), "".join(lines))


def _table(head: str, lines: str) -> str:
    return f'<div class="walk-table" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def samples(prompts: Sequence[str], rows: Sequence[Row], *, say: Say = ENGLISH) -> str:
    """What each writes after the same beginning, side by side."""
    if not prompts:
        return f'<p class="walk-quiet">{escape(say("Judge a run, and what it writes will stand here beside its teacher."))}</p>'
    blocks = []
    for place, prompt in enumerate(prompts):
        said = [(row["who"], row["samples"][place].strip()) for row in rows if place < len(row["samples"])]
        cards = "".join(
            f"<div><b>{escape(say('teacher') if who == 'teacher' else who)}</b><p>{escape(words)}</p></div>" for who, words in said
        )
        blocks.append(f'<section><p class="prompt">{escape(prompt)} …</p><div class="cards">{cards}</div></section>')
    return f'<div class="walk-samples">{"".join(blocks)}</div>'


def deletion_words(deletions: Sequence[Deletion], *, say: Say = ENGLISH) -> list[str]:
    """What pressing Delete would do, a sentence each: how much comes back, who loses what, and what is refused."""
    free = [what for what in deletions if not what.refused]
    lines = []
    if free:
        names, size = ", ".join(what.name for what in free), show_disk(sum(what.num_bytes for what in free))
        lines.append(say("{size} come back: {names}.", size=size, names=names))
    for what in free:
        named = {"name": what.name, "runs": ", ".join(what.dependents)}
        if what.dependents and what.kind == "cache":
            lines.append(say("Cache {name}: {runs} learned from it. Without it they can be neither judged, exported nor resumed.", **named))
        elif what.dependents and what.kind == "text":
            lines.append(say("Text {name}: {runs} read it, and could not read it again.", **named))
        elif what.dependents:
            lines.append(say("Run {name} is named by {runs}, whose own figures stay.", **named))
        if what.sweep:
            lines.append(say("Run {name} belongs to sweep {sweep}, which counts it no more.", name=what.name, sweep=what.sweep))
        if what.chain:
            lines.append(
                say("Run {name} belongs to chain {chain}: going on with it would make the run anew.", name=what.name, chain=what.chain)
            )
        if what.twin:
            lines.append(say("Run {name} is the counterpart of {twin}: the two can be compared no more.", name=what.name, twin=what.twin))
    lines += [say("Not deleted: {reason}.", reason=what.refused) for what in deletions if what.refused]
    return lines


def links(addresses: Mapping[str, str | None], *, say: Say = ENGLISH) -> str:
    """A link into the walk for each run, or how to get there."""
    if not addresses:
        return ""
    if any(address is None for address in addresses.values()):
        words = say("To go on with a run in the walk, open the walk and add ?run=NAME to its address:")
        return f'<p class="walk-quiet">{escape(words)} <code>marimo run apps/distill.py</code></p>'
    items = ", ".join(f'<a href="{escape(address or "")}" target="_self">{escape(run)}</a>' for run, address in addresses.items())
    return f"<p>{escape(say('Open in the walk:'))} {items}</p>"


def at_work(rows: Sequence[Row], *, say: Say = ENGLISH) -> str:
    """What runs now, a line each; a sentence where nothing does."""
    active = [row for row in rows if row["state"] in ("queued", "running")]
    if not active:
        return f'<p class="walk-quiet">{escape(say("Nothing is running now."))}</p>'
    lines = []
    for row in active:
        done, total = (say.figure(f"{row.get(name) or 0:,}") for name in ("done", "total"))
        share = f" {done} / {total}" if row.get("total") else ""
        lines.append(f"<li><b>{escape(row['id'])}</b>: {escape(say(STATES[row['state']]))}{share}</li>")
    return f'<ul class="walk-notes">{"".join(lines)}</ul>'
