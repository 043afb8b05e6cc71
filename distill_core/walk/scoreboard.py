"""The judge's table and the samples side by side, as HTML text; looks in apps/walk.css."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..units import show_count, show_disk

WHO = {
    "teacher": "teacher",
    "student": "distilled student",
    "hard labels": "hard-label twin",
    "untrained student": "student before training",
}
"""Names in evaluation.json -> words on the screen."""

MEASURES: dict[str, tuple[str, str]] = {
    "bits_per_byte": ("bits per byte ↓", ".3f"),
    "kl_to_teacher": ("KL to teacher ↓", ".3f"),
    "top1_agreement": ("same first choice ↑", ".1%"),
    "perplexity": ("perplexity ↓", ",.2f"),
}


def in_order(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Teacher, student, twin, untrained: best beside best."""
    known = list(WHO)
    return sorted(rows, key=lambda row: known.index(row["who"]) if row["who"] in known else len(known))


def judge_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Who, quality, size and speed, one line each; a dash where nothing was measured."""
    head = "".join(f"<th>{name}</th>" for name, _ in MEASURES.values()) + "<th>parameters</th><th>on disk</th><th>tokens/s</th>"
    lines = []
    for row in in_order(rows):
        cells = [format(row[key], form) if row.get(key) is not None else "–" for key, (_, form) in MEASURES.items()]
        cells.append(show_count(row["num_parameters"]) if row.get("num_parameters") else "–")
        cells.append(show_disk(row["disk_bytes"]) if row.get("disk_bytes") else "–")
        cells.append(f"{row['tokens_per_s']:,.0f}" if row.get("tokens_per_s") else "–")
        strong = " class=strong" if row["who"] == "student" else ""
        lines.append(
            f"<tr{strong}><th>{escape(WHO.get(row['who'], row['who']))}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    return (
        f'<div class="walk-table" tabindex="0"><table><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def samples(prompts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """What each writes after the same beginning, side by side."""
    writers = [row for row in in_order(rows) if row.get("samples")]
    blocks = []
    for place, prompt in enumerate(prompts):
        cards = "".join(
            f"<div><b>{escape(WHO.get(row['who'], row['who']))}</b><p>{escape(row['samples'][place].strip())}</p></div>"
            for row in writers
            if place < len(row["samples"])
        )
        blocks.append(f'<section><p class="prompt">{escape(prompt)} …</p><div class="cards">{cards}</div></section>')
    return f'<div class="walk-samples">{"".join(blocks)}</div>'
