"""Write: a model writes texts from the beginnings of documents; they are judged, counted and kept, to be captured like any other.

1 beginnings, from the documents that are trained on   2 frozen plan   3 writer into memory   4 batch by batch   5 texts, manifest

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947, section 3.2) is text.synthetic of what the teacher wrote
with text.synthetic_share 1, loss.ce_weight 1 and loss.kl_weight 0: the student learns the teacher's texts as if people had written
them. There the best text by beam search stands for all; here a sample does.
"""
# N: windows   L: tokens in a window

import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import catalog, corpus, models
from .cache import Fingerprint
from .catalog import dtype_in_memory
from .config import DistillConfig
from .continued import end_ids, sample
from .device import pick_device
from .errors import ConfigError, TextError
from .progress import Progress
from .texts import Draw, Judge, TextWriter, Written, open_text, repeated_share
from .write_config import BY_TEACHER

TRIES = 4
"""Texts written for each that is asked for, before it ends with fewer."""
SHOWN_WORDS = 12


def run_write(config: DistillConfig, progress: Progress) -> Written:
    """Write the text that the config describes, or go on with it, or find it finished. Returns it opened.

    Raises ConfigError, TextError, ModelError; Stopped after a stop was asked for, finished batches kept.
    """
    progress.phase("reading the text for beginnings")
    source = writer_of(config)
    facts = catalog.facts(source, revision=_revision(config))
    tokenizer = models.load_tokenizer(source, revision=_revision(config))
    text = corpus.build_windows(config.text.changed(synthetic=None), tokenizer)
    documents = [*_documents(text.train), *_documents(text.heldout)]
    num_trained = sum(map(len, text.train.doc_lens))
    prompts = _prompts(config, tokenizer, documents[:num_trained])
    _check_room(config, facts, prompts)
    dtype = dtype_in_memory(facts, config.teacher.dtype if config.write.by == BY_TEACHER else None, str(pick_device(config.device)))
    plan = _plan(config, source, prompts, dtype)
    name = config.write.name or default_name(config, source, plan)
    finished = _finished(name, plan)
    if finished is not None:
        progress.say(f"text {name} is already written, from the same settings: the writer is not needed")
        return finished
    known = [tokenizer.decode(document, skip_special_tokens=True) for document in documents]
    with TextWriter(name, plan) as writer:
        work = _Work(config, progress, writer, source, tokenizer, prompts, Judge(config.write, known))
        _write(work, dtype)
    return open_text(name)


def writer_of(config: DistillConfig) -> str:
    """The model that writes, as models.load_model knows it."""
    return config.teacher.model if config.write.by == BY_TEACHER else config.write.by


def _revision(config: DistillConfig) -> str | None:
    return config.teacher.revision if config.write.by == BY_TEACHER else None


@dataclass(frozen=True)
class _Work:
    """What is written from, before the writer is in memory."""

    config: DistillConfig
    progress: Progress
    writer: TextWriter
    source: str
    tokenizer: Any
    prompts: list[list[int]]
    judge: Judge


# ---------------------------------------------------------------- beginnings
def _documents(windows: corpus.Windows) -> list[list[int]]:
    """Token ids of each document, or piece of a long one."""
    found = []
    for ids_L, lengths in zip(windows.input_ids_NL.tolist(), windows.doc_lens, strict=True):
        start = 0
        for length in lengths:
            found.append(ids_L[start : start + length])
            start += length
    return found


def _prompts(config: DistillConfig, tokenizer: Any, documents: list[list[int]]) -> list[list[int]]:
    """What the model is given, for each document that is trained on; held-out ones are never shown to the writer."""
    settings = config.write
    if not settings.instruction:
        return [document[: max(1, min(settings.prompt_tokens, len(document) // 2))] for document in documents]
    if getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError(
            f"write.instruction needs a model with a chat template; {writer_of(config)} has none. Leave it empty: then the model continues "
            "beginnings."
        )
    seeds = [tokenizer.decode(document[: settings.prompt_tokens], skip_special_tokens=True) for document in documents]
    messages = [[{"role": "user", "content": settings.instruction.replace("{text}", seed)}] for seed in seeds]
    return [tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=True)["input_ids"] for each in messages]


def _check_room(config: DistillConfig, facts: catalog.ModelFacts, prompts: list[list[int]]) -> None:
    """Raise ConfigError where the longest prompt and what is written after it is more than the model can read."""
    longest, limit = max(map(len, prompts)), facts.max_positions
    if limit is not None and longest + config.write.max_new_tokens > limit:
        raise ConfigError(
            f"write.max_new_tokens {config.write.max_new_tokens:,} after a beginning of {longest:,} tokens is more than the {limit:,} that "
            f"{facts.source} can read. Choose at most {max(1, limit - longest):,}, or fewer write.prompt_tokens."
        )


# ---------------------------------------------------------------- plan
def _plan(config: DistillConfig, source: str, prompts: list[list[int]], dtype: str) -> Fingerprint:
    """All that decides which texts are kept."""
    weights = models.weights_fingerprint(source, _revision(config))
    return Fingerprint(
        fields={
            "writer": source,
            "writer.dtype": dtype,
            "writer.commit": str(weights["commit"]),
            **{f"writer.{name}.sha256": sha256 for name, sha256 in weights["files"].items()},
            "text.source": config.text.source,
            "beginnings_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
            **{f"write.{name}": str(value) for name, value in config.write.model_dump(exclude={"name", "by"}).items()},
        }
    )


def default_name(config: DistillConfig, source: str, plan: Fingerprint) -> str:
    """Readable, and different whenever the contents would be."""
    parts = [Path(part).name for part in (source, config.text.source)]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(dict.fromkeys(parts))).strip("-").lower()[:60]
    return f"{slug}-{plan.sha256()[:8]}"


def _finished(name: str, plan: Fingerprint) -> Written | None:
    """The text if it is complete, of this plan, and every byte is as it was written."""
    try:
        written = open_text(name)
    except TextError:
        return None
    if written.manifest.plan != plan:
        return None  # the writer names the fields that differ
    written.verify()
    return written


# ---------------------------------------------------------------- writing
def _write(work: _Work, dtype: str) -> None:
    settings, progress = work.config.write, work.progress
    model: Any = None
    kept: list[Draw] = []
    rejected: list[tuple[Draw, str]] = []
    num_new, spent_s = 0, 0.0
    for part in range(-(-TRIES * settings.num_texts // settings.batch_texts)):
        progress.stop_if_asked()
        draws = work.writer.part(part)
        if draws is None:
            if model is None:
                model = _load(work, dtype)
                progress.phase(f"{work.source} writes {settings.num_texts:,} texts" + (f"; {len(kept):,} are there" if kept else ""))
                progress.at(len(kept), settings.num_texts, "texts")
            started = time.monotonic()
            draws = _draw(work, model, part)
            spent_s += time.monotonic() - started
            num_new += sum(draw.num_tokens for draw in draws)
            work.writer.write_part(part, draws)
        for draw in draws:
            if len(kept) < settings.num_texts:
                reason = work.judge.reason(draw)
                rejected += [(draw, reason)] if reason else []
                kept += [] if reason else [draw]
        if model is not None:
            progress.at(len(kept), settings.num_texts, "texts")
        if len(kept) == settings.num_texts:
            break
    _finish(work, kept, rejected, num_new / spent_s if spent_s else None)


def _load(work: _Work, dtype: str) -> Any:
    work.progress.phase(f"loading {work.source}")
    revision, device = _revision(work.config), pick_device(work.config.device)
    return models.load_model(work.source, revision=revision, dtype=dtype, device=device).eval()


def _draw(work: _Work, model: Any, part: int) -> list[Draw]:
    """One batch: draws part * batch_texts and so on, each from the beginning that its number falls on."""
    settings, tokenizer = work.config.write, work.tokenizer
    numbers = range(part * settings.batch_texts, (part + 1) * settings.batch_texts)
    prompts = [work.prompts[number % len(work.prompts)] for number in numbers]
    sampled = sample(
        model,
        prompts,
        numbers=numbers,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        vocab_size=models.real_vocab_size(model, tokenizer),
        end_ids=end_ids(model, tokenizer),
    )
    draws = []
    for number, prompt, made in zip(numbers, prompts, sampled, strict=True):
        beginning = tokenizer.decode(prompt, skip_special_tokens=True)
        whole = made.token_ids if settings.instruction else prompt + made.token_ids
        text = tokenizer.decode(whole, skip_special_tokens=True)
        repeated = repeated_share(made.token_ids)
        draws.append(
            Draw(
                number=number, prompt=beginning, text=text, num_tokens=len(made.token_ids), is_finished=made.is_finished, repeated=repeated
            )
        )
    return draws


def _finish(work: _Work, kept: list[Draw], rejected: list[tuple[Draw, str]], speed: float | None) -> None:
    settings, progress = work.config.write, work.progress
    reasons = [reason for _, reason in rejected]
    counted = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    words = ", ".join(f"{reason} {count:,}" for reason, count in counted.items())
    if not kept:
        raise TextError(
            f"none of the {len(rejected):,} written texts can be kept: {words}. Look at write.min_new_tokens, write.max_repeated and "
            "write.keep_unfinished, or let a better model write."
        )
    facts = {"writer": work.source, "settings": settings.model_dump(mode="json"), "source": work.config.text.source}
    work.writer.finish(kept, rejected, written_tokens_per_s=speed, **facts)
    progress.say(f"{len(kept):,} texts kept, {len(rejected):,} rejected" + (f": {words}" if words else ""))
    if len(kept) < settings.num_texts:
        progress.say(f"that is fewer than write.num_texts {settings.num_texts:,}: {TRIES} times as many were written, no more")
    progress.say(f"the first: {' '.join(kept[0].text.split()[:SHOWN_WORDS])} …")
