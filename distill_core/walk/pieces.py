"""The frame of the screen as HTML text: hero, step bar, headings, what is locked, buttons with their words, lists.

Every text from outside is escaped here; sentences of the catalogue may hold <b>, <i> and <code>. The looks are in apps/walk.css.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..language import ENGLISH, Say, later
from ..techniques import TECHNIQUES
from .place import STEPS
from .standing import StepState

MARKS: dict[StepState, str] = {
    "done": "✓",
    "working": "…",
    "next": "→",
    "ready": "",
    "locked": "",
    "waiting": "…",
    "wrong": "!",
    "held": "",
}
SAID: dict[StepState, str] = {
    "done": later("done"),
    "working": later("working"),
    "next": later("your turn"),
    "ready": later("ready, nothing to do"),
    "locked": later("unlocks later"),
    "waiting": later("waiting"),
    "wrong": later("needs a change"),
    "held": later("waits for a step above"),
}
BUTTONS = (later("Capture"), later("Train"), later("Judge"), later("Export"))
"""The primary buttons, in the order in which they are pressed."""


def text(value: Any) -> str:
    """Escaped for HTML."""
    return html.escape(str(value))


def plain(words: str) -> str:
    """Words from an error or a verdict, line by line."""
    return "".join(f"<p>{text(line)}</p>" for line in words.splitlines() if line.strip())


def hero(say: Say = ENGLISH) -> str:
    """What this is, in three sentences, the buttons to press, and a picture of the whole."""
    buttons = " ".join(f"<b>{say(name)}</b>" for name in BUTTONS)
    story = say(
        "A large <b>teacher</b> reads a text once and writes down, for every word, which words it thinks could come next, and how "
        "likely each is. A small <b>student</b> then learns from these notes, without the teacher in memory. In nine steps you will "
        "have such a student, measured beside its teacher and beside a twin that had to learn without one."
    )
    return (
        f'<div class="walk-hero" lang="{say.code}"><div><h1>{say("Teach a small model what a large one knows")}</h1><p>{story}</p>'
        f'<p class="press">{say("Everything has a sensible default. Press only these:")} {buttons}</p>'
        f'<p class="walk-quiet">{say("With the built-in teacher that takes a few minutes on a laptop, without network.")}</p></div>'
        f"{_picture(say)}</div>"
    )


def _picture(say: Say) -> str:
    alt = say("The teacher reads once; its notes are a cache on disk; the student learns from it")
    return f"""<svg viewBox="0 0 300 250" role="img" aria-label="{text(alt)}">
<g fill="none" stroke="currentColor" stroke-width="1.6"><rect x="60" y="4" width="180" height="66" rx="12"/>
<rect x="80" y="104" width="140" height="56" rx="6"/><path d="M80 123h140M80 142h140" opacity=".45"/>
<rect x="102" y="194" width="96" height="46" rx="10"/>
<path d="M150 72v26m-6-9 6 9 6-9M150 162v26m-6-9 6 9 6-9"/></g><g fill="currentColor" text-anchor="middle" font-size="12">
<text x="150" y="34" font-weight="700" font-size="15">{say("teacher")}</text><text x="150" y="53">{say("reads once, then leaves")}</text>
<text x="150" y="118">sat .61 · slept .22 · …</text><text x="150" y="137" font-weight="700">{say("cache on disk")}</text>
<text x="150" y="156">mat .48 · sofa .19 · …</text>
<text x="150" y="215" font-weight="700" font-size="14">{say("student")}</text>
<text x="150" y="231">{say("learns from it")}</text></g></svg>"""


def step_bar(states: Mapping[str, StepState], target: str, sentence: str, *, is_fixed: bool = True, say: Say = ENGLISH) -> str:
    """The bar that is always in view: nine steps with their state, and the one thing to do next, linked."""
    items = "".join(
        f'<li class="{states[key]}"><a href="#step-{key}" title="{text(say(title))}: {say(SAID[states[key]])}"'
        f"{' aria-current=step' if states[key] in ('next', 'working', 'waiting', 'wrong') else ''}>"
        f"<span>{MARKS[states[key]] or number}</span><b>{text(say(title))}</b></a></li>"
        for number, (key, title) in enumerate(STEPS.items(), start=1)
    )
    return (
        f'<nav class="walk-bar{" fixed" if is_fixed else ""}" lang="{say.code}" aria-label="{say("The nine steps")}"><ol>{items}</ol>'
        f'<p role="status"><a href="#step-{target}">{text(sentence)}</a></p></nav>'
    )


def step_heading(key: str, states: Mapping[str, StepState], *, say: Say = ENGLISH) -> str:
    """Number, title and state of one step."""
    number = list(STEPS).index(key) + 1
    state = states[key]
    return (
        f'<div class="walk-step {state}" id="step-{key}"><span class="number">{number}</span>'
        f'<h2>{text(say(STEPS[key]))}</h2><span class="said">{say(SAID[state])}</span></div>'
    )


def locked(needs: str, then: str, *, say: Say = ENGLISH) -> str:
    """An empty place that says what it needs and what will appear."""
    return f'<div class="walk-locked"><b>{say("Needs {what}.", what=text(needs))}</b> {text(then)}</div>'


def facts(pairs: Iterable[tuple[str, str]], *, say: Say = ENGLISH) -> str:
    """Figures with a word below each."""
    inside = "".join(f"<div><dd>{text(say.figure(figure))}</dd><dt>{text(word)}</dt></div>" for figure, word in pairs)
    return f'<dl class="walk-facts">{inside}</dl>'


def press(button: str, words: str, *, state: StepState) -> str:
    """A button (its HTML) with what pressing it does; it stands out where it is the next thing to do."""
    return f'<div class="walk-press {state}">{button}<span>{text(words)}</span></div>'


def aside(words: str) -> str:
    return f'<div class="walk-aside">{text(words)}</div>'


def quiet(words: str) -> str:
    """A sentence of the catalogue, in small print; '' for none."""
    return f'<p class="walk-quiet">{words}</p>' if words else ""


def words_of(sentence: str) -> str:
    """A sentence of the catalogue as a paragraph."""
    return f'<p class="walk-words">{sentence}</p>'


def grid(pieces: Sequence[str]) -> str:
    """Pieces side by side where there is room, below each other where there is not."""
    return '<div class="walk-grid">' + "".join(f"<div>{piece}</div>" for piece in pieces) + "</div>"


def notes(sentences: Sequence[str]) -> str:
    return '<ul class="walk-notes">' + "".join(f"<li>{text(sentence)}</li>" for sentence in sentences) + "</ul>" if sentences else ""


def folded(title: str, inside: str, *, is_open: bool = False, kind: str = "") -> str:
    """HTML behind a title that a click, Enter or Space opens."""
    return f'<details class="walk-fold {kind}"{" open" if is_open else ""}><summary>{text(title)}</summary>{inside}</details>'


def techniques(keys: Iterable[str], *, say: Say = ENGLISH) -> str:
    """When to use those techniques and what they cost, each behind its title; '' for none."""
    known = [TECHNIQUES[key] for key in keys]
    items = "".join(folded(f"{say(it.title)} ?", f"<p>{say(it.when)}</p><p>{say(it.costs)}</p>", kind="why") for it in known)
    return (
        f'<div class="walk-why" role="group" aria-label="{text(say("When to use it, and what it costs"))}">{items}</div>' if items else ""
    )
