"""The judge's verdict, its table, and the samples side by side, as HTML text; looks in apps/walk.css."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..language import ENGLISH, Say, later
from ..units import show_count, show_disk
from .pieces import text

WHO = {
    "teacher": later("teacher"),
    "student": later("distilled student"),
    "hard labels": later("hard-label twin"),
    "untrained student": later("student before training"),
    "without context": later("teacher without its context"),
    "without images": later("teacher without its images"),
}
"""Names in evaluation.json -> words on the screen."""

MEASURES: dict[str, tuple[str, str]] = {
    "bits_per_byte": (later("bits per byte ↓"), ".3f"),
    "kl_to_teacher": (later("KL to teacher ↓"), ".3f"),
    "top1_agreement": (later("same first choice ↑"), ".1%"),
    "perplexity": (later("perplexity ↓"), ".2f"),
}

OUTCOMES = {
    "BEATS": later("The distilled student BEATS its equal-budget hard-label twin on held-out text."),
    "is WORSE than": later("The distilled student is WORSE than its equal-budget hard-label twin on held-out text."),
    "is CLOSER TO THE TEACHER, but predicts this text WORSE than": later(
        "The distilled student is CLOSER TO THE TEACHER, but predicts held-out text WORSE than its equal-budget hard-label twin."
    ),
    "predicts this text BETTER, but is FURTHER FROM THE TEACHER than": later(
        "The distilled student predicts held-out text BETTER, but is FURTHER FROM THE TEACHER than its equal-budget hard-label twin."
    ),
    "shows NO CLEAR DIFFERENCE to": later(
        "The distilled student shows NO CLEAR DIFFERENCE to its equal-budget hard-label twin on held-out text."
    ),
}
"""Outcomes in evaluation.json's gains -> the sentence that says them."""


def who(row: Mapping[str, Any], *, say: Say = ENGLISH) -> str:
    """Whom a row is about, in words; a name we do not know is shown as it is."""
    return say(WHO[row["who"]]) if row["who"] in WHO else str(row["who"])


def in_order(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Teacher, student, twin, untrained: best beside best."""
    known = list(WHO)
    return sorted(rows, key=lambda row: known.index(row["who"]) if row["who"] in known else len(known))


def verdict(evaluation: Mapping[str, Any], *, say: Say = ENGLISH) -> str:
    """Did distilling help, with its gains and their intervals; the words of the judgement itself where it keeps no figures."""
    gains, by_name = evaluation.get("gains"), {row["who"]: row for row in evaluation["rows"]}
    if not gains or gains["outcome"] not in OUTCOMES:
        return str(evaluation["verdict"])
    student, twin = by_name["student"], by_name["hard labels"]
    figures = say(
        "KL to the teacher: {student:.3f} against {twin:.3f} nats per token (gain {gain:.3f}, 95 % interval {low:.3f} to {high:.3f}).",
        **_gain(student, twin, "kl_to_teacher", gains["kl"]),
    )
    bits = say(
        "Bits per byte: {student:.3f} against {twin:.3f} (gain {gain:.3f}, 95 % interval {low:.3f} to {high:.3f}).",
        **_gain(student, twin, "bits_per_byte", gains["bits"]),
    )
    return f"{say(OUTCOMES[gains['outcome']])}\n{figures}\n{bits}"


def _gain(student: Mapping[str, Any], twin: Mapping[str, Any], measure: str, gain: Sequence[float]) -> dict[str, float]:
    return {"student": student[measure], "twin": twin[measure], "gain": gain[0], "low": gain[1], "high": gain[2]}


def judge_table(rows: Sequence[Mapping[str, Any]], *, say: Say = ENGLISH) -> str:
    """Who, quality, size and speed, one line each; a dash where nothing was measured. On a phone each line becomes a small list."""
    heads = [say(name) for name, _ in MEASURES.values()] + [say("parameters"), say("on disk"), "tokens/s"]
    lines = []
    for row in in_order(rows):
        cells = [format(row[key], form) if row.get(key) is not None else "–" for key, (_, form) in MEASURES.items()]
        cells.append(show_count(row["num_parameters"]) if row.get("num_parameters") else "–")
        cells.append(show_disk(row["disk_bytes"]) if row.get("disk_bytes") else "–")
        cells.append(say("{count:,}", count=round(row["tokens_per_s"])) if row.get("tokens_per_s") else "–")
        strong = " class=strong" if row["who"] == "student" else ""
        shown = "".join(f'<td data-label="{text(head)}">{say.figure(cell)}</td>' for head, cell in zip(heads, cells, strict=True))
        lines.append(f"<tr{strong}><th scope=row>{text(who(row, say=say))}</th>{shown}</tr>")
    head = "".join(f"<th scope=col>{text(name)}</th>" for name in heads)
    return (
        f'<div class="walk-table" tabindex="0"><table><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def samples(prompts: Sequence[str], rows: Sequence[Mapping[str, Any]], *, say: Say = ENGLISH) -> str:
    """What each writes after the same beginning, side by side."""
    writers = [row for row in in_order(rows) if row.get("samples")]
    blocks = []
    for place, prompt in enumerate(prompts):
        cards = "".join(
            f"<div><b>{text(who(row, say=say))}</b><p>{text(row['samples'][place].strip())}</p></div>"
            for row in writers
            if place < len(row["samples"])
        )
        blocks.append(f'<section><p class="prompt">{text(prompt)} …</p><div class="cards">{cards}</div></section>')
    return f'<div class="walk-samples">{"".join(blocks)}</div>'
