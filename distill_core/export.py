"""Taking the model home: a folder that plain `from_pretrained` loads, and a card that says where it comes from."""

import importlib.metadata
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from . import models
from .cache import Cache, open_cache
from .config import Dtype, LossConfig, StudentConfig
from .errors import RunError
from .paths import PACKAGE
from .runs import Run
from .training.model_folder import load_student
from .units import show_count


def export_model(run: Run, folder: Path, *, dtype: Dtype = "float32") -> Path:
    """Write the run's best weights (safetensors), tokenizer and model card. Raises RunError if the folder is not empty; ModelError."""
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty, and nothing there shall be overwritten. Choose a new folder: --to …")
    logging.disable_progress_bar()  # of loading and writing weights
    model = load_student(run, torch.device("cpu")).to(getattr(torch, dtype))
    cache = open_cache(run.inputs()["cache"])
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    models.load_tokenizer(str(cache.tokenizer_folder)).save_pretrained(partial)
    (partial / "README.md").write_text(
        model_card(run, cache, num_parameters=sum(p.numel() for p in model.parameters()), dtype=dtype), encoding="utf-8"
    )
    if folder.exists():
        folder.rmdir()
    for file in partial.glob("*.safetensors"):
        file.chmod(0o644)  # written readable for its owner only, unlike the files beside it
    partial.rename(folder)
    return folder


def model_card(run: Run, cache: Cache, *, num_parameters: int, dtype: str) -> str:
    """Provenance and measured quality, in Hugging Face's model-card form."""
    config, manifest = run.config(), cache.manifest
    teacher, fields = manifest.teacher, manifest.plan.fingerprint.fields
    evaluation = json.loads(run.evaluation_path.read_text(encoding="utf-8")) if run.evaluation_path.exists() else None
    loss, train = config.loss, config.train
    result = run.stored_status().result
    windows_per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps * result.get("num_processes", 1)
    best_step = json.loads((run.model_folder / "best.json").read_text(encoding="utf-8"))["step"]
    seen = best_step * windows_per_step * manifest.plan.window_tokens
    provenance = {
        name: value
        for name, value in fields.items()
        if name.startswith("teacher.") and name not in ("teacher.model", "teacher.dtype") and value != "None"
    }
    front = ["---", "library_name: transformers", "tags: [distillation]"]
    front += [f"license: {teacher.license.lower()}"] if teacher.license else []
    base = teacher.model if "/" in teacher.model and not Path(teacher.model).exists() else None
    front += [f"base_model: {base}"] if base else []
    lines = [
        *front,
        "---",
        f"# {run.id}: a student of {Path(teacher.model).name}",
        "",
        f"{show_count(num_parameters)} parameters, {dtype}, distilled offline from a cache of the teacher's log-probabilities, "
        f"{manifest.plan.stored_words} per position.",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        'model = AutoModelForCausalLM.from_pretrained("this folder")',
        'tokenizer = AutoTokenizer.from_pretrained("this folder")',
        "```",
        "",
        "## Where it comes from",
        "",
        "| | |",
        "| --- | --- |",
        f"| teacher | {Path(teacher.model).name} ({teacher.architecture}, {show_count(teacher.num_parameters)}, {teacher.dtype}) |",
        *(f"| {name} | `{value}` |" for name, value in provenance.items()),
        f"| text | {Path(fields['text.source']).name}, {manifest.num_windows('train'):,} windows of {manifest.plan.window_tokens} tokens |",
        f"| cache sha256 | `{manifest.sha256()}` |",
        f"| K | {loss.top_k or manifest.plan.stored_words.removeprefix('top ')} |",
        f"| kept mass at T = {loss.temperature:g} | {float(cache.kept_mass(loss.temperature, top_k=loss.top_k).mean()):.4f} |",
        f"| temperature T | {loss.temperature:g} |",
        f"| loss | {_loss_words(loss)} |",
        f"| tokens seen | {seen:,}, up to step {best_step:,} of {train.max_steps:,}, where these weights are from |",
        f"| batch, learning rate, seed | {train.per_device_train_batch_size * train.gradient_accumulation_steps} windows, "
        f"{train.learning_rate:g}, {train.seed} |",
        f"| student | {_student_words(config.student)} |",
        f"| made with | {program()}; captured with {', '.join(f'{name} {version}' for name, version in manifest.versions.items())} |",
        "",
        "## Measured quality",
        "",
        *(_quality(evaluation) if evaluation else ["Not judged yet. Judge it: `python -m distill_core evaluate " + run.id + "`"]),
        "",
    ]
    return "\n".join(lines)


def _student_words(student: StudentConfig) -> str:
    if student.lora_rank is None:
        return student.init
    return (
        f"{student.init}, LoRA of rank {student.lora_rank}" + (f" on {student.quantize} weights" if student.quantize else "") + ", merged"
    )


def _loss_words(loss: LossConfig) -> str:
    mixture = f", jsd_weight {loss.jsd_weight:g}" if loss.divergence == "jsd" else ""
    z_loss = f" + {loss.z_loss_weight:g} x z-loss" if loss.z_loss_weight else ""
    worst = (
        f" + {loss.adversarial_weight:g} x the same under worst-case changes of the embeddings (radius {loss.adversarial_radius:g})"
        if loss.adversarial_weight
        else ""
    )
    if loss.hidden_weight:
        worst += f" + {loss.hidden_weight:g} x {loss.hidden_loss} difference of hidden states"
    return f"{loss.kl_weight:g} x T² x {loss.divergence} (tail: {loss.tail}{mixture}) + {loss.ce_weight:g} x cross-entropy{z_loss}{worst}"


def program() -> str:
    """This package's version, and its commit where it runs from a checkout: 'distill-core 0.1.0, commit 1a2b3c4d5e6f'."""
    try:
        name = f"distill-core {importlib.metadata.version('distill-core')}"
    except importlib.metadata.PackageNotFoundError:  # used without being installed
        name = "distill-core"
    if not (PACKAGE.parent / ".git").exists() or shutil.which("git") is None:
        return name
    asked = ["git", "-C", str(PACKAGE.parent), "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return f"{name}, commit {found.stdout.strip()}" if found.returncode == 0 else name


def _quality(evaluation: dict[str, Any]) -> list[str]:
    head = ["| | bits per byte | KL to teacher (nats/token) | top-1 agreement | perplexity |", "| --- | --- | --- | --- | --- |"]
    columns = (("bits_per_byte", ".3f"), ("kl_to_teacher", ".3f"), ("top1_agreement", ".3f"), ("perplexity", ".3g"))
    rows = ["| " + " | ".join([row["who"], *(format(row[name], form) for name, form in columns)]) + " |" for row in evaluation["rows"]]
    return [*head, *rows, "", evaluation["verdict"], "", *(f"* {note}" for note in evaluation["notes"])]
