"""What a sweep found: mean and spread of each setting over its seeds, and whether one setting can be called the best.

Measured is the KL to the teacher at T = 1 on held-out text, of the weights that each run kept: the same yardstick whatever temperature or
mixture the loss had. The best setting is named only if it beats every other one: the 95 % interval (Student's t) of the paired
differences, seed by seed, lies above 0. With one seed there is no spread, and none is named.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..comparison import Gain, qualities, t_interval
from ..errors import RunError
from ..runs import open_run
from .record import Sweep, in_words

Row = dict[str, Any]
POSITIONS, SHARE = "loss.positions", "loss.position_share"


@dataclass(frozen=True)
class Setting:
    """One point of the grid, over the seeds that have ended there."""

    values: dict[str, Any]
    kl: dict[int, float]
    """Seed -> KL to the teacher, nats per token, of runs that are done."""
    bits_per_byte: dict[int, float]
    top1_agreement: dict[int, float]
    states: dict[int, str]
    """Seed -> state of its run; 'given up' for a loser that was stopped early, 'waiting' where there is none yet."""

    @property
    def words(self) -> str:
        return in_words(self.values)

    @property
    def is_complete(self) -> bool:
        return len(self.kl) == len(self.states)

    @property
    def mean(self) -> float:
        return math.fsum(self.kl.values()) / len(self.kl)

    @property
    def interval(self) -> Gain | None:
        """Mean KL over seeds with its 95 % interval; none with fewer than two seeds."""
        return t_interval(list(self.kl.values())) if len(self.kl) >= 2 else None


def settings(sweep: Sweep) -> list[Setting]:
    """Every setting of the sweep; those with the lowest mean KL first, those without a finished run last."""
    runs = {}
    for trial in sweep.trials():
        try:
            runs[trial.run_id] = open_run(trial.run_id)
        except RunError:
            continue
    states = {run_id: run.status().state for run_id, run in runs.items()} | dict.fromkeys(sweep.stopped(), "given up")
    done = [run for run_id, run in runs.items() if states[run_id] == "done"]
    figures = qualities(done, known=[])
    found: dict[int, Setting] = {}
    for trial in sweep.trials():
        setting = found.setdefault(trial.number, Setting(dict(trial.values), {}, {}, {}, {}))
        setting.states[trial.seed] = states.get(trial.run_id, "waiting")
        if (row := figures.get(trial.run_id)) is not None:
            setting.kl[trial.seed] = row["kl_to_teacher"]
            setting.bits_per_byte[trial.seed] = row["bits_per_byte"]
            setting.top1_agreement[trial.seed] = row["top1_agreement"]
    return sorted(found.values(), key=lambda setting: (not setting.is_complete, setting.mean if setting.kl else math.inf))


def rows(found: Sequence[Setting]) -> list[Row]:
    """A row for each run that is done, for the chart: setting, seed, kl, and the setting's mean with its interval."""
    made = []
    for setting in found:
        spread = setting.interval
        for seed, kl in setting.kl.items():
            limits = {"low": spread.low, "high": spread.high} if spread else {"low": None, "high": None}
            made.append({"setting": setting.words, "seed": seed, "kl": kl, "mean": setting.mean, **limits})
    return made


def rows_by_share(found: Sequence[Setting], positions: str) -> list[Row]:
    """A row for each run that is done of a sweep over loss.position_share and nothing but it and loss.positions; [] for any other.

    `positions`: loss.positions of a sweep that leaves it as it is.
    """
    if not found or any(set(setting.values) - {POSITIONS, SHARE} or SHARE not in setting.values for setting in found):
        return []
    made = []
    for setting, own in ((setting, rows([setting])) for setting in found):
        place = {"positions": str(setting.values.get(POSITIONS, positions)), "share": float(setting.values[SHARE])}
        made += [row | place for row in own]
    return sorted(made, key=lambda row: (row["positions"], row["share"], row["seed"]))


def advantage(best: Setting, other: Setting) -> Gain | None:
    """How much lower the KL of `best` is, paired by seed, with its 95 % interval; none with fewer than two common seeds."""
    seeds = sorted(best.kl.keys() & other.kl.keys())
    return t_interval([other.kl[seed] - best.kl[seed] for seed in seeds]) if len(seeds) >= 2 else None


def verdict(found: Sequence[Setting]) -> str:
    """In words: is one setting the best, beyond the spread over seeds?"""
    whole = [setting for setting in found if setting.is_complete]
    given_up = sum("given up" in setting.states.values() for setting in found)
    if len(whole) < 2:
        return "No verdict yet: fewer than two settings have all their seeds."
    best, others = whole[0], whole[1:]
    gains = [advantage(best, other) for other in others]
    note = f" Given up early, and not compared: {given_up} of {len(found)} settings." if given_up else ""
    if any(gain is None for gain in gains):
        return f"One seed: {best.words} has the lowest KL ({best.mean:.4f} nats), but without a spread no setting is called the best.{note}"
    close = [other.words for other, gain in zip(others, gains) if gain and gain.low <= 0]
    seeds = len(best.states)
    if close:
        return (
            f"NO CLEAR BEST: over {seeds} seeds {best.words} has the lowest KL ({best.mean:.4f} nats), but its advantage over "
            f"{'; '.join(close)} is within the spread. More seeds, or more steps, may tell them apart.{note}"
        )
    runner = min((gain for gain in gains if gain), key=lambda gain: gain.mean)
    return (
        f"BEST: {best.words}, {best.mean:.4f} nats from the teacher over {seeds} seeds; {runner.mean:.4f} ({runner.low:.4f} to "
        f"{runner.high:.4f}, 95 %, paired by seed) nearer than the next setting, and beyond the spread of every other.{note}"
    )


def table(found: Sequence[Setting]) -> str:
    """The settings as plain text, one line each."""
    width = max([len("setting"), *(len(setting.words) for setting in found)])
    lines = [f"{'setting':<{width}}  seeds  {'KL to teacher':>13}  {'95 % interval':>16}  bits/byte  agreement"]
    return "\n".join([*lines, *(_line(setting, width) for setting in found)])


def _line(setting: Setting, width: int) -> str:
    start = f"{setting.words:<{width}}  {len(setting.kl)}/{len(setting.states):<3}"
    others = sorted({state for seed, state in setting.states.items() if seed not in setting.kl})
    if not setting.kl:
        return f"{start}  {', '.join(others)}"
    spread = setting.interval
    interval = f"{spread.low:.4f} to {spread.high:.4f}" if spread else "one seed"
    bits, agreement = (math.fsum(part.values()) / len(part) for part in (setting.bits_per_byte, setting.top1_agreement))
    return f"{start}  {setting.mean:>13.4f}  {interval:>16}  {bits:>9.3f}  {agreement:>9.3f}" + (f"  {', '.join(others)}" if others else "")
