"""What the memory page says in words: facts, what fits where, which setting saves most, and what others measured."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..catalog.model_facts import ModelFacts
from ..config import DistillConfig
from ..language import ENGLISH, Say, later
from ..units import gib, show_count, show_gib
from .adapted import learned_parameters
from .fitting import GPU, fitting_gpus, longest_windows
from .formulas import chunk_tokens
from .prediction import MODES, Mode
from .published import PUBLISHED, published_config
from .reports import Knob

NAMES: dict[Mode, str] = {
    "online": later("Online"),
    "offline dense": later("Offline dense"),
    "offline fused": later("Offline fused"),
}
PRICES = {
    "the same result": later("the same result"),
    "about a third slower": later("about a third slower"),
    "faster on a GPU, products rounded": later("faster on a GPU, products rounded"),
    "a little slower": later("a little slower"),
    "shorter context, and a new capture": later("shorter context, and a new capture"),
}
"""Prices of the knobs, for the catalogue of sentences."""


CONTROLS = {
    "activation_checkpointing": later("compute activations twice"),
    "bf16": later("bfloat16 autocast"),
    "per_device_train_batch_size": later("Windows in a micro-batch"),
    "gradient_accumulation_steps": later("Micro-batches in a step"),
    "chunk_tokens": later("tokens in a chunk"),
    "window_tokens": later("Tokens in a window"),
}
"""A knob's key -> what its control is called on the page."""


def sized(gpu: GPU, *, say: Say = ENGLISH) -> str:
    """'A100, 80 GB (74.5 GiB)': as it is sold, and in the unit of the plan."""
    return f"{gpu.label} ({say.figure(f'{gib(gpu.memory_bytes):.1f} GiB')})"


def size_words(*, say: Say = ENGLISH) -> str:
    """What a GB of a GPU is taken for."""
    words = say("A GPU's GB is counted as 1000³ bytes: 80 GB are 74.5 GiB. Drivers show up to 7 % more: left for themselves and for gaps.")
    return f'<p class="walk-quiet">{escape(words)}</p>'


def knob_words(knob: Knob, *, say: Say = ENGLISH) -> str:
    """'Tokens in a window: 4,096 (text.window_tokens 4096)': as the control is called, and as the setting is."""
    controls = [
        say(CONTROLS[key]) if value is True else say("{control}: {value:,}", control=say(CONTROLS[key]), value=value)
        for values in knob.changes.values()
        for key, value in values.items()
    ]
    return f"{', '.join(controls)} ({knob.name})"


def model_line(facts: ModelFacts, *, say: Say = ENGLISH) -> str:
    """One model in one line."""
    words = say(
        "{name}: {parameters} parameters, {layers} layers, {width:,} wide, vocabulary {vocabulary:,}",
        name=facts.source,
        parameters=show_count(facts.num_parameters),
        layers=facts.num_layers,
        width=facts.hidden_size,
        vocabulary=facts.vocab_size_config,
    )
    return f'<p class="walk-quiet">{escape(words)}</p>'


def learned_words(student: ModelFacts, config: DistillConfig, *, say: Say = ENGLISH) -> str:
    """With LoRA: how many of the student's parameters learn; '' where all do."""
    if config.student.lora_rank is None:
        return ""
    learned = learned_parameters(student, config.student)
    words = say(
        "Only the adapters learn: {learned} parameters, {share:.2%} of the student's. The others need neither gradients nor moments.",
        learned=show_count(learned),
        share=learned / student.num_parameters,
    )
    return f'<p class="walk-quiet">{escape(words)}</p>'


def fit_words(peaks: Mapping[Mode, int], *, say: Say = ENGLISH) -> str:
    """For each way: what it needs, and the smallest GPU of the list that holds it."""
    items = []
    for mode in MODES:
        fitting = fitting_gpus(peaks[mode])
        needs = {"mode": say(NAMES[mode]), "peak": show_gib(peaks[mode])}
        if fitting:
            words = say("{mode}: about {peak}. Smallest GPU of the list that holds it: {gpu}.", **needs, gpu=sized(fitting[0], say=say))
        else:
            words = say("{mode}: about {peak}. No single GPU of the list holds it.", **needs)
        items.append(f"<li{' class=strong' if mode == 'offline fused' else ''}>{escape(words)}</li>")
    return f'<ul class="walk-notes">{"".join(items)}</ul>'


def saving_words(savings: Sequence[tuple[int, Knob]], *, say: Say = ENGLISH) -> str:
    """Which setting saves most from here."""
    if not savings:
        words = say("No setting lowers it by 3 % or more from here: only a smaller student would.")
        return f'<p class="walk-quiet">{escape(words)}</p>'
    items = [
        say(
            "{setting}: about {saved} less ({price})",
            setting=knob_words(knob, say=say),
            saved=show_gib(saved),
            price=say(PRICES[knob.price]),
        )
        for saved, knob in savings
    ]
    return f"<p>{escape(say('What would lower the fused peak, most first:'))}</p>" + (
        '<ol class="walk-notes">' + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ol>"
    )


def window_table(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, chosen: Sequence[GPU], *, say: Say = ENGLISH) -> str:
    """The longest windows on each GPU, by way."""
    head = "".join(f"<th>{escape(say(NAMES[mode]))}</th>" for mode in MODES)
    lines = []
    for gpu in chosen:
        longest = longest_windows(teacher, student, config, limit_bytes=gpu.memory_bytes)
        cells = "".join(
            f'<td data-label="{escape(say(NAMES[mode]))}">{say("{count:,}", count=longest[mode]) if longest[mode] else "–"}</td>'
            for mode in MODES
        )
        lines.append(f"<tr><th>{escape(sized(gpu, say=say))}</th>{cells}</tr>")
    caption = say("Longest windows that fit, in tokens, with the other settings as above; a dash where not even 128 fit.")
    return (
        f'<div class="walk-table" tabindex="0"><table><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
        f'<p class="walk-quiet">{escape(caption)}</p>'
    )


def is_published_setting(config: DistillConfig) -> bool:
    """Whether teacher, student, K and batch are those that the published points speak of, as far as they are known."""
    theirs = published_config()
    everything_learns = config.student.lora_rank is None
    same = everything_learns and (config.teacher.model, config.student.model, config.capture.top_k) == (
        theirs.teacher.model,
        theirs.student.model,
        theirs.capture.top_k,
    )
    return same and config.train.per_device_train_batch_size == theirs.train.per_device_train_batch_size


def published_points(config: DistillConfig, *, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """Rows for charts.memory_chart; [] where the setting is another one."""
    if not is_published_setting(config):
        return []
    kinds = {"published": say("published"), "estimated": say("estimated")}
    sizes = [(point, say.figure(f"{point.gigabytes:g} GB"), say.figure(f"{point.gib:.1f} GiB")) for point in PUBLISHED]
    return [
        {
            "mode": point.mode,
            "window_tokens": point.window_tokens,
            "gib": point.gib,
            "kind": kinds[point.kind],
            "label": f"Multiverse Computing: {gb} = {gib}, {kinds[point.kind]}",
        }
        for point, gb, gib in sizes
    ]


def published_table(plans: Mapping[int, Mapping[Mode, int]], *, say: Say = ENGLISH) -> str:
    """Their figures beside this plan's for the nearest setting. plans: window -> mode -> bytes."""
    heads = (say("tokens in a window"), say("way"), say("theirs"), say("this plan"), say("seconds an iteration, theirs"))
    lines = []
    for point in PUBLISHED:
        kind = say("published") if point.kind == "published" else say("estimated")
        cells = (
            say(NAMES[point.mode]),
            f"{say.figure(f'{point.gigabytes:g} GB')}, {kind}",
            say.figure(f"{plans[point.window_tokens][point.mode] / 1e9:.1f} GB"),
            say.figure(f"{point.step_s:g}") if point.step_s else "–",
        )
        told = "".join(f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(heads[1:], cells, strict=True))
        lines.append(f"<tr><th>{say('{count:,}', count=point.window_tokens)}</th>{told}</tr>")
    head = "".join(f"<th>{escape(word)}</th>" for word in heads)
    notes = (
        say("Theirs: Llama 3.1 8B Instruct teaches a Llama of 3.2B parameters, K = 100, one H200 (arXiv 2608.03796)."),
        say("Not stated there, as far as we know: batch, types of weights and moments, whether activations are computed twice."),
        say("This plan: Llama 3.2 3B, one window a step, float32 weights and moments, bfloat16 autocast, activations kept."),
        say("Fused costs them 9 % time against dense (20.2 s to 18.5 s): memory is bought with a second pass over the head."),
        say("The plan's formulas are checked against measured peaks on a CPU only; on a GPU nothing was measured here."),
    )
    return (
        f'<div class="walk-table" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
        '<ul class="walk-notes">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"
    )


def chunk_words(student: ModelFacts, config: DistillConfig, *, say: Say = ENGLISH) -> str:
    """What the fused loss holds at once."""
    chunk = chunk_tokens(config, student.vocab_size_config, gpu=True)
    tokens = config.train.per_device_train_batch_size * config.text.window_tokens
    words = say(
        "Full logits: {tokens:,} tokens × {vocabulary:,} entries × 4 bytes = {full}, several times. One chunk: {chunk:,} tokens, {part}.",
        tokens=tokens,
        vocabulary=student.vocab_size_config,
        full=show_gib(4 * tokens * student.vocab_size_config),
        chunk=min(chunk, tokens),
        part=show_gib(4 * min(chunk, tokens) * student.vocab_size_config),
    )
    return f'<p class="walk-quiet">{escape(words)}</p>'
