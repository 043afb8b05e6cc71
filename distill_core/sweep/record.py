"""What a sweep tries, in a folder of its own: sweeps/NAME/ holds sweep.json (frozen), stopped.json (runs given up early) and log.txt."""

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import DistillConfig, from_dict, with_overrides
from ..errors import ConfigError
from ..frozen import Frozen
from ..paths import checked_name, publish
from ..refusals import check_training

SWEPT = ("student", "loss", "train")
"""Sections whose settings may differ within one sweep: the cache is the same for all."""
MAX_RUNS = 200


class Sweep(Frozen):
    kind = "sweep"

    cache: str
    grid: dict[str, list[Any]]
    """Setting -> its values, as the config holds them."""
    seeds: list[int]
    config: dict[str, Any]
    """Everything that is the same for all."""
    stop_losers: bool = False

    def trials(self) -> list["Trial"]:
        """Every setting with the first seed, then every setting with the next: a picture of all of them comes early."""
        points = [dict(zip(self.grid, values)) for values in itertools.product(*self.grid.values())]
        return [Trial(self, number, point, seed) for seed in self.seeds for number, point in enumerate(points)]

    def stopped(self) -> dict[str, int]:
        """Runs that were given up early -> the step at which."""
        path = self.folder / "stopped.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def note_stopped(self, run_id: str, step: int) -> None:
        publish(self.folder / "stopped.json", json.dumps({**self.stopped(), run_id: step}, indent=2) + "\n")


@dataclass(frozen=True)
class Trial:
    """One setting with one seed: one run."""

    sweep: Sweep
    number: int
    """Of the setting, from 0."""
    values: Mapping[str, Any]
    seed: int

    @property
    def run_id(self) -> str:
        return f"{self.sweep.name}-{self.number:02d}-s{self.seed}"

    @property
    def words(self) -> str:
        return in_words(self.values)

    def config(self) -> DistillConfig:
        """Raises ConfigError where the values do not go together."""
        return with_overrides(from_dict(self.sweep.config), {**self.values, "train.seed": self.seed, "train.name": self.run_id})


def in_words(values: Mapping[str, Any]) -> str:
    """'temperature 2, learning_rate 0.003'"""
    return ", ".join(
        f"{name.partition('.')[2]} {value:g}" if isinstance(value, float) else f"{name.partition('.')[2]} {value}"
        for name, value in values.items()
    )


def grid_of(given: Mapping[str, str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(settings with several values, settings with one) from words such as {'loss.temperature': '1,2'}; brackets are one value.

    Raises ConfigError for a setting that cannot differ within one cache, and for one that the sweep sets itself.
    """
    grid: dict[str, list[str]] = {}
    fixed: dict[str, str] = {}
    for name, text in given.items():
        if "," not in text or text.lstrip().startswith("["):
            fixed[name] = text
            continue
        section = name.partition(".")[0]
        if section not in SWEPT:
            raise ConfigError(f"{name} cannot be swept: one cache serves all runs. What may differ: settings of {', '.join(SWEPT)}.")
        if name in ("train.seed", "train.name"):
            raise ConfigError(f"{name} cannot be swept: the sweep sets it. Say how many seeds with --seeds.")
        grid[name] = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    return grid, fixed


def create_sweep(
    name: str, cache: str, config: DistillConfig, grid: Mapping[str, list[Any]], *, num_seeds: int, stop_losers: bool = False
) -> Sweep:
    """Freeze a sweep. The same one again, by name, is opened as it is. Raises ConfigError, and RunError for a name taken by another."""
    if not grid:
        raise ConfigError("nothing to sweep: give a setting several values, such as --loss.temperature 1,2")
    count = num_seeds
    for values in grid.values():
        count *= len(values)
    if num_seeds < 1 or count > MAX_RUNS:
        raise ConfigError(f"{num_seeds} seeds make {count} runs; a sweep has 1 to {MAX_RUNS}. Fewer values, or fewer seeds (--seeds).")
    kept = config.changed(train=config.train.changed(name=None)).model_dump(mode="json")
    first = config.train.seed
    seeds = list(range(first, first + num_seeds))
    typed = {setting: [_typed(config, setting, value) for value in values] for setting, values in grid.items()}
    made = Sweep(name=checked_name(name, "sweep"), cache=cache, grid=typed, seeds=seeds, config=kept, stop_losers=stop_losers, created_s=0)
    for trial in made.trials():
        check_training(trial.config(), cache)  # values that do not go together are refused before the first run
    if made.path.exists():
        there = open_sweep(name)
        if there.model_copy(update={"created_s": 0.0}) != made:
            raise made.name_taken()
        return there
    made = made.model_copy(update={"created_s": time.time()})
    made.freeze()
    return made


def _typed(config: DistillConfig, setting: str, value: Any) -> Any:
    """The value as the config holds it: '2' for a temperature is 2.0. Raises ConfigError."""
    section, _, key = setting.partition(".")
    return getattr(getattr(with_overrides(config, {setting: value}), section), key)


def open_sweep(name: str) -> Sweep:
    """Raises RunError, with the nearest name, when there is none, or it is not one."""
    return Sweep.opened(name)


def list_sweeps() -> list[Sweep]:
    """All sweeps, newest first; folders that hold none are passed over."""
    return Sweep.all_there()
