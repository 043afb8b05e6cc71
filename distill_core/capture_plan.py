"""What a capture will write, before it writes: the fingerprint of all that decides what the teacher says, and the windows of each shard."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from . import models
from .cache import Fingerprint, HiddenPlan, Plan, ShardPlan
from .catalog import ModelFacts
from .config import DistillConfig, TextConfig
from .errors import ConfigError


def make_plan(
    config: DistillConfig,
    windows: dict[str, Any],
    tokenizer: Any,
    *,
    weights: dict[str, Any],
    dtype: str,
    beside: dict[str, str] | None = None,
    hidden: HiddenPlan | None = None,
) -> Plan:
    """The frozen plan: which windows go into which shard, and all that decides what the teacher says; `beside`: what it reads besides."""
    vocabulary = models.vocabulary(tokenizer)
    vocab_size = max(vocabulary.values()) + 1
    num_exact = config.capture.num_ranked if config.capture.select != "topk" else None
    if num_exact is not None and config.capture.top_k >= vocab_size:
        raise ConfigError(f"capture.top_k {config.capture.top_k} holds the whole vocabulary of {vocab_size:,}: use capture.select 'topk'.")
    template = getattr(tokenizer, "chat_template", None)
    fields = {
        "teacher.model": config.teacher.model,
        "teacher.dtype": dtype,
        "teacher.commit": str(weights["commit"]),
        **{f"teacher.{name}.sha256": sha256 for name, sha256 in weights["files"].items()},
        "tokenizer.vocabulary_sha256": _sha256(json.dumps(sorted(vocabulary.items(), key=lambda item: item[1]))),
        "tokenizer.chat_template_sha256": _sha256(json.dumps(template, sort_keys=True)),
        "text.source": config.text.source,
        "text.window_tokens": str(config.text.window_tokens),
        "text.packing": str(config.text.packing),
        "text.num_windows": str(len(windows["train"])),
        "text.num_heldout_windows": str(len(windows["heldout"])),
        "text.windows_sha256": _windows_sha256(windows),
        **_synthetic_fields(config.text),
        **(beside or {}),
        "capture.top_k": str(min(config.capture.top_k, vocab_size)),
        "capture.select": config.capture.select,
        "capture.num_exact": str(num_exact),
        "capture.codec": config.capture.codec,
        "capture.batch_windows": str(config.capture.batch_windows),
        "capture.windows_per_shard": str(config.capture.windows_per_shard),
        **_hidden_fields(hidden),
    }
    shards = []
    for split, part in windows.items():
        size = config.capture.windows_per_shard
        for number, first in enumerate(range(0, len(part), size)):
            shards.append(
                ShardPlan(name=f"{split}-{number:05d}", split=split, first_window=first, num_windows=min(size, len(part) - first))
            )
    return Plan(
        fingerprint=Fingerprint(fields=fields),
        top_k=min(config.capture.top_k, vocab_size),
        num_exact=num_exact,
        vocab_size=vocab_size,
        window_tokens=config.text.window_tokens,
        packing=config.text.packing,
        codec=config.capture.codec,
        hidden=hidden,
        shards=tuple(shards),
    )


def _synthetic_fields(text: TextConfig) -> dict[str, str]:
    """Named where there is synthetic text; its content is in text.windows_sha256. Caches without it keep their fingerprint."""
    return {} if text.synthetic is None else {"text.synthetic": text.synthetic, "text.synthetic_share": str(text.synthetic_share)}


def hidden_plan(config: DistillConfig, facts: ModelFacts) -> HiddenPlan | None:
    """What is kept of the teacher's hidden states. Raises ConfigError for layers and sizes that it has not, before it is loaded."""
    capture = config.capture
    if not capture.hidden_layers:
        return None
    if config.text.image_column is not None:
        raise ConfigError(
            "capture.hidden_layers with text.image_column: the teacher reads other tokens than the student, and their states are not "
            "aligned. Leave one of them out."
        )
    wrong = [layer for layer in capture.hidden_layers if layer > facts.num_layers]
    if wrong:
        raise ConfigError(
            f"capture.hidden_layers {wrong[0]}: teacher {config.teacher.model} has {facts.num_layers} layers, numbered from 1; 0 is its "
            "embeddings. Name layers that are there."
        )
    width = capture.hidden_size or facts.hidden_size
    if width > facts.hidden_size:
        raise ConfigError(
            f"capture.hidden_size {width:,} is more than the {facts.hidden_size:,} numbers of the teacher's hidden states. "
            "Use fewer, or leave it out for all of them."
        )
    return HiddenPlan(
        layers=capture.hidden_layers,
        codec=capture.hidden_codec,
        width=width,
        projection="orthonormal" if capture.hidden_size else "none",
    )


def _hidden_fields(hidden: HiddenPlan | None) -> dict[str, str]:
    """Of the fingerprint; none for a cache without hidden states, whose fingerprint is as ever."""
    if hidden is None:
        return {}
    names = ("layers", "codec", "width", "projection", "seed")
    return {f"capture.hidden.{name}": json.dumps(getattr(hidden, name)) for name in names}


def default_name(config: DistillConfig, plan: Plan) -> str:
    """Readable, and different whenever the contents would be."""
    parts = [Path(source).name.removesuffix(".gguf") for source in (config.teacher.model, config.text.source)]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(dict.fromkeys(parts))).strip("-").lower()[:60]
    return f"{slug}-{plan.fingerprint.sha256()[:8]}"


def _windows_sha256(windows: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for split, part in windows.items():
        digest.update(split.encode())
        for array in (part.input_ids_NL, part.targets_NP):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(json.dumps([[int(length) for length in lens] for lens in part.doc_lens]).encode())
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
