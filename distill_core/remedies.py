"""Out of memory is an answer: the settings that lower the peak most, each planned anew, and what they cost."""

from dataclasses import dataclass
from typing import Any

from . import memory
from .config import DistillConfig
from .errors import DistillError
from .runs import Kind
from .units import show_gib

SHOWN = 3


@dataclass(frozen=True)
class Answer:
    """What a run that ran out of memory tells its reader."""

    error: str = ""
    """The whole message."""
    remedies: tuple[str, ...] = ()
    """Best first: setting, predicted peak, price."""
    changes: tuple[dict[str, dict[str, Any]], ...] = ()
    """The same as settings, by section of the config."""

    def to_result(self) -> dict[str, Any]:
        """For the run's status: what screens show, and what a button could set."""
        return {"remedies": list(self.remedies), "remedy_settings": list(self.changes)}


def answer(config: DistillConfig, kind: Kind, first_line: str) -> Answer:
    """The three best ways out. `first_line`: what the allocator said. Plans nothing where the models' facts cannot be had."""
    said = f"out of memory: {first_line.rstrip('.')}" if first_line else "out of memory"
    if kind == "capture":
        return _capturing(config, said)
    if kind == "write":
        return _writing(config, said)
    try:
        return _training(config, said)
    except DistillError as error:
        return Answer(f"{said}. Its plan cannot be made here ({error}) Smaller: train.per_device_train_batch_size, loss.chunk_tokens.")


def _training(config: DistillConfig, said: str) -> Answer:
    report = memory.report(config)
    planned = []
    for knob in memory.knobs(report.student, config):
        if "text" in knob.changes:
            continue  # the cache holds windows of one length: that would be another capture
        changed = config.changed(**{name: getattr(config, name).changed(**values) for name, values in knob.changes.items()})
        peak = memory.report(changed, teacher=report.teacher).peaks["offline fused"]
        planned.append((peak, knob))
    planned.sort(key=lambda item: item[0])
    best = [(peak, knob) for peak, knob in planned if peak < report.peaks["offline fused"]][:SHOWN]
    words = tuple(f"{knob.name}: about {show_gib(peak)} at the peak ({knob.price})" for peak, knob in best)
    has = f"{report.limit_name} has {show_gib(report.limit_bytes)}"
    lines = [f"{said}. The plan expects {show_gib(report.peaks['offline fused'])}; {has}, other programs' share included.", *words]
    if not best:
        lines.append("No setting would lower the peak: choose a smaller student, or a larger device.")
    elif config.train.per_device_train_batch_size > 1 and not config.train.auto_find_batch_size:
        lines.append("Or let the size be found: train.auto_find_batch_size true (the same result).")
    return Answer("\n".join(lines), words, tuple(knob.changes for _, knob in best))


def _capturing(config: DistillConfig, said: str) -> Answer:
    """Logits of one chunk of the head, twice, and the windows read at once are what a capture can do without."""
    capture = config.capture
    changes: list[dict[str, dict[str, Any]]] = []
    words: list[str] = []
    if capture.batch_windows > 1:
        changes.append({"capture": {"batch_windows": capture.batch_windows // 2}})
        words.append(f"capture.batch_windows {capture.batch_windows // 2}: half the activations (a little slower)")
    if capture.head_chunk_tokens > 32:
        changes.append({"capture": {"head_chunk_tokens": capture.head_chunk_tokens // 2}})
        words.append(f"capture.head_chunk_tokens {capture.head_chunk_tokens // 2}: half the logits (a little slower)")
    if config.teacher.dtype in (None, "float32"):
        changes.append({"teacher": {"dtype": "bfloat16"}})
        words.append("teacher.dtype bfloat16: half of float32 weights (rounded; another cache)")
    return Answer("\n".join([f"{said}. While capturing:", *words]), tuple(words), tuple(changes))


def _writing(config: DistillConfig, said: str) -> Answer:
    """Every text that is written at once keeps keys and values of all its tokens."""
    fewer = max(1, config.write.batch_texts // 2)
    words = (f"write.batch_texts {fewer}: half of what the texts take (slower; choose another write.name)",)
    return Answer("\n".join([f"{said}. While writing:", *words]), words, ({"write": {"batch_texts": fewer}},))


OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's and the CPU allocator's ways to say it, told without importing torch."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY))
