"""The student's best weights so far: a folder that is whole at any time, and what it was before it learned."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import generation, models
from ..adapters import plain_model
from ..cache import Cache
from ..config import DistillConfig
from ..errors import ModelError
from ..paths import publish
from ..runs import Run
from .hidden_states import without_projections


def save_model(model: Any, tokenizer: Any, folder: Path, best: dict[str, float], *, weights: dict[str, Any] | None = None) -> None:
    """Replace the model folder as a whole; a kill in between leaves the old one or the new one.

    `weights`: all of them, where the model holds a piece only.
    """
    mend(folder)
    fresh, old = _beside(folder)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    with without_projections(model):
        plain_model(model).save_pretrained(fresh, state_dict=weights)
    tokenizer.save_pretrained(fresh)
    publish(fresh / "best.json", json.dumps(best))
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)


def mend(folder: Path) -> None:
    """After a kill between the two renames: the new folder was whole already and takes its place, else the old one comes back."""
    fresh, old = _beside(folder)
    if not folder.exists():
        for candidate in (fresh, old):
            if (candidate / "best.json").exists():  # written last
                os.replace(candidate, folder)
                return


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where the next model is written, and where the last one goes until it stands."""
    return folder.with_name(folder.name + ".partial"), folder.with_name(folder.name + ".old")


def stored_best(folder: Path) -> dict[str, float]:
    """{"step", "nll", "kl"} (nats per token) of the weights in the model folder; step -1 when there are none."""
    mend(folder)
    path = folder / "best.json"
    return json.loads(path.read_text()) if path.exists() else {"step": -1, "nll": float("inf"), "kl": float("inf")}


def load_student(run: Run, device: torch.device) -> Any:
    """The run's best weights. Raises ModelError when it has none yet."""
    mend(run.model_folder)
    if not (run.model_folder / "config.json").exists():
        raise ModelError(
            f"run {run.id} has no model yet: it is {run.status().state}. Resume it: python -m distill_core train --resume {run.id}"
        )
    return models.load_model(str(run.model_folder), dtype="float32", device=str(device))


def write_untrained(run: Run, cache: Cache, student: nn.Module, tokenizer: Any, config: DistillConfig) -> None:
    """What the student writes before it has learned anything, kept for the judging."""
    prompts = [list(ids) for ids in cache.manifest.teacher.prompt_ids]
    samples = generation.continuations(student, tokenizer, prompts, num_tokens=config.capture.sample_tokens).texts
    publish(run.folder / "untrained.json", json.dumps({"samples": samples}, indent=2))
