"""A line for each run and each cache: state, age, owner, what it is made of, and how much disk it takes."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cache import Manifest
from ..cache.manifest import read_record
from ..catalog.weights import read_safetensors
from ..errors import CacheError, DistillError
from ..paths import caches_dir
from ..runs import MAKES_CACHE, Run, Status, list_runs
from .quality import MEASURES, qualities
from .there import of_each

"""Kinds of run that make a cache."""

Row = dict[str, Any]


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in it; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a run at work deletes its old checkpoints
            continue
    return total


def manifest_of(cache: str | None) -> Manifest | None:
    """The manifest of a complete cache; None for one that is unfinished, damaged or gone."""
    try:
        return read_record(Manifest, caches_dir() / cache / "manifest.json", cache=cache) if cache else None
    except (CacheError, FileNotFoundError, NotADirectoryError):
        return None


def active_runs() -> list[Run]:
    """Runs that wait or work now, newest first: what a page reads again and again, so it asks the status of those only."""
    return [
        run for run, is_active in of_each(list_runs(), lambda run: run.stored_status().is_active and run.status().is_active) if is_active
    ]


def run_rows(runs: Sequence[Run] | None = None, *, now_s: float | None = None) -> list[Row]:
    """All runs (or these), newest first, with the settings that tell them apart and their figures where there are any.

    A run whose config cannot be read keeps its line, with None for what only the config says.
    """
    everything = list_runs()
    chosen = everything if runs is None else runs
    stored = of_each(chosen, Run.stored_status)
    figures = qualities([run for run, status in stored if status.kind == "train"], known=everything)
    manifests: dict[str | None, Manifest | None] = {}
    rows = []
    for run, status in of_each(chosen, Run.status):
        cache = inputs_of(run).get("cache")
        if cache not in manifests:
            manifests[cache] = manifest_of(cache)
        quality = figures.get(run.id, {})
        rows.append(
            {
                **_of_status(status, now_s=now_s),
                **_of_config(run, status, manifests[cache]),
                "cache": cache or status.result.get("cache"),
                "num_parameters": quality.get("num_parameters") or _num_parameters(run),
                "disk_bytes": folder_bytes(run.folder),
                **{name: quality.get(name) for name in MEASURES},
                "tokens_per_s": quality.get("tokens_per_s"),
            }
        )
    return rows


def _of_status(status: Status, *, now_s: float | None) -> Row:
    now = time.time() if now_s is None else now_s
    ended = status.ended_s if status.ended_s is not None else now if status.is_active else None
    return {
        "id": status.id,
        "kind": status.kind,
        "state": status.state,
        "label": status.label,
        "owner": getattr(status, "owner", ""),
        "created_s": status.created_s,
        "age_s": max(0.0, now - status.created_s),
        "duration_s": ended - status.started_s if status.started_s is not None and ended is not None else None,
        "done": status.done,
        "total": status.total,
    }


SETTINGS = ("teacher", "text", "top_k", "temperature", "divergence", "kl_weight", "ce_weight", "max_steps", "learning_rate", "seed")


def _of_config(run: Run, status: Status, manifest: Manifest | None) -> Row:
    """Teacher, text and K as the cache says, which is what the run learns from; the rest as its config says."""
    row: Row = dict.fromkeys(SETTINGS)
    try:
        config = run.config()
    except DistillError:
        return row
    made = manifest.config if manifest else config.model_dump()
    stored = manifest.plan.num_ranked if manifest else config.capture.num_ranked
    row |= {"teacher": made["teacher"]["model"], "text": made["text"]["source"], "top_k": stored}
    if status.kind != "train":
        return row
    loss, train = config.loss, config.train
    return row | {
        "top_k": loss.top_k or stored,
        **loss.model_dump(include={"temperature", "divergence", "kl_weight", "ce_weight"}),
        **train.model_dump(include={"max_steps", "learning_rate", "seed"}),
    }


def inputs_of(run: Run) -> dict[str, str]:
    try:
        return run.inputs()
    except (FileNotFoundError, ValueError):
        return {}


def _num_parameters(run: Run) -> int | None:
    """Counted from the headers of the weights the run keeps; None before the first."""
    weights = sorted(run.model_folder.glob("model*.safetensors"))
    try:
        return read_safetensors(weights).num_parameters if weights else None
    except (DistillError, FileNotFoundError):  # just being replaced
        return None


def cache_rows(*, now_s: float | None = None) -> list[Row]:
    """All cache folders, newest first: complete ones, unfinished ones and damaged ones, for all of them take disk."""
    if not caches_dir().is_dir():
        return []
    now = time.time() if now_s is None else now_s
    runs = [(run, status, inputs_of(run)) for run, status in of_each(list_runs(), Run.stored_status)]
    rows = []
    for folder in caches_dir().iterdir():
        if not (folder / "plan.json").is_file() and not (folder / "manifest.json").is_file():
            continue
        manifest = manifest_of(folder.name)
        complete = (folder / "manifest.json").is_file()
        try:
            made_s = (folder / ("manifest.json" if complete else "plan.json")).stat().st_mtime
        except FileNotFoundError:  # just being deleted
            continue
        made_by = next(
            (status for _, status, _ in runs if status.kind in MAKES_CACHE and status.result.get("cache") == folder.name),
            None,
        )
        rows.append(
            {
                "id": folder.name,
                "kind": "cache",
                "state": "complete" if manifest else "damaged" if complete else "unfinished",
                "owner": getattr(made_by, "owner", ""),
                "created_s": made_s,
                "age_s": max(0.0, now - made_s),
                "teacher": manifest.teacher.model if manifest else None,
                "text": manifest.config["text"]["source"] if manifest else None,
                "top_k": manifest.plan.num_ranked if manifest else None,
                "num_windows": manifest.num_windows("train") if manifest else None,
                "num_positions": manifest.all_positions if manifest else None,
                "disk_bytes": folder_bytes(folder),
                "num_students": sum(inputs.get("cache") == folder.name for _, status, inputs in runs if status.kind == "train"),
            }
        )
    return sorted(rows, key=lambda row: -row["created_s"])
