"""What a plan fits into: GPUs by the memory they are sold with, and the longest windows on each."""

import csv
import functools
from dataclasses import dataclass

from ..catalog.model_facts import ModelFacts
from ..config import DistillConfig
from ..paths import data_dir
from .prediction import MODES, Mode, peaks

WINDOWS = tuple(2**power for power in range(7, 18))
"""128 to 131,072 tokens: the lengths that `longest_windows` tries."""


@dataclass(frozen=True)
class GPU:
    """One line of data/gpus.csv."""

    name: str
    memory_bytes: int
    """As sold, a GB counted as 1000³ bytes: up to 7 % less than the driver shows, which is room for the CUDA context and for gaps."""
    kind: str
    """'data centre', 'workstation' or 'desktop'."""

    @property
    def label(self) -> str:
        """'H200, 141 GB'"""
        return f"{self.name}, {self.memory_bytes / 1e9:.0f} GB"


@functools.cache
def gpus() -> tuple[GPU, ...]:
    """Common GPUs, smallest first."""
    with open(data_dir() / "gpus.csv", encoding="utf-8", newline="") as file:
        found = [GPU(row["name"], round(float(row["memory_gb"]) * 1e9), row["kind"]) for row in csv.DictReader(file)]
    return tuple(sorted(found, key=lambda gpu: (gpu.memory_bytes, gpu.name)))


def fitting_gpus(num_bytes: int) -> list[GPU]:
    """Those that hold so much, smallest first."""
    return [gpu for gpu in gpus() if gpu.memory_bytes >= num_bytes]


def longest_windows(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, limit_bytes: int) -> dict[Mode, int]:
    """By mode, the longest of WINDOWS that fits on a GPU of that size, with everything else as in the config; 0 where none does.

    Windows beyond the positions of either model are not tried.
    """
    most = min((facts.max_positions for facts in (teacher, student) if facts.max_positions is not None), default=WINDOWS[-1])
    found: dict[Mode, int] = dict.fromkeys(MODES, 0)
    for window in WINDOWS:
        if window > most:
            break
        longer = config.changed(text=config.text.changed(window_tokens=window))
        for mode, peak in peaks(teacher, student, longer, gpu=True).items():
            if peak <= limit_bytes:
                found[mode] = window
    return found
