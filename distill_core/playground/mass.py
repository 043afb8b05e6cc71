"""How much of the teacher's belief K tokens keep at temperature T, over a cache's sample; and what that advises."""
# C: positions of the sample   A: anchors   K: stored entries   T: temperatures

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cache import Cache, tail_at, tail_bracket
from ..cache.bounds import mixture_mass_brackets
from ..cache.tail import Floats, log_partition

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Where the table is made, and the stops of the slider; the tail is stored at five of them."""
MOST, MUCH = 0.99, 0.90
"""Shares of the teacher's belief that the advice speaks of."""


def mass_of_top(logprobs_CK: Floats, tail_C: Floats, temperature: float) -> NDArray[np.float64]:
    """Mean kept mass of the first 1, 2, … K entries at T, [K]."""
    partition_C = log_partition(logprobs_CK, tail_C, temperature)
    return np.exp(logprobs_CK / np.float32(temperature) - partition_C[:, None]).mean(0, dtype=np.float64).cumsum()


@dataclass(frozen=True)
class MassTable:
    """Mean kept mass over a fixed sample of a cache's positions, by temperature and K."""

    temperatures: tuple[float, ...]
    mass_TK: NDArray[np.float64]
    low_TK: NDArray[np.float64]
    high_TK: NDArray[np.float64]
    """What the stored tails allow at least and at most: the error bar. Sampling error, the text's own chance, is not in it."""
    num_positions: int

    @property
    def top_k(self) -> int:
        return self.mass_TK.shape[1]

    def at(self, temperature: float) -> NDArray[np.float64]:
        """Mean kept mass of the first 1 … K entries, [K]. Raises ValueError for a temperature that the table was not made for."""
        return self.mass_TK[self.temperatures.index(temperature)]

    def bound(self, temperature: float, top_k: int) -> tuple[float, float]:
        row = self.temperatures.index(temperature)
        return float(self.low_TK[row, top_k - 1]), float(self.high_TK[row, top_k - 1])


def mass_table(cache: Cache, temperatures: Sequence[float] = TEMPERATURES) -> MassTable:
    """Table of the cache's fixed sample of up to 32 windows; drawn entries of a 'topk+sample' cache count as tail."""
    columns, targets = cache.sample
    values_CA, means_CA = columns["tail_logsumexp"][targets], columns["tail_mean_logprob"][targets]
    logprobs_CK = columns["teacher_logprobs"][targets][:, : cache.plan.num_ranked].astype(np.float32)
    rows = []
    for temperature in temperatures:
        low_C, high_C = tail_bracket(values_CA, means_CA, temperature)
        tails = (tail_at(values_CA, means_CA, temperature), high_C, low_C)  # the larger the tail, the less is kept
        row = [mass_of_top(logprobs_CK, tail_C, temperature) for tail_C in tails]
        if cache.plan.merged == "mixture":
            bracket = mixture_mass_brackets(logprobs_CK, values_CA, columns["mixture_slack"][targets], temperature)
            row[1:] = [bound_CK.mean(0) for bound_CK in bracket]
        rows.append(row)
    mass_TK, low_TK, high_TK = np.array(rows).transpose(1, 0, 2)
    return MassTable(tuple(temperatures), mass_TK, low_TK, high_TK, len(logprobs_CK))


def smallest_k(table: MassTable, temperature: float, share: float) -> int | None:
    """The smallest K that keeps this share at T on average; None if all stored entries do not."""
    enough = np.flatnonzero(table.at(temperature) >= share)
    return int(enough[0]) + 1 if len(enough) else None


def highest_temperature(table: MassTable, top_k: int, share: float) -> float | None:
    """The highest of the table's temperatures at which top_k entries keep this share on average; None if they do at none."""
    fitting = [t for t, mass in zip(table.temperatures, table.mass_TK[:, top_k - 1], strict=True) if mass >= share]
    return max(fitting, default=None)
