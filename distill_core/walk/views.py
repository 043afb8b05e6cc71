"""Pieces of the screen as HTML text: the step bar, headings, tokens with their mask, the judge's table, samples side by side.

Every text from outside is escaped here. The looks are in apps/walk.css.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cache import Cache, Estimate
from ..catalog.model_facts import ModelFacts
from ..memory import MODES, Report
from ..units import show_count, show_disk, show_gib, show_time
from .place import STEPS, StepState

MARKS: dict[StepState, str] = {"done": "✓", "working": "…", "next": "→", "ready": "", "locked": ""}
SAID: dict[StepState, str] = {
    "done": "done",
    "working": "working",
    "next": "your turn",
    "ready": "ready, nothing to do",
    "locked": "unlocks later",
}


def _text(value: Any) -> str:
    return html.escape(str(value))


def plain(words: str) -> str:
    """Words from an error or a verdict, line by line."""
    return "".join(f"<p>{_text(line)}</p>" for line in words.splitlines() if line.strip())


HERO = """<div class="walk-hero"><div>
<h1>Teach a small model what a large one knows</h1>
<p>A large <b>teacher</b> reads a text once and writes down, for every word, which words it thinks could come next, and how likely each is.
A small <b>student</b> then learns from these notes, without the teacher in memory. In nine steps you will have such a student,
measured beside its teacher and beside a twin that had to learn without one.</p>
<p class="press">Everything has a sensible default. Press only these: <b>Capture</b> <b>Train</b> <b>Judge</b> <b>Export</b></p>
<p class="walk-quiet">With the built-in teacher that takes a few minutes on a laptop, without network.</p></div>
<svg viewBox="0 0 300 250" role="img" aria-label="The teacher reads once; its notes are a cache on disk; the student learns from it">
<g fill="none" stroke="currentColor" stroke-width="1.6"><rect x="60" y="4" width="180" height="66" rx="12"/>
<rect x="80" y="104" width="140" height="56" rx="6"/><path d="M80 123h140M80 142h140" opacity=".45"/>
<rect x="102" y="194" width="96" height="46" rx="10"/>
<path d="M150 72v26m-6-9 6 9 6-9M150 162v26m-6-9 6 9 6-9"/></g><g fill="currentColor" text-anchor="middle" font-size="12">
<text x="150" y="34" font-weight="700" font-size="15">teacher</text><text x="150" y="53">reads once, then leaves</text>
<text x="150" y="118">sat .61 · slept .22 · …</text><text x="150" y="137" font-weight="700">cache on disk</text>
<text x="150" y="156">mat .48 · sofa .19 · …</text>
<text x="150" y="215" font-weight="700" font-size="14">student</text><text x="150" y="231">learns from it</text></g></svg></div>"""


def step_bar(states: Mapping[str, StepState], sentence: str, target: str, *, is_fixed: bool = True) -> str:
    """The bar that is always in view: nine steps with their state, and the one thing to do next, linked."""
    items = "".join(
        f'<li class="{states[key]}"><a href="#step-{key}" title="{_text(title)}: {SAID[states[key]]}"'
        f"{' aria-current=step' if states[key] in ('next', 'working') else ''}>"
        f"<span>{MARKS[states[key]] or number}</span><b>{_text(title)}</b></a></li>"
        for number, (key, title) in enumerate(STEPS.items(), start=1)
    )
    return (
        f'<nav class="walk-bar{" fixed" if is_fixed else ""}" aria-label="The nine steps"><ol>{items}</ol>'
        f'<p role="status"><a href="#step-{target}">{_text(sentence)}</a></p></nav>'
    )


def step_heading(key: str, states: Mapping[str, StepState]) -> str:
    """Number, title and state of one step."""
    number = list(STEPS).index(key) + 1
    state = states[key]
    return (
        f'<div class="walk-step {state}" id="step-{key}"><span class="number">{number}</span>'
        f'<h2>{_text(STEPS[key])}</h2><span class="said">{SAID[state]}</span></div>'
    )


def locked(needs: str, then: str) -> str:
    """An empty place that says what it needs and what will appear."""
    return f'<div class="walk-locked"><b>Needs {_text(needs)}.</b> {_text(then)}</div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures with a word below each."""
    return (
        '<dl class="walk-facts">'
        + "".join(f"<div><dd>{_text(figure)}</dd><dt>{_text(word)}</dt></div>" for figure, word in pairs)
        + "</dl>"
    )


def model_facts(model: ModelFacts) -> str:
    """Facts before weights, and the notes one should read before choosing it."""
    vocabulary = f"{model.vocab_size_config:,}"
    if model.vocab_size_tokenizer and model.vocab_size_tokenizer != model.vocab_size_config:
        vocabulary = f"{model.vocab_size_tokenizer:,} of {model.vocab_size_config:,}"
    pairs = [
        (show_count(model.num_parameters), "parameters"),
        (str(model.num_layers), "layers"),
        (f"{model.hidden_size:,}", "wide"),
        (vocabulary, "tokens it knows" if " of " not in vocabulary else "real tokens of vocabulary rows"),
        (show_gib(model.memory_bytes["float32"]), "memory as float32"),
        (show_gib(model.memory_bytes["bfloat16"]), "memory as bfloat16"),
    ]
    if model.disk_bytes:
        pairs.append((show_disk(model.disk_bytes), "on disk" if model.kind != "hub" else "to download"))
    pairs.append((model.license or "not stated", "licence"))
    gated = (
        ["Gated: its owner wants the terms accepted on its Hugging Face page first, and a token on this machine."] if model.gated else []
    )
    return facts(pairs) + notes([*gated, *model.notes])


def cost(estimate: Estimate) -> str:
    """What the capture will take, and when it has paid for itself."""
    pairs = [
        (f"{estimate.num_tokens:,}", "tokens to read"),
        (f"about {show_disk(estimate.disk_bytes)}", "on disk"),
        (f"about {show_time(estimate.capture_s)}", f"reading ({estimate.speed_from})"),
        (f"{estimate.readings:.3g} ×", "readings that one training would ask of an online teacher"),
    ]
    return facts(pairs)


def cache_facts(cache: Cache, kept: Mapping[str, float]) -> str:
    """What is in the cache in use; `kept`: its kept mass at the chosen temperature, with the bounds of it."""
    manifest = cache.manifest
    error = max(kept["highest"] - kept["kept_mass"], kept["kept_mass"] - kept["lowest"], 1e-6)
    pairs = [
        (cache.name, "cache in use"),
        (f"{manifest.num_windows('train'):,} + {manifest.num_windows('heldout'):,}", "windows to train on + held out"),
        (show_disk(manifest.num_bytes), "on disk"),
        (
            f"{kept['kept_mass']:.2%}",
            f"of the teacher's belief at T = {kept['temperature']:g} is in the top {cache.plan.num_ranked}, at most {error:.4%} off",
        ),
        (f"{-manifest.mean('gold_logprob', 'heldout'):.3f}", "nats per held-out token: the teacher's own score"),
    ]
    return facts(pairs)


def window(rows: Sequence[Mapping[str, Any]], *, temperature: float) -> str:
    """One window of a cache as a table, a token a line: how likely the teacher found it, and what it would have said instead."""
    lines = []
    for row in rows:
        token = _text(row["token"]).replace("\n", "⏎")
        if not row["is_target"]:
            lines.append(f'<tr class="seen"><td>{row["position"]}</td><th>{token}</th><td colspan="3">only read, not learned</td></tr>')
            continue
        choices = "".join(
            f"<li{' class=hit' if choice['token'] == row['token'] else ''} style='--share:{choice['probability']:.3f}'>"
            f"{_text(choice['token']).replace(chr(10), '⏎')} <small>{choice['probability']:.1%}</small></li>"
            for choice in row["choices"]
        )
        figures = f"<td>{row['probability']:.2%}</td><td>{row['kept_mass']:.2%}</td>"
        lines.append(f"<tr><td>{row['position']}</td><th>{token}</th>{figures}<td><ol>{choices}</ol></td></tr>")
    heads = ("", "token", "its probability", "kept mass", "what the teacher expected here, most likely first")
    return (
        '<div class="walk-look" tabindex="0"><table><thead><tr>'
        + "".join(f"<th>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        + f'<p class="walk-quiet">A token\'s own probability is at T = 1, kept mass and choices at T = {temperature:g}. '
        + "Framed: the teacher expected what came.</p>"
    )


def student_facts(student: ModelFacts, teacher: ModelFacts) -> str:
    """The student's size beside the teacher's."""
    times = teacher.num_parameters / student.num_parameters
    pairs = [
        (show_count(student.num_parameters), "parameters"),
        (f"{times:.3g} ×", "smaller than its teacher" if times >= 1 else "of the teacher's size: not smaller"),
        (f"{student.num_layers} of {teacher.num_layers}", "layers"),
        (f"{student.hidden_size:,} of {teacher.hidden_size:,}", "width"),
    ]
    return facts(pairs)


def stale(changed: Sequence[str]) -> str:
    """What was changed since the cache in use was made."""
    words = "These settings are not those of the cache in use, which stays in use until you capture again."
    return f'<div class="walk-aside"><b>{words}</b>{notes(changed)}</div>'


def plan_words(plan: Report) -> str:
    """Whether it fits, what fusing saves, and where it would be tight, what to turn."""
    online, dense, fused = (plan.peaks[mode] for mode in MODES)
    if plan.fits:
        said = f"It fits: {show_gib(fused)} of the {show_gib(plan.limit_bytes)} of {plan.limit_name}."
    else:
        said = f"It does not fit: {show_gib(fused)} is more than the {show_gib(plan.limit_bytes)} of {plan.limit_name}. What would help:"
    if fused < online:
        said += f" Online it would be {show_gib(online)}, offline dense {show_gib(dense)}."
    return f'<p class="walk-quiet">{_text(said)}</p>' + (notes(plan.advice) if plan.predicted_gib > 0.7 * plan.limit_gib else "")


def formula(loss: Mapping[str, Any]) -> str:
    """The loss that the controls describe, as a formula in words."""
    hard, temperature = loss["hard_share"], loss["temperature"]
    ends = ("teacher", "student") if loss["divergence"] == "forward_kl" else ("student", "teacher")
    squared = f" × {temperature:g}²" if temperature != 1 else ""
    at = f" at T = {temperature:g}" if temperature != 1 else ""
    measure = f"KL({ends[0]} ‖ {ends[1]})" if loss["divergence"] != "jsd" else "JSD(teacher, student)"
    soft = f"{1 - hard:g}{squared} × {measure}{at}" if hard < 1 else ""
    ce = f"{hard:g} × cross-entropy with the text's next token" if hard > 0 else ""
    return f'<p class="walk-formula">loss = {" + ".join(part for part in (soft, ce) if part)}</p>'


def kept_mass_words(rows: Sequence[Mapping[str, float]], temperature: float) -> str:
    """How to read the kept-mass chart at the chosen temperature, with advice."""
    if not rows:
        return ""
    near = min(rows, key=lambda row: abs(row["temperature"] - temperature))
    kept = near["kept_mass"]
    said = f"At T = {near['temperature']:g} the cache holds {kept:.2%} of the teacher's belief; the rest is the tail."
    if kept < 0.8:
        said += " That is little: a lower temperature, or a cache with a larger K, would teach more of what the teacher thinks."
    elif temperature > 1:
        said += " A higher temperature makes unlikely words count more. It is no free gain: on the built-in stories T = 1 is best."
    return f'<p class="walk-quiet">{_text(said)}</p>'


def exported(folder: Path) -> str:
    """Where the student is, and three lines that load it anywhere."""
    code = "\n".join(
        [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})",
            f"tokenizer = AutoTokenizer.from_pretrained({str(folder)!r})",
        ]
    )
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    words = f"<p>It is in <code>{_text(folder)}</code> ({show_disk(size)}). Load it anywhere, without this app:</p>"
    return f'{words}<pre class="walk-code">{_text(code)}</pre>'


def press(button: str, words: str, *, state: StepState) -> str:
    """A button (its HTML) with what pressing it does; it stands out where it is the next thing to do."""
    return f'<div class="walk-press {state}">{button}<span>{_text(words)}</span></div>'


def aside(words: str) -> str:
    return f'<div class="walk-aside">{_text(words)}</div>'


def suggestions(models: Sequence[tuple[str, int]]) -> str:
    """Pretrained students that share the teacher's tokenizer, by id and size."""
    if not models:
        return '<p class="walk-quiet">Its tokens are compared with the teacher\'s before anything is trained.</p>'
    listed = ", ".join(f"<code>{_text(name)}</code> ({show_count(size)})" for name, size in models)
    return f'<p class="walk-quiet">Share its tokenizer: {listed}.</p>'


def grid(pieces: Sequence[str]) -> str:
    """Pieces side by side where there is room, below each other where there is not."""
    return '<div class="walk-grid">' + "".join(f"<div>{piece}</div>" for piece in pieces) + "</div>"


def notes(sentences: Sequence[str]) -> str:
    return '<ul class="walk-notes">' + "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences) + "</ul>" if sentences else ""


def tokens(rows: Sequence[Mapping[str, Any]], *, num_documents: int = 2) -> str:
    """The first documents, token by token; those that are learned are underlined, the rest is pale."""
    if not rows:
        return '<p class="walk-quiet">No text yet.</p>'
    documents: dict[Any, list[str]] = {}
    for row in rows:
        shown = _text(row["token"]).replace("\n", "⏎\n")
        kind = "learned" if row["is_target"] else "seen"
        piece = f'<span class="{kind}" title="token {_text(row["token_id"])}">{shown}</span>'
        documents.setdefault(row["document"], []).append(piece)
    blocks = "".join(f"<p>{''.join(pieces)}</p>" for pieces in list(documents.values())[:num_documents])
    return (
        f'<div class="walk-tokens" tabindex="0">{blocks}</div>'
        '<p class="walk-quiet"><span class="learned">Underlined</span>: tokens that the student learns to predict. '
        '<span class="seen">Pale</span>: tokens it only reads.</p>'
    )
