"""The shape of a student, worked out before any weight exists: which layers stay, how wide a fresh model is, how many parameters it has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config import DistillConfig, StudentConfig
from ..errors import ConfigError
from . import lookup
from .model_facts import ModelFacts, dense_parameters, layer_parameters

WIDTH_STEP = 8
"""Feed-forward widths are rounded to this: what tensor cores like."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes that a fresh student is built with."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def kept_layers(student: StudentConfig, num_layers: int) -> tuple[int, ...]:
    """Which of the teacher's layers, counted from 0, a pruned student keeps: as asked, or the first, the last and evenly between.

    Raises ConfigError for layers the teacher does not have.
    """
    if student.keep_layers is not None:
        outside = [layer for layer in student.keep_layers if not 0 <= layer < num_layers]
        if outside or not student.keep_layers:
            raise ConfigError(
                f"student.keep_layers {list(student.keep_layers)}: the teacher has layers 0 to {num_layers - 1}. "
                f"Name at least one of these{f' and drop {outside}' if outside else ''}."
            )
        return student.keep_layers
    count = student.num_layers or max(1, num_layers // 2)
    if count > num_layers:
        raise ConfigError(
            f"student.num_layers {count}: the teacher has {num_layers} layers, and pruning only removes some. Use 1 to {num_layers}."
        )
    if count == 1:
        return (0,)
    return tuple(round(place * (num_layers - 1) / (count - 1)) for place in range(count))


def kept_units(student: StudentConfig, teacher: ModelFacts) -> int:
    """Feed-forward units of each layer that a pruned student keeps. Raises ConfigError for more than there are, and for experts."""
    count = student.intermediate_size
    if count is None:
        return teacher.intermediate_size
    if teacher.num_experts:
        raise ConfigError(
            f"student.intermediate_size {count}: the teacher's feed-forward parts are {teacher.num_experts} experts, of which no units can "
            "be cut. Leave it out: whole layers can go, by student.num_layers."
        )
    if count > teacher.intermediate_size:
        raise ConfigError(
            f"student.intermediate_size {count:,}: the teacher's layers have {teacher.intermediate_size:,} feed-forward units, and pruning "
            f"only removes some. Use 1 to {teacher.intermediate_size:,}."
        )
    return count


def fresh_shape(teacher: Mapping[str, Any], student: StudentConfig) -> Shape:
    """Sizes of a fresh student: as asked; else half as deep and wide as the teacher, heads of the teacher's width or near it.

    `teacher`: the size fields of ModelFacts. Raises ConfigError where a width cannot be split into heads of equal, even width (rotary
    positions turn pairs of numbers).
    """
    hidden = student.hidden_size or max(WIDTH_STEP, teacher["hidden_size"] // 2)
    fills_width = teacher["num_heads"] * teacher["head_dim"] == teacher["hidden_size"]
    if fills_width:
        heads = _heads_that_divide(hidden, teacher["head_dim"], student.num_attention_heads)
        head_dim = hidden // heads
    else:  # the family gives heads a width of their own (Qwen3, Gemma): it stays
        heads = student.num_attention_heads or max(1, round(teacher["num_heads"] * hidden / teacher["hidden_size"]))
        head_dim = teacher["head_dim"]
    wanted_kv = max(1, round(heads * teacher["num_kv_heads"] / teacher["num_heads"]))
    feed_forward = teacher["intermediate_size"] * hidden / teacher["hidden_size"]
    return Shape(
        num_layers=student.num_layers or max(1, teacher["num_layers"] // 2),
        hidden_size=hidden,
        intermediate_size=student.intermediate_size or max(WIDTH_STEP, round(feed_forward / WIDTH_STEP) * WIDTH_STEP),
        num_heads=heads,
        num_kv_heads=max(count for count in range(1, wanted_kv + 1) if heads % count == 0),
        head_dim=head_dim,
    )


def _heads_that_divide(hidden: int, head_dim: int, asked: int | None) -> int:
    fitting = [heads for heads in range(1, hidden + 1) if hidden % (2 * heads) == 0]
    if not fitting:
        raise ConfigError(
            f"student.hidden_size {hidden} cannot be split into heads of even width. Use an even number, such as {hidden + 1}."
        )
    if asked is None:
        return min(fitting, key=lambda heads: (abs(hidden // heads - head_dim), -heads))
    if asked not in fitting:
        near = sorted(fitting, key=lambda heads: abs(heads - asked))[:3]
        raise ConfigError(
            f"student.num_attention_heads {asked} does not split student.hidden_size {hidden} into heads of equal, even width. "
            f"Use {', '.join(str(heads) for heads in sorted(near))}."
        )
    return asked


def check_window(facts: ModelFacts, window_tokens: int) -> None:
    """Raise ConfigError for windows longer than the model has positions for."""
    if facts.max_positions is not None and window_tokens > facts.max_positions:
        raise ConfigError(
            f"text.window_tokens {window_tokens:,} is more than the {facts.max_positions:,} positions of {facts.source}. "
            f"Use {facts.max_positions:,} or fewer."
        )


def student_facts(config: DistillConfig, teacher: ModelFacts) -> ModelFacts:
    """Facts of the student that the config asks for, without building it; 'pretrained' asks the catalogue.

    Pruned: exact but for layers that differ in size, and biases of feed-forward units that are cut. Fresh: `dense_parameters`, within 1 %.
    Raises ConfigError and ModelError.
    """
    student = config.student
    if student.init == "pretrained":
        assert student.model is not None
        return lookup.facts(student.model, student.revision)
    common: dict[str, Any] = {
        "source": f"{student.init} from {teacher.source}",
        "dtype_on_disk": "float32",
        "disk_bytes": None,
        "commit": None,
        "notes": (),
    }
    if student.init == "prune_layers":
        num_kept, width = len(kept_layers(student, teacher.num_layers)), kept_units(student, teacher)
        outside_layers = max(0, teacher.num_parameters - teacher.num_layers * layer_parameters(teacher))
        narrower = replace(teacher, intermediate_size=width)
        per_layer = (teacher.num_parameters - outside_layers) / teacher.num_layers - layer_parameters(teacher) + layer_parameters(narrower)
        return replace(narrower, num_layers=num_kept, num_parameters=round(outside_layers + num_kept * per_layer), **common)
    sizes = fresh_shape(vars(teacher), student)
    rows = min(teacher.vocab_size_tokenizer or teacher.vocab_size_config, teacher.vocab_size_config)
    fresh = replace(teacher, vocab_size_config=rows, **vars(sizes), **common)
    return replace(fresh, num_parameters=dense_parameters(fresh))
