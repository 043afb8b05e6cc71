"""What makes runs comparable: their settings by dotted name, what differs between them, and which are one run with other seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import DistillConfig
from ..runs import Run
from .there import of_each

Row = dict[str, Any]

NOT_LEARNED = ("name", "save_steps", "save_total_limit", "activation_checkpointing")
"""Settings of [train] that do not change what is learned: two runs that differ in these only are equal."""
LEARNS = ("student", "loss", "train")
"""Sections that decide what a training learns from a given cache; teacher, text and capture are the cache's."""
SEED = "train.seed"


def dotted(config: DistillConfig) -> dict[str, Any]:
    """Every setting by its dotted name, 'loss.temperature', in the config's own order."""
    flat: dict[str, Any] = {}
    for section, values in config.model_dump().items():
        if isinstance(values, dict):
            flat |= {f"{section}.{name}": value for name, value in values.items()}
        else:
            flat[section] = values
    return flat


def differences(named: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Settings that are not the same for all: rows of {'setting', NAME: value, …}; absent settings are None."""
    settings = dict.fromkeys(setting for values in named.values() for setting in values)
    rows = [{"setting": setting, **{name: values.get(setting) for name, values in named.items()}} for setting in settings]
    return [row for row in rows if any(row[name] != row[first] for first in list(named)[:1] for name in named)]


def run_settings(run: Run) -> dict[str, Any]:
    """The run's settings and its cache; its name is left out, for it is what the run is called. Raises ConfigError."""
    flat = {"cache": run.inputs().get("cache"), **dotted(run.config())}
    flat.pop("train.name")
    return flat


def run_differences(runs: Sequence[Run]) -> list[Row]:
    """What differs between runs: rows of {'setting', RUN ID: value, …}."""
    return differences({run.id: settings for run, settings in of_each(runs, run_settings)})


@dataclass(frozen=True)
class SeedGroup:
    """Training runs that differ by train.seed only."""

    settings: dict[str, Any]
    """What they share of all that decides what is learned: cache, student, loss and train, without the seed."""
    runs: tuple[Run, ...]
    """By seed, then by name."""
    seeds: tuple[int, ...]
    """One for each run; the same seed twice is possible: the same run, made again."""

    @property
    def is_distilled(self) -> bool:
        return self.settings["loss.kl_weight"] > 0

    @property
    def twin_settings(self) -> dict[str, Any]:
        """Settings without the weights of the loss: those of a run and of its hard-label twin are equal."""
        return {name: value for name, value in self.settings.items() if name not in ("loss.kl_weight", "loss.ce_weight")}


def learned_settings(run: Run) -> dict[str, Any]:
    """All that decides what a training learns: its cache and three sections. Raises ConfigError."""
    left_out = {f"train.{name}" for name in NOT_LEARNED}
    return {
        name: value
        for name, value in run_settings(run).items()
        if name == "cache" or (name.split(".")[0] in LEARNS and name not in left_out)
    }


def seed_groups(runs: Iterable[Run]) -> list[SeedGroup]:
    """Training runs, grouped by all but their seed, in the order in which each group first appears; other kinds are passed over."""
    found: dict[str, list[tuple[int, Run]]] = {}
    shared: dict[str, dict[str, Any]] = {}
    trainings = [run for run, status in of_each(runs, Run.stored_status) if status.kind == "train"]
    for run, settings in of_each(trainings, learned_settings):
        seed = settings.pop(SEED)
        key = repr(sorted(settings.items()))
        shared[key] = settings
        found.setdefault(key, []).append((seed, run))
    groups = []
    for key, members in found.items():
        members.sort(key=lambda member: (member[0], member[1].id))
        groups.append(SeedGroup(shared[key], tuple(run for _, run in members), tuple(seed for seed, _ in members)))
    return groups
