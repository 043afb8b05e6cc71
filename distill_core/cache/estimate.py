"""What a capture will cost, before any weight is loaded: bytes, time, and when it has paid for itself."""

import math
from dataclasses import dataclass

from ..config import CaptureConfig, Codec, DistillConfig
from ..units import show_disk, show_time
from .opening import list_caches

OTHER_BYTES = 41
"""A position's tail (36), text, target and next token's log-probability, as measured after compression."""


CPU_FLOPS, GPU_FLOPS = 4e10, 4e13
"""Multiplications and additions a second that a teacher's forward pass gets out of a small machine: for a guess, until one is measured."""


@dataclass(frozen=True)
class Estimate:
    num_tokens: int
    """Tokens that the teacher reads: all windows, padding included; with a context, that again before every document."""
    disk_bytes: float
    bytes_from: str
    """Where the bytes of a position come from, in words."""
    tokens_per_s: float | None
    """Speed of a capture by this teacher on this machine, or a guess; none: neither measured nor guessed."""
    speed_from: str | None
    readings: float
    """How often the trainings read the text: what an online teacher would have to keep up with."""
    context_factor: float = 1.0
    """Tokens that the teacher reads for one of the windows; above 1 with a context."""

    @property
    def capture_s(self) -> float | None:
        return self.num_tokens / self.tokens_per_s if self.tokens_per_s else None

    @property
    def online_s(self) -> float | None:
        """Time that an online teacher would take from the trainings; each reading is as long as the capture."""
        return self.capture_s * self.readings if self.capture_s is not None else None

    def to_text(self) -> str:
        speed = (
            f"{self.tokens_per_s:,.0f} tokens/s, {self.speed_from}" if self.tokens_per_s else "this teacher has captured nothing here yet"
        )
        if self.readings > 1:
            saved = f", which saves {show_time(self.online_s - self.capture_s)}" if self.online_s and self.capture_s else ""
            verdict = f"pays: one reading instead of {self.readings:.3g}{saved}; every further training is another {self.readings:.3g}"
        else:
            verdict = f"has not paid after {self.readings:.3g} readings: from the second reading on, or with a second student, it does"
        context = f" (about {self.context_factor:.2g} times the windows': the context is read again before every document)"
        return "\n".join(
            [
                f"tokens     {self.num_tokens:,}{context if self.context_factor > 1 else ''}",
                f"disk       {show_disk(self.disk_bytes)} ({self.bytes_from})",
                f"time       {show_time(self.capture_s)} ({speed})",
                f"break-even {verdict}",
            ]
        )


def bytes_per_position(codec: Codec, *, top_k: int, vocab_size: int) -> float:
    """A rule fitted to `bench cache` (vocabularies of 2,048 to 151,936, K of 20 to 100): within about 15 %.

    exact: an id compresses to about its information, log2(V) bits, a float16 to 1.35 bytes. packed: the difference of sorted ids to
    that of a gap of V / K, e bits more for its spread, a step to 0.85 bytes.
    """
    if codec == "exact":
        return top_k * (1.35 + 1.05 * math.log2(max(2, vocab_size)) / 8) + OTHER_BYTES
    return top_k * (0.85 + math.log2(max(1, vocab_size / top_k) * math.e) / 8) + OTHER_BYTES


STATE_SHARE = 0.9
"""What is left of hidden states after compression: the built-in teacher's layers 2 and 4, float16 and int8."""


def state_bytes_per_position(capture: CaptureConfig, hidden_size: int | None) -> float:
    """Disk of the hidden states that a position keeps; `hidden_size`: the teacher's, None: not known, taken as UNKNOWN_WIDTH."""
    width = capture.hidden_size or hidden_size or UNKNOWN_WIDTH
    return STATE_SHARE * len(capture.hidden_layers) * (2 * width if capture.hidden_codec == "float16" else width + 4)


UNKNOWN_WIDTH = 8192
"""No smaller than most teachers'."""


def guessed_speed(num_parameters: int, *, on_gpu: bool) -> float:
    """Tokens per second of a forward pass: 2 operations per parameter and token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""
    return (GPU_FLOPS if on_gpu else CPU_FLOPS) / (2 * num_parameters)


def estimate(
    config: DistillConfig,
    *,
    vocab_size: int,
    num_students: int = 1,
    guess: float | None = None,
    context_factor: float = 1.0,
    hidden_size: int | None = None,
) -> Estimate:
    """The cost of the config's capture, from caches of the same teacher where there are any, for that many trainings like the config's.

    `guess`: tokens per second to go by while this teacher has captured nothing here. `context_factor`: corpus.reading_factor's.
    `hidden_size`: the teacher's, where hidden states are kept.
    """
    text, train = config.text, config.train
    num_windows = text.num_windows + text.num_heldout_windows
    num_positions = num_windows * (text.window_tokens - 1)
    top_k, codec = min(config.capture.top_k, vocab_size), config.capture.codec
    same_teacher = [cache for cache in list_caches() if cache.manifest.teacher.model == config.teacher.model]
    alike = [
        cache
        for cache in same_teacher
        if (cache.plan.top_k, cache.plan.codec, cache.plan.hidden) == (top_k, codec, None) and cache.manifest.all_positions
    ]
    if alike:
        per_position = alike[-1].manifest.num_bytes / alike[-1].manifest.all_positions
        bytes_from = f"{per_position:.0f} bytes a position, as in cache {alike[-1].name}"
    else:
        per_position = bytes_per_position(codec, top_k=top_k, vocab_size=vocab_size)
        bytes_from = f"about {per_position:.0f} bytes a position, by rule, give or take 15 %"
    states = state_bytes_per_position(config.capture, hidden_size)
    if states:
        bytes_from += f", and about {states:,.0f} of hidden states"
    timed = [cache for cache in same_teacher if cache.manifest.teacher.read_tokens_per_s]
    visits = train.max_steps * train.per_device_train_batch_size * train.gradient_accumulation_steps
    return Estimate(
        num_tokens=round(num_windows * text.window_tokens * context_factor),
        disk_bytes=num_positions * (per_position + states),
        bytes_from=bytes_from,
        tokens_per_s=timed[-1].manifest.teacher.read_tokens_per_s if timed else guess,
        speed_from=f"measured by cache {timed[-1].name}" if timed else "a guess from its parameters" if guess else None,
        readings=visits / text.num_windows * num_students,
        context_factor=context_factor,
    )
