"""How many layers can go: what each is worth, the order in which they go, and where runs that were trained stand, as rows and a table."""

from typing import Any

import torch

from .. import metrics, models
from ..cache import Cache
from ..catalog.shapes import kept_layers
from ..config import StudentConfig, from_dict
from ..errors import ConfigError
from ..heads import probe_head
from ..runs import list_runs
from .layers import Sample, Say, layer_list, left_out, measure_layers, order_of_removal

Report = dict[str, Any]


def importance(cache: Cache, device: torch.device, *, num_windows: int, split: str = "heldout", say: Say = lambda _: None) -> Report:
    """Measure the cache's teacher on the first windows of a split.

    'cache', 'teacher', 'split', 'num_windows', 'num_layers'; 'whole': KL with all layers; 'layers': a row per layer with 'layer', 'kl',
    'influence'; 'removal': a row per number of layers left with 'num_left', 'layer', 'kl', and 'even_kl', of the evenly chosen ones;
    'trained': runs on this cache whose student lost layers, with 'run', 'num_left', 'kl', 'steps', 'choice'. KL in nats per token; that
    of runs is over all held-out windows. Raises ConfigError for no windows, ModelError.
    """
    if num_windows < 1:
        raise ConfigError(f"--windows {num_windows}: importance is measured on at least one window, 8 are usual.")
    config = from_dict(cache.manifest.config)
    source = config.teacher.model
    teacher = models.load_model(source, revision=config.teacher.revision, device=device)
    num_layers = teacher.config.get_text_config().num_hidden_layers
    layers = list(teacher.get_submodule(layer_list(teacher, num_layers, source)))
    ops, sample = probe_head(teacher, cache.plan.vocab_size), Sample(cache, split, num_windows)
    say(f"measuring {num_layers} layers of {source} on {sample.count} windows")
    costs = measure_layers(teacher, layers, ops, sample)
    removal = []
    for step in order_of_removal(teacher, layers, ops, sample, say=say):
        kept = kept_layers(StudentConfig(init="prune_layers", num_layers=step.num_left), num_layers)
        with left_out([layer for place, layer in enumerate(layers) if place not in kept]):
            removal.append({**step._asdict(), "even_kl": sample.kl(teacher, ops)})
    return {
        "cache": cache.name,
        "teacher": source,
        "split": split,
        "num_windows": sample.count,
        "num_layers": num_layers,
        "whole": sample.kl(teacher, ops),
        "layers": [cost._asdict() for cost in costs],
        "removal": removal,
        "trained": trained_on(cache.name, num_layers),
    }


def trained_on(cache: str, num_layers: int) -> list[dict[str, Any]]:
    """Finished runs on a cache whose students are its teacher with layers removed, and no feed-forward units; oldest first."""
    rows = []
    for run in reversed(list_runs("train")):
        if run.inputs().get("cache") != cache or run.status().state != "done":
            continue
        config = run.config()
        student = config.student
        if student.init != "prune_layers" or student.intermediate_size is not None or config.loss.kl_weight == 0:
            continue
        looks = [float(row["heldout_kl"]) for row in metrics.read(run.metrics_path) if "heldout_kl" in row]
        num_left = len(kept_layers(student, num_layers))
        row = {"run": run.id, "num_left": num_left, "kl": min(looks), "steps": config.train.max_steps, "choice": student.layer_choice}
        rows.append(row)
    return rows


def table(report: Report) -> str:
    """The report as plain text."""
    lines = [
        f"teacher {report['teacher']}, {report['num_layers']} layers; KL to it on {report['num_windows']} windows ({report['split']}) of "
        f"cache {report['cache']}, nats per token; with all layers {report['whole']:.4f}",
        "",
        "layer  KL without it  block influence",
        *(f"{row['layer']:>5}  {row['kl']:>13.4f}  {row['influence']:>15.4f}" for row in report["layers"]),
        "",
        "layers left  goes next  KL before training  evenly chosen",
        *(f"{row['num_left']:>11}  {row['layer']:>9}  {row['kl']:>18.4f}  {row['even_kl']:>13.4f}" for row in report["removal"]),
    ]
    if report["trained"]:
        lines += ["", "after training, on all held-out windows:"]
        lines += [
            f"{row['num_left']:>11}  layers chosen by {row['choice']}: KL {row['kl']:.4f} after {row['steps']:,} steps ({row['run']})"
            for row in report["trained"]
        ]
    return "\n".join(lines)
