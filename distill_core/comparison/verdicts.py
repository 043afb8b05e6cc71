"""Does learning from the teacher beat learning from the text alone? The verdict over seeds, with its spread.

The rule. Each distilled run is paired with its hard-label twin of the same seed (same cache, student, steps; only the weights of the loss
differ). For each pair and measure the gain is twin minus student, so that above 0 the student is better: KL to the teacher in nats per
token, and bits per byte of text that neither saw. With n >= 2 pairs the 95 % interval of the mean gain is Student's:
mean ± t(0.975, n - 1) · s / sqrt(n), s the standard deviation of the n gains. With one pair it is the bootstrap interval over held-out
windows that judging wrote down, and the words say so: another seed may differ by more.

BEATS: both intervals lie above 0. WORSE: both lie below. MIXED: one above, the other below. NO DIFFERENCE: anything else. UNKNOWN: no pair
with figures, or one pair that was not judged together.
"""
# n: pairs

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..language import ENGLISH, Say, later
from ..runs import Run, list_runs
from .quality import evaluation_of, qualities
from .settings import SeedGroup, differences, seed_groups
from .there import of_each

Word = Literal["BEATS", "NO DIFFERENCE", "WORSE", "MIXED", "UNKNOWN"]
GAINS = {"kl_to_teacher": "kl", "bits_per_byte": "bits"}
"""Measures of the verdict, lower is better for both, with their keys among the gains that judging writes down."""
OUTCOMES: dict[Word, str] = {
    "BEATS": later("The distilled student BEATS its hard-label twin."),
    "WORSE": later("The distilled student is WORSE than its hard-label twin."),
    "NO DIFFERENCE": later("The distilled student shows NO DIFFERENCE to its hard-label twin that this spread allows to claim."),
    "MIXED": later("MIXED: the distilled student is better than its hard-label twin at one measure and worse at the other."),
    "UNKNOWN": later("UNKNOWN whether distilling beats hard labels."),
}

T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314,
    2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
"""97.5 % quantile of Student's t for 1 to 30 degrees of freedom; above 30 its expansion in 1/df is right to 1e-4."""


@dataclass(frozen=True)
class Gain:
    """How much better the student is than its twin at one measure, with a 95 % interval; above 0 the student is better."""

    mean: float
    low: float
    high: float

    @property
    def is_better(self) -> bool:
        return self.low > 0

    @property
    def is_worse(self) -> bool:
        return self.high < 0


@dataclass(frozen=True)
class Pair:
    """A distilled run, its hard-label twin of the same seed, and the gain at each measure."""

    seed: int
    student: str
    twin: str
    gains: dict[str, float]


@dataclass(frozen=True)
class Verdict:
    word: Word
    gains: dict[str, Gain]
    """By measure of GAINS; {} where the word is UNKNOWN."""
    pairs: tuple[Pair, ...]
    spread: Literal["seeds", "windows", "none"]
    """What the intervals are over."""
    name: str = ""
    """What tells this group of runs from the others compared: 'loss.temperature 2'; '' for the only one."""

    def to_text(self, say: Say = ENGLISH) -> str:
        """The verdict in a few sentences: the word, what the spread is over, the figures; where it is UNKNOWN, what to do."""
        said = [f"{self.name}:"] if self.name else []
        said.append(say(OUTCOMES[self.word]))
        if self.word == "UNKNOWN":
            return " ".join([*said, self._what_is_missing(say)])
        if self.spread == "seeds":
            said.append(say("{count} seeds, paired by seed; 95 % t-intervals.", count=len(self.pairs)))
        else:
            said.append(say("One seed: the 95 % intervals are over held-out windows, and another seed may differ by more."))
        kl, bits = (self.gains[measure] for measure in GAINS)
        nearer = {"mean": f"{kl.mean:.3f}", "low": f"{kl.low:.3f}", "high": f"{kl.high:.3f}"}
        fewer = {"mean": f"{bits.mean:.3f}", "low": f"{bits.low:.3f}", "high": f"{bits.high:.3f}"}
        said.append(say("Nats per token nearer to the teacher: {mean} ({low} to {high}).", **nearer))
        said.append(say("Bits per byte fewer: {mean} ({low} to {high}).", **fewer))
        return " ".join(said)

    def _what_is_missing(self, say: Say) -> str:
        if not self.pairs:
            return say("There is no finished pair of the same seed: train the hard-label twin too (--twin), and let both end.")
        command = f"python -m distill_core evaluate {self.pairs[0].student} --baseline {self.pairs[0].twin}"
        return say("One seed, and no interval over windows: judge the two together ({command}), or train more seeds.", command=command)


def t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t (Abramowitz and Stegun 26.7.5 above 30 degrees of freedom)."""
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def t_interval(values: Sequence[float]) -> Gain:
    """Mean of n >= 2 values with Student's 95 % interval: mean ± t(0.975, n - 1) · s / sqrt(n)."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_975(count - 1) * spread / math.sqrt(count)
    return Gain(mean, mean - half, mean + half)


def word_of(gains: Sequence[Gain]) -> Word:
    """One word for the gains of all measures together: see the rule at the top of this module."""
    better, worse = [gain.is_better for gain in gains], [gain.is_worse for gain in gains]
    if all(better):
        return "BEATS"
    if all(worse):
        return "WORSE"
    return "MIXED" if any(better) and any(worse) else "NO DIFFERENCE"


def verdict_over_seeds(pairs: Sequence[Pair], *, windows: dict[str, Gain] | None = None, name: str = "") -> Verdict:
    """The verdict for pairs of one group. `windows`: intervals over held-out windows, which are what there is for a single pair."""
    pairs = tuple(pairs)
    if len(pairs) >= 2:
        gains = {measure: t_interval([pair.gains[measure] for pair in pairs]) for measure in GAINS}
        return Verdict(word_of(list(gains.values())), gains, pairs, "seeds", name)
    if len(pairs) == 1 and windows:
        return Verdict(word_of(list(windows.values())), windows, pairs, "windows", name)
    return Verdict("UNKNOWN", {}, pairs, "none", name)


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """A verdict for each group of distilled runs that differ by seed only; twins are looked for among all runs, not only these."""
    known = list_runs("train")
    figures = qualities(known)
    groups = [group for group in seed_groups(runs) if group.is_distilled]
    twins = [group for group in seed_groups(known) if not group.is_distilled]
    named = differences({str(place): group.settings for place, group in enumerate(groups)})
    found = []
    for place, group in enumerate(groups):
        name = ", ".join(f"{row['setting']} {row[str(place)]}" for row in named)
        pairs = _pairs(group, twins, figures)
        windows = _window_gains(group, pairs[0]) if len(pairs) == 1 else None
        found.append(verdict_over_seeds(pairs, windows=windows, name=name))
    return found


def _pairs(group: SeedGroup, twins: Sequence[SeedGroup], figures: dict[str, dict[str, Any]]) -> list[Pair]:
    """One pair for each seed at which both have ended with figures; of a seed trained twice, the newest."""
    same = [twin for twin in twins if twin.twin_settings == group.twin_settings]

    def ended(groups: Sequence[SeedGroup]) -> dict[int, Run]:
        """By seed, the newest that is done: an unfinished training is no equal budget."""
        seeds = {run: seed for found in groups for seed, run in zip(found.seeds, found.runs)}
        members = [(status, seeds[run], run) for run, status in of_each(seeds, Run.stored_status)]
        members.sort(key=lambda member: member[0].created_s)
        return {seed: run for status, seed, run in members if status.state == "done" and run.id in figures}

    students, partners = ended([group]), ended(same)
    return [
        Pair(seed, students[seed].id, partners[seed].id, _gains(figures[students[seed].id], figures[partners[seed].id]))
        for seed in sorted(students.keys() & partners.keys())
    ]


def _gains(student: dict[str, Any], twin: dict[str, Any]) -> dict[str, float]:
    return {measure: twin[measure] - student[measure] for measure in GAINS}


def _window_gains(group: SeedGroup, pair: Pair) -> dict[str, Gain] | None:
    """The intervals over windows that judging these two together wrote down."""
    student = next(run for run in group.runs if run.id == pair.student)
    evaluation = evaluation_of(student)
    if evaluation is None or evaluation.get("baseline") != pair.twin or not evaluation.get("gains"):
        return None
    return {measure: Gain(*evaluation["gains"][key]) for measure, key in GAINS.items()}
