"""What the walk looks up before anything is spent: costs, the first tokens, what a cache holds, the lines of the live charts."""

import functools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from .. import catalog, corpus, memory, panel
from ..cache import Cache, Estimate, browse, estimate, guessed_speed, shared_cache
from ..catalog.model_facts import ModelFacts
from ..config import BUILTIN, DistillConfig, LossConfig
from ..errors import TextError
from ..language import ENGLISH, Say
from ..limits import is_gpu
from ..runs import Run
from .controls import Values, config_from, control_values, text_kind, tried


def estimate_cache(config: DistillConfig, teacher: ModelFacts) -> Estimate:
    """What the config's capture will cost, before any weight is loaded."""
    vocab_size = teacher.vocab_size_tokenizer or teacher.vocab_size_config
    guess = guessed_speed(teacher.num_parameters, on_gpu=is_gpu(config.device))
    return estimate(
        config, vocab_size=vocab_size, guess=guess, context_factor=corpus.reading_factor(config), hidden_size=teacher.hidden_size
    )


def preview(base: DistillConfig, teacher: Values, text: Values, *, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """First tokens with their loss mask, rows of {'document', 'token', 'is_target', ...}. Raises TextError and ConfigError.

    With the built-in tokenizer and local text in this process; anything else needs transformers or datasets, and runs in one of its own.
    """
    config = config_from(base, {**control_values(base), "teacher": teacher, "text": text})
    if not config.teacher.model or not config.text.source:
        raise TextError(say("Name the teacher and the text first: its tokens are the teacher's."))
    if config.teacher.model == BUILTIN and text_kind(config.text.source) != "hub":
        return corpus.preview(config.text, corpus.builtin_tokenizer()).to_dicts()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(config.to_json(), encoding="utf-8")
        command = [sys.executable, "-m", "distill_core", "data", "preview", "--json", "--config", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise TextError(done.stderr.strip().removeprefix("error: ") or f"the preview ended with code {done.returncode} and said nothing")
    return json.loads(done.stdout.strip().splitlines()[-1])


def kept_mass_rows(cache: Cache) -> list[dict[str, float]]:
    """Kept mass of the cache over temperature, means over its sample: rows for charts.kept_mass_chart."""
    return [{"temperature": t, "kept_mass": mean_kept_mass(cache, t)} for t in (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)]


@functools.lru_cache(maxsize=64)
def mean_kept_mass(cache: Cache, temperature: float) -> float:
    """Mean over the cache's sample; remembered, for every visitor of a cache asks for the same ones."""
    return float(cache.kept_mass(temperature).mean())


def kept_mass_at(cache: Cache, temperature: float) -> dict[str, float]:
    """{'temperature', 'kept_mass', 'lowest', 'highest'} at one temperature: means over the cache's sample, and what bounds them."""
    lowest, highest = cache.kept_mass_bracket(temperature)
    mean, low, high = (float(mass_C.mean()) for mass_C in (cache.kept_mass(temperature), lowest, highest))
    return {"temperature": temperature, "kept_mass": mean, "lowest": low, "highest": high}


def window_rows(cache: Cache, asked: Values, temperature: float) -> list[dict[str, Any]]:
    """One window of the cache, `asked` by {'split', 'window'}, as rows of `browse`. Raises CacheError for one that is not there."""
    return browse(cache, asked["split"], asked["window"] or 0, temperature=temperature).to_dicts()


def teacher_bits_per_byte(cache: Cache) -> float:
    """The teacher's own bits per byte on the held-out text, from what the cache stores of it."""
    num_bytes = sum(entry.num_text_bytes for entry in cache.manifest.entries_of("heldout"))
    nats = -cache.manifest.mean("gold_logprob", "heldout") * cache.manifest.num_positions("heldout")
    return nats / math.log(2) / num_bytes


def siblings(teacher: ModelFacts) -> list[tuple[str, int]]:
    """(id, parameters) of smaller models that share the teacher's tokenizer, largest first; [] where the teacher is not in it."""
    table = catalog.models_table()
    families = table.filter(pl.col("id") == teacher.source)["family"].to_list()
    smaller = (pl.col("num_parameters") < teacher.num_parameters) & (pl.col("role") != "teacher")
    near = table.filter(pl.col("family").is_in(families) & smaller)
    return near.sort("num_parameters", descending=True).select("id", "num_parameters").rows()


def is_kl_alone(loss: LossConfig) -> bool:
    """The loss is the KL itself, with weight 1 and no other part: kl_weight × T² × KL + ce_weight × CE + z_loss_weight × z + terms."""
    return (
        loss.ce_weight == loss.z_loss_weight == loss.adversarial_weight == loss.hidden_weight == 0
        and loss.kl_weight * loss.temperature**2 == 1
    )


def training_pictures(tracks: Mapping[str, Run], *, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """The live charts of a training and its twin, with the plan's prediction and the teacher's own line where they are known."""
    first = next(iter(tracks.values()))
    config = first.config()
    plan, _ = tried(memory.report, config)
    cache, _ = tried(shared_cache, first.inputs()["cache"])
    return panel.training_pictures(
        list(tracks),
        predicted_gib=plan.predicted_gib if plan else None,
        limit_gib=plan.limit_gib if plan else None,
        teacher_bits_per_byte=teacher_bits_per_byte(cache) if cache else None,
        eval_steps=config.train.eval_steps,
        has_total=not is_kl_alone(config.loss),
        say=say,
    )
