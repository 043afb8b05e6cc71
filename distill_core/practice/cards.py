"""Each technique as a card, as HTML: when to use it, what it costs, its command, where its switch is, what it gained."""

from collections.abc import Callable, Mapping
from typing import Any

from ..language import ENGLISH, Say, later
from ..techniques import COMMAND, TECHNIQUES
from ..units import GIB, show_disk, show_time
from ..walk.pieces import text
from ..walk.place import STEPS
from .gains import Row, verdict

PLACES: dict[str, tuple[str, str]] = {
    "writing": ("form", "write"),
    "hidden_states": ("step", "loss"),
    "several_teachers": ("form", "merge"),
    "chains": ("form", "chain"),
    "self_distillation": ("form", "chain"),
    "on_policy": ("form", "chain"),
    "adversarial": ("step", "loss"),
    "context": ("step", "cache"),
    "structure": ("step", "student"),
    "positions": ("step", "loss"),
    "tokenizers": ("form", "translate"),
    "images": ("step", "text"),
}
"""Technique -> where it is switched on: a form of this page, or a step of the walk."""
VERDICTS = {
    1: later("It helped: {plain:.4f} became {with_it:.4f}, a gain of {gain:.4f} ± {width:.4f} over {seeds} seeds ({figure})."),
    -1: later("It did harm here: {plain:.4f} became {with_it:.4f}, {gain:.4f} ± {width:.4f} over {seeds} seeds ({figure})."),
    0: later("No clear difference: {plain:.4f} and {with_it:.4f}, {gain:.4f} ± {width:.4f} over {seeds} seeds ({figure})."),
}
COLUMNS = (
    later("technique"),
    later("compared by"),
    later("plain KL"),
    later("with it"),
    later("gain ± 95 %"),
    later("more disk"),
    later("more memory"),
    later("training time"),
    later("before it"),
)

StepAddress = Callable[[str], str | None]
"""Address of the walk at a step; None where the walk is not served beside this page."""


def cards(rows: Mapping[str, Row], forms: Mapping[str, object], address: StepAddress, *, say: Say = ENGLISH) -> str:
    """All techniques. `rows`: as `measured` gives them; `forms`: those of the page, by name."""
    return '<div class="practice-cards">' + "".join(_card(name, rows.get(name), forms, address, say) for name in TECHNIQUES) + "</div>"


def _card(name: str, row: Row | None, forms: Mapping[str, object], address: StepAddress, say: Say) -> str:
    it = TECHNIQUES[name]
    return (
        f'<article class="practice-card" id="technique-{name}"><h3>{text(say(it.title))}</h3>'
        f"<p>{text(say(it.when))}</p><p>{text(say(it.costs))}</p>"
        f"<p class='gain'>{text(gain_words(row, say=say))}</p>"
        f"<pre class='walk-code'>{text(COMMAND + it.command)}</pre><p class='place'>{_place(name, forms, address, say)}</p></article>"
    )


def gain_words(row: Row | None, *, say: Say = ENGLISH) -> str:
    """What it gained, in a sentence, or that it was not measured."""
    if row is None:
        return say("Not measured yet.")
    figures = {"plain": row["plain"], "with_it": row["with_technique"], "gain": row["gain"], "figure": say.known(row["figure"])}
    if row["gain_half_width"] is None:
        return say("One seed only, which proves nothing: {plain:.4f} and {with_it:.4f} ({figure}).", **figures)
    return say(VERDICTS[verdict(row)], width=row["gain_half_width"], seeds=row["num_seeds"], **figures)


def _place(name: str, forms: Mapping[str, object], address: StepAddress, say: Say) -> str:
    kind, key = PLACES[name]
    if kind == "form":
        return f'<a href="#form-{key}">{say("Start it below")}</a>' if key in forms else say("In a terminal")
    number, title = list(STEPS).index(key) + 1, say(STEPS[key])
    words = say("In the walk, step {number}: {title}", number=number, title=title)
    found = address(key)
    return f'<a href="{text(found)}" target="_self">{text(words)}</a>' if found else text(words)


def gains_table(rows: Mapping[str, Row], *, say: Say = ENGLISH) -> str:
    """The measured gains, a line for each technique, also for those that were not measured."""
    heads = [say(words) for words in COLUMNS]
    lines = "".join(_line(name, rows.get(name), heads, say) for name in TECHNIQUES)
    head = "".join(f"<th scope='col'>{text(words)}</th>" for words in heads)
    return f'<div class="walk-table"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _line(name: str, row: Row | None, heads: list[str], say: Say) -> str:
    start = f'<th scope="row">{text(say(TECHNIQUES[name].title))}</th>'
    if row is None:
        return f'<tr>{start}<td class="none" colspan="{len(heads) - 1}">{say("not measured")}</td></tr>'
    width = row["gain_half_width"]
    spread = say("one seed") if width is None else say.figure(f"{width:.4f}")
    cells = [
        say.known(row["figure"]),
        say.figure(f"{row['plain']:.4f}"),
        say.figure(f"{row['with_technique']:.4f}"),
        f"{say.figure(format(row['gain'], '+.4f'))} ± {spread}",
        say.figure(show_disk(row["more_disk_bytes"])),
        say.figure(f"{row['more_memory_gib'] * GIB / 2**20:+,.0f} MiB"),
        "× " + say.figure(f"{row['time_ratio']:.2f}"),
        say.figure(show_time(row["before_s"])),
    ]
    tds = "".join(f'<td data-label="{text(head)}">{text(cell)}</td>' for head, cell in zip(heads[1:], cells, strict=True))
    strong = " class='strong'" if verdict(row) == 1 else ""
    return f"<tr{strong}>{start}{tds}</tr>"


def table(lines: list[dict[str, str]]) -> str:
    """Lines of one shape as a table: the first column names the line."""
    if not lines:
        return ""
    head = "".join(f"<th scope='col'>{text(words)}</th>" for words in lines[0])
    body = ""
    for line in lines:
        (_, first), *rest = line.items()
        tds = "".join(f'<td data-label="{text(name)}">{text(value) or "–"}</td>' for name, value in rest)
        body += f'<tr><th scope="row">{text(first)}</th>{tds}</tr>'
    return f'<div class="walk-table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def result(made: Mapping[str, Any], walk: str | None, *, say: Say = ENGLISH) -> str:
    """What a finished run made, and a link that goes on with it; '' before. `walk`: the address of the link, none where there is none."""
    if "cache" in made:
        words = say("Cache {name} is there.", name=made["cache"])
    elif "text" in made:
        words = say(
            "{count:,} texts are there: written:{name}, as the text's source or beside it.", count=made["num_texts"], name=made["text"]
        )
    else:
        return ""
    link = f' <a href="{text(walk)}" target="_self">{text(say("Go on in the walk"))}</a>' if walk else ""
    return f'<p class="practice-made">{text(words)}{link}</p>'
