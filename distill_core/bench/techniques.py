"""`distill bench techniques`: every technique beside plain KL, on the built-in models, at an equal budget, over several seeds.

Equal budget: the same number of optimizer steps over windows of the same size, and for what trains in rounds the same number in all.
What a technique does before training (writing, a second capture, merging) is not in the steps: it is counted in seconds, and what it leaves
on disk in bytes. Each seed gives one pair; the gain is the plain arm's figure less the other's, so above 0 the technique helped. Time is
that of the trainings, by the clock, and both arms run one after the other on the same machine; memory is the training process's peak.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import jobs, metrics
from .. import runs as run_folders
from ..cache import open_cache
from ..comparison.verdicts import T_975
from ..config import DistillConfig, from_dict
from ..errors import ConfigError, DistillError, RunError, did_you_mean
from ..heads import probe_head
from ..models import load_model
from ..runs import Run
from ..scoring import score
from ..techniques import TECHNIQUES
from ..units import GIB

KL = "held-out KL to the teacher, nats a token"
BASE: dict[str, Any] = {
    "text": {"num_windows": 200, "num_heldout_windows": 32},
    "capture": {"name": "plain", "num_samples": 0},
    "train": {"max_steps": 300},
    "device": "cpu",
}
"""The budget of every arm: 300 steps of 8 windows of 256 tokens, 12 times over the text."""
QUICK: dict[str, Any] = {
    "text": {"num_windows": 8, "num_heldout_windows": 4, "window_tokens": 64},
    "train": {"max_steps": 4, "per_device_train_batch_size": 2},
}
"""Seconds instead of minutes: shows that a comparison runs, not what it finds."""


class Outcome(NamedTuple):
    """What one arm came to; smaller figures are better."""

    figure: float
    train_s: float
    peak_gib: float
    before_s: float = 0.0
    """Work before training that the plain arm has not."""
    more_bytes: int = 0
    """Disk that the plain arm has not."""


class Pair(NamedTuple):
    plain: Outcome
    technique: Outcome


class Trained(NamedTuple):
    run_id: str
    train_s: float
    peak_gib: float

    def outcome(self, figure: float, *, before_s: float = 0.0, more_bytes: int = 0) -> Outcome:
        return Outcome(figure, self.train_s, self.peak_gib, before_s, more_bytes)


@dataclass
class Bench:
    """What recipes work with: a folder of their own as DISTILL_HOME, and work done once however often it is asked for."""

    base: DistillConfig
    say: Callable[[str], None]
    _trained: dict[str, Trained] = field(default_factory=dict)

    def plain_cache(self) -> str:
        """The built-in teacher's cache of the base config, captured once."""
        name, _ = self.capture(self.base)
        return name

    def capture(self, config: DistillConfig) -> tuple[str, float]:
        """(the cache's name, seconds), in a process of its own; give capture.name. Seconds are 0 for one that is there."""
        assert config.capture.name is not None
        started = time.monotonic()
        try:
            return open_cache(config.capture.name).name, 0.0
        except DistillError:
            pass
        self.work(run_folders.create_run("capture", config, label="bench"))
        return config.capture.name, time.monotonic() - started

    def train(self, config: DistillConfig, cache: str) -> Trained:
        """A run against a cache, in a process of its own; the same one again is not trained again."""
        key = json.dumps([cache, config.model_dump(mode="json")], sort_keys=True)
        if key not in self._trained:
            run = jobs.new_training(config, cache)
            self.work(run)
            rows = [row for row in metrics.read(run.metrics_path) if "peak_memory_gib" in row]
            self._trained[key] = Trained(run.id, float(rows[-1]["time_s"]), max(float(row["peak_memory_gib"]) for row in rows))
        return self._trained[key]

    def plain(self, seed: int) -> Trained:
        """The plain arm: KL only, on the plain cache."""
        return self.train(self.seeded(seed), self.plain_cache())

    def seeded(self, seed: int, **sections: dict[str, Any]) -> DistillConfig:
        """The base config with a training seed, and with fields of sections replaced: seeded(0, loss={'temperature': 2.0})."""
        values = self.base.model_dump()
        for name, fields in sections.items():
            values[name] = values[name] | fields
        values["train"]["seed"] = seed
        return from_dict(values)

    def work(self, run: Run) -> None:
        """Carry the run out in a process of its own. Raises RunError with its words when it did not end well."""
        subprocess.run([sys.executable, "-m", "distill_core", "runs", "work", run.id], check=False, capture_output=True)
        status = run.status()
        if status.state != "done":
            raise RunError(f"run {run.id} of the benchmark is {status.state}: {status.error or status.phase}")

    def kl(self, run_id: str, cache: str | None = None) -> float:
        """Held-out KL of a run's best weights to the teacher of a cache (none: the plain one), nats a token."""
        opened = open_cache(cache or self.plain_cache())
        model = load_model(f"run:{run_id}", dtype="float32")
        return float(score(model, probe_head(model, opened.plan.vocab_size), opened).kl_to_teacher)


def cache_bytes(name: str) -> int:
    """Bytes of a cache on disk."""
    return sum(path.stat().st_size for path in open_cache(name).folder.rglob("*") if path.is_file())


def bench_techniques(
    names: list[str] | None = None, *, num_seeds: int = 3, is_quick: bool = False, say: Callable[[str], None] = lambda _: None
) -> Iterator[dict[str, Any]]:
    """One row per technique, as soon as it is known: means over the seeds, the gain with its 95 % interval (Student's t), and what it
    costs beside plain KL.

    Work lies in a temporary folder that is gone at the end. Raises ConfigError for names that are no technique.
    """
    unknown = [name for name in names or [] if name not in TECHNIQUES]
    if unknown:
        raise ConfigError(f"no technique '{unknown[0]}'.{did_you_mean(unknown[0], TECHNIQUES)}")
    from transformers.utils import logging

    logging.disable_progress_bar()  # of loading and writing weights, many a minute
    with _own_home():
        values = {name: fields | QUICK.get(name, {}) if is_quick and isinstance(fields, dict) else fields for name, fields in BASE.items()}
        bench = Bench(from_dict(values), say)
        for name in names or list(TECHNIQUES):
            recipe = importlib.import_module(f".recipes.{name}", __package__)
            pairs = []
            for seed in range(num_seeds):
                say(f"{name}, seed {seed}")
                pairs.append(recipe.compare(bench, seed))
            yield row_of(name, getattr(recipe, "FIGURE", KL), pairs)


@contextmanager
def _own_home() -> Iterator[None]:
    """A temporary DISTILL_HOME, for this process and those it starts."""
    before = os.environ.get("DISTILL_HOME")
    with tempfile.TemporaryDirectory(prefix="distill-bench-") as folder:
        os.environ["DISTILL_HOME"] = str(Path(folder))
        try:
            yield
        finally:
            if before is None:
                del os.environ["DISTILL_HOME"]
            else:
                os.environ["DISTILL_HOME"] = before


def row_of(name: str, figure: str, pairs: list[Pair]) -> dict[str, Any]:
    """Means and differences of the pairs: gains above 0 mean that the technique helped."""
    gains = [pair.plain.figure - pair.technique.figure for pair in pairs]
    return {
        "technique": name,
        "figure": figure,
        "num_seeds": len(pairs),
        "plain": statistics.mean(pair.plain.figure for pair in pairs),
        "with_technique": statistics.mean(pair.technique.figure for pair in pairs),
        "gain": statistics.mean(gains),
        "gain_half_width": half_width(gains),
        "gains": gains,
        "more_disk_bytes": round(statistics.mean(pair.technique.more_bytes for pair in pairs)),
        "more_memory_gib": statistics.mean(pair.technique.peak_gib - pair.plain.peak_gib for pair in pairs),
        "time_ratio": sum(pair.technique.train_s for pair in pairs) / sum(pair.plain.train_s for pair in pairs),
        "before_s": statistics.mean(pair.technique.before_s for pair in pairs),
    }


def half_width(gains: list[float]) -> float | None:
    """Half of the 95 % interval of their mean: t(0.975, n - 1) s / sqrt(n); none for a single one."""
    if len(gains) < 2:
        return None
    return T_975[len(gains) - 2] * statistics.stdev(gains) / len(gains) ** 0.5


def techniques_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, as README holds it."""
    lines = [
        "| technique | compared by | plain | with it | gain ± 95 % | more disk | more memory | training time | before it |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        spread = "one seed" if row["gain_half_width"] is None else f"{row['gain_half_width']:.4f}"
        lines.append(
            f"| {TECHNIQUES[row['technique']].title} | {row['figure']} | {row['plain']:.4f} | {row['with_technique']:.4f} "
            f"| {row['gain']:+.4f} ± {spread} | {row['more_disk_bytes'] / 1e6:.1f} MB | {row['more_memory_gib'] * GIB / 2**20:+.0f} MiB "
            f"| × {row['time_ratio']:.2f} | {row['before_s']:.0f} s |"
        )
    return "\n".join(lines)
