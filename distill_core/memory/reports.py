"""The plan with what it is measured against: facts, peaks, the device's limit, and what would lower them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from .. import catalog
from ..catalog.model_facts import ModelFacts
from ..catalog.shapes import check_window, student_facts
from ..config import DistillConfig
from ..limits import device_limit, is_gpu
from ..units import GIB, show_gib
from .formulas import chunk_tokens
from .prediction import MODES, peaks, plan


@dataclass(frozen=True)
class Report:
    """The plan with what it is measured against and what would help."""

    teacher: ModelFacts
    student: ModelFacts
    rows: pl.DataFrame
    """Columns mode, part, bytes, gib."""
    limit_name: str
    limit_bytes: int
    advice: tuple[str, ...]
    """What would lower the fused peak, best first: setting, saving, price."""

    @property
    def limit_gib(self) -> float:
        return self.limit_bytes / GIB

    @property
    def peaks(self) -> dict[str, int]:
        """Bytes by mode."""
        return {mode: int(self.rows.filter(pl.col("mode") == mode)["bytes"].sum()) for mode in MODES}

    @property
    def predicted_gib(self) -> float:
        """Peak of the run that this package would make."""
        return self.peaks["offline fused"] / GIB

    @property
    def fits(self) -> bool:
        return self.peaks["offline fused"] <= self.limit_bytes

    def lines(self) -> list[str]:
        """The plan in sentences: one per mode, then what would help."""
        has = f"the {show_gib(self.limit_bytes)} of {self.limit_name}"
        words = []
        for mode, peak in self.peaks.items():
            verdict = "fits into" if peak <= self.limit_bytes else "does not fit into"
            words.append(f"{mode}: about {show_gib(peak)}, {verdict} {has}")
        return [*words, *self.advice]

    def to_text(self) -> str:
        """For a terminal: a table of parts and modes, then the sentences."""
        table = self.rows.pivot("mode", index="part", values="bytes")
        lines = [f"{'':<18}" + "".join(f"{mode:>16}" for mode in MODES)]
        lines += [f"{row[0]:<18}" + "".join(f"{show_gib(size):>16}" for size in row[1:]) for row in table.iter_rows()]
        names = f"teacher {self.teacher.source}, student {self.student.source}"
        note = "(what is alive at the peak: where the loss is the peak, its own gradients are not there yet)"
        return "\n".join([names, *lines, note, "", *self.lines()])

    def to_dict(self) -> dict[str, Any]:
        return {
            "teacher": asdict(self.teacher),
            "student": asdict(self.student),
            "rows": self.rows.to_dicts(),
            "peak_bytes": self.peaks,
            "limit": {"name": self.limit_name, "bytes": self.limit_bytes},
            "fits": self.fits,
            "advice": list(self.advice),
        }


def report(config: DistillConfig, *, teacher: ModelFacts | None = None) -> Report:
    """Facts, plan, limit and advice for a config. `teacher`: its facts, where they are known already.

    Raises ModelError for models that cannot be used, ConfigError for sizes that do not fit each other.
    """
    teacher = catalog.facts(config.teacher.model, config.teacher.revision) if teacher is None else teacher
    student = student_facts(config, teacher)
    for facts in (teacher, student):
        check_window(facts, config.text.window_tokens)
    name, limit = device_limit(config.device)
    return Report(teacher, student, plan(teacher, student, config), name, limit, tuple(_advice(teacher, student, config, limit)))


@dataclass(frozen=True)
class Knob:
    """A setting that lowers the peak."""

    changes: dict[str, dict[str, Any]]
    """By section of the config."""
    price: str

    @property
    def name(self) -> str:
        return " with ".join(
            f"{section}.{key} {str(value).lower()}" for section, values in self.changes.items() for key, value in values.items()
        )


def _with(config: DistillConfig, changes: dict[str, dict[str, Any]]) -> DistillConfig:
    return config.changed(**{section: getattr(config, section).changed(**values) for section, values in changes.items()})


def knobs(student: ModelFacts, config: DistillConfig) -> list[Knob]:
    """Settings that could lower the peak of this config, with what each costs."""
    train, gpu = config.train, is_gpu(config.device)
    found = []
    if train.per_device_train_batch_size > 1:
        half = train.per_device_train_batch_size // 2
        steps = math.ceil(train.gradient_accumulation_steps * train.per_device_train_batch_size / half)
        same = {"per_device_train_batch_size": half, "gradient_accumulation_steps": steps}
        found.append(Knob({"train": same}, "the same result"))
    if not train.activation_checkpointing:
        found.append(Knob({"train": {"activation_checkpointing": True}}, "about a third slower"))
    if gpu and not (train.bf16 or train.fp16):
        found.append(Knob({"train": {"bf16": True}}, "faster on a GPU, products rounded"))
    chunk = chunk_tokens(config, student.vocab_size_config, gpu=gpu)
    if chunk >= 128:
        found.append(Knob({"loss": {"chunk_tokens": chunk // 2}}, "a little slower"))
    if config.text.window_tokens >= 128:
        found.append(Knob({"text": {"window_tokens": config.text.window_tokens // 2}}, "shorter context, and a new capture"))
    return found


def savings(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, gpu: bool) -> list[tuple[int, Knob]]:
    """(bytes less of the fused peak, knob) of those that lower it by 3 % or more, most first."""
    now = peaks(teacher, student, config, gpu=gpu)["offline fused"]
    saved = [
        (now - peaks(teacher, student, _with(config, knob.changes), gpu=gpu)["offline fused"], knob) for knob in knobs(student, config)
    ]
    return sorted(((less, knob) for less, knob in saved if less >= 0.03 * now), key=lambda item: -item[0])


def _advice(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, limit: int) -> list[str]:
    """Settings that lower the fused peak, most first; a last sentence where all of them together do not suffice."""
    gpu = is_gpu(config.device)
    useful = savings(teacher, student, config, gpu=gpu)
    lines = ["loss.impl 'reference' builds full logits: expect the dense figure"] if config.loss.impl == "reference" else []
    lines += [f"{knob.name}: about {show_gib(less)} less ({knob.price})" for less, knob in useful]
    for _, knob in useful:
        config = _with(config, knob.changes)
    if peaks(teacher, student, config, gpu=gpu)["offline fused"] > limit:
        lines.append("Even all of these together would not fit: choose a smaller student, or a larger device.")
    return lines
