"""Memory before it is spent: the predicted peak of a training step, for the three ways to distil, against the device's limit.

Formulas, in bytes. P: student parameters, N = micro-batch windows x window_tokens, V: vocabulary rows, D: hidden size, n: layers,
H, G: attention and key-value heads of width h, I: feed-forward width, K: stored entries, C: tokens per chunk of the head.

* weights 4P (float32, also under bf16 autocast), gradients 4P, AdamW 8P (two float32 moments; the fused optimizer makes no copies).
* activations, one layer: N (4 a D + w (2 h (H + E) + 2 h (H + G) r + m I) + 4 L) with a = 6 (10: Gemma, norms around both parts), E = H
  and L, the window, only for packed windows (the mask; keys and values repeated for it), else E = G and no L; r = 1 where query and key
  are normalised, else 0; m = 4 (2 without a gate); w = 4 (2 under bf16). Counted on a CPU with torch's
  saved_tensors_hooks (tests/test_memory.py counts again); attention scores are not among them: torch's fused attention recomputes them.
  Outside the layers: 4 N (4 D + 2 h). bf16 adds its copy of the weights, 2P.
  Activation checkpointing keeps 4 N D a layer and one layer in full.
* fused loss: chunk 4 C V, the head's gradient 4 V D, gradient of the hidden states 4 N D, teacher's entries 24 N K.
* dense loss: 2.9 x 4 N V (logits, log-softmax, gradient), with a dense teacher 5.8 x 4 N V. Measured on a CPU, float32, as 2.87-2.90 and
  5.74-5.78 at (N, V, D) = (2048, 32000, 512), (2048, 151936, 1024), (512, 262144, 640).

The peak is the larger of two moments: the loss (activations and logits; gradients only of earlier micro-batches), and the end of the
backward pass (all gradients, no activations). On a CPU the program itself is counted, and 1.2 x for blocks that the C allocator keeps.

Measured against the prediction, one CPU thread, torch 2.13, transformers 5.24, VmHWM of a fresh process (tests/test_memory.py, marked
slow): see MEASURED. On a GPU nothing was measured; there the CUDA context (about half a GiB) comes on top.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from . import catalog
from .catalog.model_facts import ModelFacts, belongs, dtype_in_memory, family_word
from .catalog.shapes import check_window, student_facts
from .config import DistillConfig
from .limits import device_limit, is_gpu
from .units import GIB, gib, show_gib

MODES = ("online", "offline dense", "offline fused")
PARTS = ("program", "teacher weights", "student weights", "gradients", "optimizer", "activations", "logits and loss")

PROGRAM_BYTES = 710_000_000
"""Resident memory of a training run without its tensors: the built-in student at default settings peaked at 0.730 and 0.728 GiB of its
process (two threads, torch 2.13, transformers 5.24), 67 MB of it tensors by the formulas above."""
HEAP_SLACK = 1.2
"""glibc's allocator: 1.15 to 1.25 x what is alive, measured by letting every block of 32 kB and more be returned at once."""
DENSE_COPIES, DENSE_TEACHER_COPIES = 2.9, 5.8

MEASURED = (
    {"vocab": 2048, "hidden": 96, "layers": 2, "heads": 3, "ffn": 256, "batch": 8, "window": 256, "tensor_bytes": 81_500_000},
    {"vocab": 32000, "hidden": 256, "layers": 4, "heads": 4, "ffn": 704, "batch": 4, "window": 256, "tensor_bytes": 397_000_000},
    {"vocab": 8192, "hidden": 512, "layers": 6, "heads": 8, "ffn": 1408, "batch": 2, "window": 128, "tensor_bytes": 476_000_000},
)
"""Peaks above those of a tiny model: float32, K = 100, packed windows, tied head, Llama. Predicted: 67 MB (-17 %: small blocks),
403 MB (+2 %), 471 MB (-1 %); of the whole process 2 % or less. Runs differ by 4 %."""

QK_NORM = ("qwen3", "qwen3moe", "gemma3", "gemma3text", "olmo2")
SANDWICH_NORM = ("gemma2", "gemma3", "gemma3text")
UNGATED = ("gpt2", "gptneox", "gptj", "phi", "opt", "bloom", "codegen", "falcon")
EXPERTS_AT_ONCE = 4
"""Experts that one token passes through, where the facts do not say."""


@dataclass(frozen=True)
class Phase:
    """Bytes alive at one moment of a step, by part."""

    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def layer_activation_bytes(facts: ModelFacts, *, window_tokens: int, packing: bool, bf16: bool) -> float:
    """Bytes that one layer keeps per token for its backward pass."""
    word = family_word(facts.architecture)
    narrow = 2 if bf16 else 4
    norms = 10 if word in SANDWICH_NORM else 6
    heads, kv_heads = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    feed_forward = facts.intermediate_size * (2 if belongs(facts.architecture, UNGATED) else 4)
    feed_forward *= min(facts.num_experts, EXPERTS_AT_ONCE) or 1
    attention = 2 * heads + 2 * (heads if packing else kv_heads) + (2 * (heads + kv_heads) if word in QK_NORM else 0)
    scores = 2 * facts.num_heads * window_tokens * 4 if word == "gemma2" else 0  # a softcap in the attention: torch's fused one cannot
    return 4 * norms * facts.hidden_size + narrow * (attention + feed_forward) + (4 * window_tokens if packing else 0) + scores


def activation_bytes(facts: ModelFacts, config: DistillConfig) -> float:
    """Bytes that a micro-batch keeps for its backward pass, the loss not counted."""
    train, text = config.train, config.text
    num_tokens = train.per_device_train_batch_size * text.window_tokens
    layer = layer_activation_bytes(facts, window_tokens=text.window_tokens, packing=text.packing, bf16=train.bf16)
    layers = layer + facts.num_layers * 4 * facts.hidden_size if train.activation_checkpointing else facts.num_layers * layer
    outside = 4 * (4 * facts.hidden_size + 2 * facts.head_dim)
    return num_tokens * (layers + outside) + (2 * facts.num_parameters if train.bf16 else 0)


def chunk_tokens(config: DistillConfig, vocab_size: int, *, gpu: bool) -> int:
    """Tokens per chunk of the fused loss: as asked, else the loss's own rule (tests compare the two)."""
    if config.loss.chunk_tokens is not None:
        return config.loss.chunk_tokens
    if not gpu:
        return 512 if vocab_size <= 65536 else 256
    return max(256, min(2048, 2**30 // (4 * vocab_size) // 128 * 128))


def loss_bytes(facts: ModelFacts, config: DistillConfig, *, mode: str, gpu: bool) -> float:
    """Bytes of logits, their gradients and the teacher's entries, at the worst moment of the loss; the head's gradient is not in it."""
    num_tokens = config.train.per_device_train_batch_size * config.text.window_tokens
    rows = facts.vocab_size_config
    if mode != "offline fused":
        copies = DENSE_COPIES if mode == "offline dense" else DENSE_TEACHER_COPIES
        return num_tokens * rows * (4 * copies + (2 if config.train.bf16 else 0))
    chunk = min(chunk_tokens(config, rows, gpu=gpu), num_tokens)
    entries = config.loss.top_k or config.capture.top_k
    return 4 * chunk * rows + num_tokens * (4 * facts.hidden_size + 24 * entries)


def plan(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, device: str | None = None) -> pl.DataFrame:
    """Predicted peak of a training step: columns mode, part, bytes, gib; the parts of a mode add up to its peak.

    Modes: 'online' (teacher in memory beside the student), 'offline dense' (cache, full logits), 'offline fused' (what this package does).
    Formulas and their measured errors stand at the top of this module.
    """
    gpu = is_gpu(config.device if device is None else device)
    rows = []
    for mode in MODES:
        parts = max(_phases(teacher, student, config, mode=mode, gpu=gpu), key=lambda phase: phase.total).parts
        rows += [{"mode": mode, "part": part, "bytes": round(parts[part]), "gib": gib(parts[part])} for part in PARTS]
    return pl.DataFrame(rows)


def _phases(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, *, mode: str, gpu: bool) -> Iterable[Phase]:
    slack = 1.0 if gpu else HEAP_SLACK
    weights = 4 * student.num_parameters
    head_gradient = 4 * student.vocab_size_config * student.hidden_size
    dtype = dtype_in_memory(teacher, config.teacher.dtype, "cuda" if gpu else "cpu")
    always = {
        "program": 0 if gpu else PROGRAM_BYTES,
        "teacher weights": teacher.memory_bytes[dtype] if mode == "online" else 0,
        "student weights": slack * weights,
        "optimizer": slack * 2 * weights,
    }
    earlier = weights if config.train.gradient_accumulation_steps > 1 else 0
    yield Phase(
        always
        | {
            "gradients": slack * (earlier + (head_gradient if mode == "offline fused" else 0)),
            "activations": slack * activation_bytes(student, config),
            "logits and loss": slack * loss_bytes(student, config, mode=mode, gpu=gpu),
        }
    )
    # a tied matrix gets its gradient from the head and from the embedding: both exist for a moment
    twice = head_gradient if student.tied_head else 0
    yield Phase(always | {"gradients": slack * (weights + twice), "activations": 0, "logits and loss": 0})


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


def _knobs(student: ModelFacts, config: DistillConfig) -> list[Knob]:
    train, gpu = config.train, is_gpu(config.device)
    knobs = []
    if train.per_device_train_batch_size > 1:
        half = train.per_device_train_batch_size // 2
        steps = math.ceil(train.gradient_accumulation_steps * train.per_device_train_batch_size / half)
        same = {"per_device_train_batch_size": half, "gradient_accumulation_steps": steps}
        knobs.append(Knob({"train": same}, "the same result"))
    if not train.activation_checkpointing:
        knobs.append(Knob({"train": {"activation_checkpointing": True}}, "about a third slower"))
    if not train.bf16 and gpu:
        knobs.append(Knob({"train": {"bf16": True}}, "faster on a GPU, products rounded"))
    chunk = chunk_tokens(config, student.vocab_size_config, gpu=gpu)
    if chunk >= 128:
        knobs.append(Knob({"loss": {"chunk_tokens": chunk // 2}}, "a little slower"))
    if config.text.window_tokens >= 128:
        knobs.append(Knob({"text": {"window_tokens": config.text.window_tokens // 2}}, "shorter context, and a new capture"))
    return knobs


def _advice(teacher: ModelFacts, student: ModelFacts, config: DistillConfig, limit: int) -> list[str]:
    """Settings that lower the fused peak by 3 % or more, most first; a last sentence where all of them together do not suffice."""

    def peak(changed: DistillConfig) -> int:
        rows = plan(teacher, student, changed)
        return int(rows.filter(pl.col("mode") == "offline fused")["bytes"].sum())

    now = peak(config)
    found = [(now - peak(_with(config, knob.changes)), knob) for knob in _knobs(student, config)]
    useful = sorted(((saved, knob) for saved, knob in found if saved >= 0.03 * now), key=lambda item: -item[0])
    lines = ["loss.impl 'reference' builds full logits: expect the dense figure"] if config.loss.impl == "reference" else []
    lines += [f"{knob.name}: about {show_gib(saved)} less ({knob.price})" for saved, knob in useful]
    for _, knob in useful:
        config = _with(config, knob.changes)
    if peak(config) > limit:
        lines.append("Even all of these together would not fit: choose a smaller student, or a larger device.")
    return lines
