"""How the walk's controls become one config and back, and what a config would cost before anything is spent. No widgets here."""

import io
import json
import math
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from .. import catalog, corpus, memory, panel
from ..cache import Cache, Estimate, browse, estimate, guessed_speed, open_cache
from ..catalog.model_facts import ModelFacts
from ..config import BUILTIN, DistillConfig, from_dict
from ..errors import DistillError, RunError, TextError
from ..limits import is_gpu
from ..runs import Run
from .place import export_folder

Values = Mapping[str, Any]

T = TypeVar("T")


def tried(call: Callable[..., T], *args: Any) -> tuple[T | None, str]:
    """(result, '') or, where the call says what its user did wrong, (None, its words). Other errors pass: they are ours."""
    try:
        return call(*args), ""
    except DistillError as error:
        return None, str(error)


AUTOMATIC = "suits the student"
LEARNING_RATES = {"fresh": 5e-3, "prune_layers": 5e-4, "pretrained": 5e-5}
"""Peak learning rates that suit each way to begin: random weights bear the largest, trained ones want to be kept."""


def teacher_kind(model: str) -> str:
    return BUILTIN if model == BUILTIN else "hub" if not Path(model).expanduser().exists() and not model.endswith(".gguf") else "local"


def text_kind(source: str) -> str:
    return BUILTIN if source == BUILTIN else "local" if Path(source).suffix in (".txt", ".jsonl", ".parquet") else "hub"


def config_from(base: DistillConfig, values: Mapping[str, Values]) -> DistillConfig:
    """One config from the controls' values, section by section, over `base` for all they do not show. Raises ConfigError."""
    teacher, text, student, loss, train = (values[name] for name in ("teacher", "text", "student", "loss", "train"))
    plain = base.model_dump()
    model = BUILTIN if teacher["kind"] == BUILTIN else teacher["model"].strip()
    if model != base.teacher.model:
        plain["teacher"] = {"model": model}
    source = BUILTIN if text["kind"] == BUILTIN else text["source"].strip()
    plain["text"] |= {name: text[name] for name in ("column", "split", "window_tokens", "num_windows", "packing")} | {"source": source}
    plain["text"]["subset"] = text["subset"].strip() or None
    if text["num_windows"] != base.text.num_windows:
        plain["text"]["num_heldout_windows"] = min(64, max(8, text["num_windows"] // 4))
    plain["capture"] |= {"top_k": values["capture"]["top_k"]}
    init = student["init"]
    plain["student"] = _student_from(base, student)
    plain["loss"] |= {name: loss[name] for name in ("temperature", "divergence", "tail")}
    hard = loss["hard_share"]
    if hard != control_values(base)["loss"]["hard_share"]:
        plain["loss"] |= {"kl_weight": round(1 - hard, 4), "ce_weight": round(hard, 4)}
    steps = train["max_steps"]
    rate = train["learning_rate"]
    plain["train"] |= {
        "max_steps": steps,
        "per_device_train_batch_size": train["batch_size"],
        "learning_rate": LEARNING_RATES[init] if rate == AUTOMATIC else float(rate),
        "seed": train["seed"],
        "name": None,
    }
    if steps and steps != base.train.max_steps:  # looks at the held-out text and warm-up follow the number of steps
        plain["train"] |= {"eval_steps": max(1, steps // 10), "warmup_steps": max(1, steps // 12)}
    return from_dict(plain)


def _student_from(base: DistillConfig, student: Values) -> dict[str, Any]:
    """The student section; what the controls do not show stays as in `base` while the way to begin is the same."""
    init = student["init"]
    chosen: dict[str, Any] = base.student.model_dump() if init == base.student.init else {}
    chosen["init"] = init
    if init == "pretrained":
        model = student["model"].strip() or None
        if model != base.student.model:
            chosen["revision"] = None
        return chosen | {"model": model}
    num_layers = student["num_layers"] or None
    if num_layers != base.student.num_layers:
        chosen["keep_layers"] = None
    chosen["num_layers"] = num_layers
    if init == "fresh":
        chosen["hidden_size"] = student["hidden_size"] or None
    return chosen


def control_values(config: DistillConfig) -> dict[str, dict[str, Any]]:
    """The inverse of config_from: what each control shows for a config."""
    kind = teacher_kind(config.teacher.model)
    total = config.loss.kl_weight + config.loss.ce_weight
    rate = config.train.learning_rate
    return {
        "teacher": {"kind": kind, "model": "" if kind == BUILTIN else config.teacher.model},
        "text": {
            "kind": text_kind(config.text.source),
            "source": "" if config.text.source == BUILTIN else config.text.source,
            **config.text.model_dump(include={"column", "split", "window_tokens", "num_windows", "packing"}),
            "subset": config.text.subset or "",
        },
        "capture": {"top_k": config.capture.top_k},
        "student": {
            "init": config.student.init,
            "model": config.student.model or "",
            "num_layers": config.student.num_layers or 0,
            "hidden_size": config.student.hidden_size or 0,
        },
        "loss": {
            **config.loss.model_dump(include={"temperature", "divergence", "tail"}),
            "hard_share": round(config.loss.ce_weight / total, 2),
        },
        "train": {
            "max_steps": config.train.max_steps,
            "batch_size": config.train.per_device_train_batch_size,
            "learning_rate": AUTOMATIC if rate == LEARNING_RATES[config.student.init] else f"{rate:g}",
            "seed": config.train.seed,
        },
    }


def for_cache(config: DistillConfig, cache: Cache) -> DistillConfig:
    """The config with teacher, text and capture as the cache was made: what a training on it is."""
    made = from_dict(cache.manifest.config)
    return config.changed(teacher=made.teacher, text=made.text, capture=made.capture)


def differences(config: DistillConfig, cache: Cache) -> list[str]:
    """Settings of teacher, text and capture that are not those of the cache: 'text.num_windows: 400 in the cache, now 800'."""
    made = from_dict(cache.manifest.config)
    return [
        f"{section}.{name}: {getattr(getattr(made, section), name)} in the cache, now {value}"
        for section, fields in (
            ("teacher", ("model", "revision")),
            ("text", tuple(type(config.text).model_fields)),
            ("capture", ("top_k",)),
        )
        for name in fields
        if (value := getattr(getattr(config, section), name)) != getattr(getattr(made, section), name)
    ]


# ---- before anything is spent


def estimate_cache(config: DistillConfig, teacher: ModelFacts) -> Estimate:
    """What the config's capture will cost, before any weight is loaded."""
    vocab_size = teacher.vocab_size_tokenizer or teacher.vocab_size_config
    return estimate(config, vocab_size=vocab_size, guess=guessed_speed(teacher.num_parameters, on_gpu=is_gpu(config.device)))


def preview(base: DistillConfig, teacher: Values, text: Values) -> list[dict[str, Any]]:
    """First tokens with their loss mask, rows of {'document', 'token', 'is_target', ...}. Raises TextError and ConfigError.

    With the built-in tokenizer and local text in this process; anything else needs transformers or datasets, and runs in one of its own.
    """
    config = config_from(base, {**control_values(base), "teacher": teacher, "text": text})
    if not config.teacher.model or not config.text.source:
        raise TextError("Name the teacher and the text first: its tokens are the teacher's.")
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


def export(run_id: str) -> Path:
    """Export a trained student into export_folder, by a process of its own (it needs torch). Raises RunError with its words."""
    folder = export_folder(run_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "distill_core", "export", run_id, "--to", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise RunError(done.stderr.strip().removeprefix("error: ") or f"the export ended with code {done.returncode} and said nothing")
    return folder


def kept_mass_rows(cache: Cache) -> list[dict[str, float]]:
    """Kept mass of the cache over temperature, means over its sample: rows for charts.kept_mass_chart."""
    return [{"temperature": t, "kept_mass": float(cache.kept_mass(t).mean())} for t in (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)]


def kept_mass_at(cache: Cache, temperature: float) -> dict[str, float]:
    """{'temperature', 'kept_mass', 'lowest', 'highest'} at one temperature: means over the cache's sample, and what bounds them."""
    lowest, highest = cache.kept_mass_bracket(temperature)
    mean, low, high = (float(mass_C.mean()) for mass_C in (cache.kept_mass(temperature), lowest, highest))
    return {"temperature": temperature, "kept_mass": mean, "lowest": low, "highest": high}


def window_rows(cache: Cache, asked: Values, temperature: float) -> list[dict[str, Any]]:
    """One window of the cache, `asked` by {'split', 'window'}, as rows of `browse`. Raises CacheError for one that is not there."""
    return browse(cache, asked["split"], asked["window"] or 0, temperature=temperature).to_dicts()


def zipped(folder: Path) -> bytes:
    """The folder as one .zip file, in memory."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, Path(folder.name) / path.relative_to(folder))
    return into.getvalue()


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


def training_pictures(tracks: Mapping[str, Run]) -> list[dict[str, Any]]:
    """The live charts of a training and its twin, with the plan's prediction and the teacher's own line where they are known."""
    first = next(iter(tracks.values()))
    config = first.config()
    plan, _ = tried(memory.report, config)
    cache, _ = tried(open_cache, first.inputs()["cache"])
    return panel.training_pictures(
        list(tracks),
        predicted_gib=plan.predicted_gib if plan else None,
        limit_gib=plan.limit_gib if plan else None,
        teacher_bits_per_byte=teacher_bits_per_byte(cache) if cache else None,
        eval_steps=config.train.eval_steps,
    )
