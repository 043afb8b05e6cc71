"""What a judgement says: quality per token and per byte, a verdict with its spread, one table."""
# W: held-out windows

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .units import show_count, show_disk

Row = dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """Sums per window, so that two models can be compared window by window."""

    nll_W: NDArray[np.float64]
    """Negative log-likelihood of the text, nats."""
    kl_W: NDArray[np.float64]
    """KL(teacher || model) at T = 1 over the cache's entries and the tail as one bucket, nats: a lower bound of the full KL."""
    agreed_W: NDArray[np.float64]
    """Positions whose most likely token is the teacher's."""
    tokens_W: NDArray[np.float64]
    bytes_W: NDArray[np.float64]

    @property
    def nll(self) -> float:
        """Mean per token, nats."""
        return float(self.nll_W.sum() / self.tokens_W.sum())

    @property
    def kl_to_teacher(self) -> float:
        """Mean per token, nats."""
        return float(self.kl_W.sum() / self.tokens_W.sum())

    @property
    def top1_agreement(self) -> float:
        return float(self.agreed_W.sum() / self.tokens_W.sum())

    @property
    def bits_per_byte(self) -> float:
        """Bits the model needs for one byte of the text: comparable across vocabularies."""
        return bits_per_byte(float(self.nll_W.sum()), float(self.bytes_W.sum()))

    @property
    def perplexity(self) -> float:
        """Per token: comparable only within one vocabulary."""
        return math.exp(self.nll)


def bootstrap_interval(difference_W: NDArray[np.float64], weight_W: NDArray[np.float64]) -> tuple[float, float, float]:
    """(mean, low, high): a mean over windows, per unit of weight, with its 95 % bootstrap interval over windows.

    Windows are drawn with replacement 2,000 times with a fixed seed (Efron 1979, Annals of Statistics 7:1). It says how much
    the answer depends on which held-out windows were taken; another training seed adds to it.
    """
    picks = np.random.default_rng(0).integers(0, len(weight_W), (2000, len(weight_W)))
    means = difference_W[picks].sum(1) / weight_W[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference_W.sum() / weight_W.sum()), float(low), float(high)


def bits_per_byte(nll_sum: float, num_bytes: float) -> float:
    """Nats over a text to bits per byte of it."""
    return nll_sum / math.log(2) / num_bytes


def quality(*, nll: float, bits_per_byte: float, kl: float, agreement: float) -> Row:
    return {"bits_per_byte": bits_per_byte, "perplexity": math.exp(nll), "kl_to_teacher": kl, "top1_agreement": agreement}


def gains(student: Scores, baseline: Scores) -> Row:
    """What distilling gained over the twin, for every screen: {'outcome', 'kl', 'bits'}, each gain as [mean, low, high] over windows.

    kl: nats per token nearer to the teacher; bits: bits per byte fewer on the text. Both measures must agree beyond their intervals.
    """
    kl = bootstrap_interval(baseline.kl_W - student.kl_W, student.tokens_W)
    bits = bootstrap_interval((baseline.nll_W - student.nll_W) / math.log(2), student.bytes_W)
    is_closer, predicts_better = kl[1] > 0, bits[1] > 0
    is_further, predicts_worse = kl[2] < 0, bits[2] < 0
    if is_closer and predicts_better:
        outcome = "BEATS"
    elif is_further and predicts_worse:
        outcome = "is WORSE than"
    elif is_closer and predicts_worse:
        outcome = "is CLOSER TO THE TEACHER, but predicts this text WORSE than"
    elif is_further and predicts_better:
        outcome = "predicts this text BETTER, but is FURTHER FROM THE TEACHER than"
    else:
        outcome = "shows NO CLEAR DIFFERENCE to"
    return {"outcome": outcome, "kl": list(kl), "bits": list(bits)}


def context_gap(rows: list[Row]) -> list[str]:
    """A sentence: how far the teacher is from itself without its context or images, and the student before and after; none without.

    The gap is KL(teacher with them || reader without), nats per token; the student has closed the share 1 - its own / the
    teacher's own of it, which is below 0 while it is further away than the teacher that simply lost them.
    """
    kl_of = {row["who"]: row["kl_to_teacher"] for row in rows}
    own = kl_of.get("without context", kl_of.get("without images"))
    if own is None:
        return []
    after = kl_of["student"]
    before = f"{kl_of['untrained student']:.3f}" if "untrained student" in kl_of else "not measured"
    if own <= 0:
        return ["The context, or the images, change nothing in what the teacher says of this text."]
    if after >= own:
        return [
            f"Without its context or images the teacher is {own:.3f} nats per token from what it says with them; the student is "
            f"{after:.3f} from that ({before} before training): further than the teacher without them, so they are not learned yet."
        ]
    return [
        f"Without its context or images the teacher is {own:.3f} nats per token from what it says with them; the student, which never sees "
        f"them, is {after:.3f} from that ({before} before training): {1 - after / own:.0%} of that gap is closed."
    ]


def verdict(student: Scores, baseline: Scores | None) -> str:
    """In words: does the student beat its equal-budget hard-label twin?"""
    if baseline is None:
        return (
            f"The student is {student.kl_to_teacher:.3f} nats per token from the teacher "
            f"and needs {student.bits_per_byte:.3f} bits per byte. "
            "Train the hard-label twin too to learn whether distilling helped."
        )
    gained = gains(student, baseline)
    kl, bits = gained["kl"], gained["bits"]
    return (
        f"The distilled student {gained['outcome']} its equal-budget hard-label twin on held-out text. "
        f"KL to the teacher: {student.kl_to_teacher:.3f} against {baseline.kl_to_teacher:.3f} nats per token "
        f"(gain {kl[0]:.3f}, 95 % interval {kl[1]:.3f} to {kl[2]:.3f}). "
        f"Bits per byte: {student.bits_per_byte:.3f} against {baseline.bits_per_byte:.3f} "
        f"(gain {bits[0]:.3f}, {bits[1]:.3f} to {bits[2]:.3f})."
    )


def table(rows: list[Row]) -> str:
    """The rows as plain text, one line each."""
    head = f"{'':<18} {'bits/byte':>9} {'KL':>7} {'agreement':>9} {'perplexity':>10} {'parameters':>10} {'on disk':>8} {'tokens/s':>8} "
    head += f"{'1st token':>9} {'memory':>8}"
    return "\n".join([head, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    size = f"{show_count(row['num_parameters']):>10} {show_disk(row['disk_bytes']):>8}" if "num_parameters" in row else f"{'':>19}"
    speed = f"{row['tokens_per_s']:>8.0f}" if row.get("tokens_per_s") else f"{'':>8}"
    wait = f"{1000 * row['first_token_s']:>6.0f} ms" if row.get("first_token_s") else f"{'':>9}"
    memory = f"{row['peak_memory_gib']:>4.2f} GiB" if row.get("peak_memory_gib") else ""
    measured = f"{row['bits_per_byte']:>9.3f} {row['kl_to_teacher']:>7.3f} {row['top1_agreement']:>9.3f} {row['perplexity']:>10.3g}"
    return f"{row['who']:<18} {measured} {size} {speed} {wait} {memory}".rstrip()
