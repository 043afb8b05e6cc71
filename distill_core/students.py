"""The student before it has learned anything: fresh and small, the teacher with layers removed, or a pretrained sibling."""

import copy
import logging
from collections.abc import Iterable
from typing import Any

import torch

from . import models
from .adapters import quantization, with_adapter, without_cpu_repacking
from .catalog.model_facts import FIELDS, shape_from_config
from .catalog.shapes import Shape, fresh_shape, kept_layers
from .config import DistillConfig
from .errors import ConfigError, ModelError
from .structure import Structure, cut_units, find_mlp, layer_list

# Config entries that list layer numbers, not one value per layer.
LAYER_NUMBERS = ("mlp_only_layers", "full_attn_idxs", "attn_layer_indices", "full_attention_layers")
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

log = logging.getLogger(__name__)


def build_student(
    config: DistillConfig,
    *,
    tokenizer: Any,
    real_vocab_size: int,
    device: str | torch.device = "cpu",
    structure: Structure | None = None,
) -> Any:
    """The student, float32, in eval mode, with its adapters if it has some; the same weights for the same config and `train.seed`.

    `tokenizer`, `real_vocab_size`: the teacher's, as stored with the cache. `structure`: what stays of the teacher, where it was measured
    (student.is_measured). Raises ConfigError (sizes that do not fit), ModelError (a
    model that cannot be loaded or pruned), VocabularyError (a pretrained student with other tokens).
    """
    student = config.student
    if student.init == "pretrained":
        model = _pretrained(config, tokenizer, real_vocab_size, torch.device(device))
    elif student.init == "prune_layers":
        model = _pruned(config, structure)
    else:
        model = _fresh(config, tokenizer, real_vocab_size)
    positions = shape_from_config(model.config.to_dict()).get("max_positions")
    if positions is not None and config.text.window_tokens > positions:
        raise ConfigError(
            f"text.window_tokens {config.text.window_tokens:,} is more than the student's {positions:,} positions. "
            f"Use {positions:,} or fewer."
        )
    if student.quantize is None:
        model = model.to(device)
    if student.lora_rank is not None:
        model = with_adapter(model, student, seed=config.train.seed)
    return model.eval()


def _pretrained(config: DistillConfig, tokenizer: Any, real_vocab_size: int, device: torch.device) -> Any:
    student = config.student
    assert student.model is not None
    wanted = quantization(student, device) if student.quantize else None
    on = device if wanted else "cpu"
    model = models.load_model(student.model, revision=student.revision, dtype=torch.float32, device=on, quantization=wanted)
    if wanted:
        without_cpu_repacking(model)
    elif getattr(model, "is_quantized", False):
        raise ModelError(f"model {student.model} is stored quantized and cannot be trained. Pick the same model without quantization.")
    models.check_same_vocabulary(
        models.vocabulary(tokenizer),
        models.vocabulary(models.load_tokenizer(student.model, revision=student.revision)),
        teacher_name=f"teacher {config.teacher.model}",
        student_name=f"student {student.model}",
        student_rows=model.get_input_embeddings().weight.shape[0],
        teacher_rows=real_vocab_size,
    )
    return model


def _fresh(config: DistillConfig, tokenizer: Any, real_vocab_size: int) -> Any:
    """The teacher's architecture, smaller, with random weights; its embedding has exactly the tokenizer's rows."""
    teacher = models.load_config(config.teacher.model, revision=config.teacher.revision)
    sizes = shape_from_config(teacher.to_dict())
    absent = [name for name in ("num_layers", "hidden_size", "num_heads") if name not in sizes]
    if absent:
        raise ModelError(
            f"model {config.teacher.model} ({type(teacher).__name__}) does not name its {', '.join(absent)} in a way known here, "
            "so no fresh student can be shaped after it. Use student.init 'prune_layers' or 'pretrained'."
        )
    shape = fresh_shape(sizes, config.student)
    new = copy.deepcopy(teacher.get_text_config())
    _set_widths(new, shape, sizes)
    _set_layers(new, sizes["num_layers"], [place % sizes["num_layers"] for place in range(shape.num_layers)])
    new.vocab_size = real_vocab_size
    for name in TOKEN_IDS:
        value = getattr(tokenizer, name, None)
        setattr(new, name, value if value is not None and value < real_vocab_size else None)
    return _random_model(new, config.train.seed, config.teacher.model)


def _set_widths(config: Any, shape: Shape, teacher: dict[str, Any]) -> None:
    """Write the sizes under the names that this family uses."""
    values = {**vars(shape), "expert_size": shape.intermediate_size}
    present = config.to_dict()
    for field, words in FIELDS.items():
        named = [word for word in words if word in present or hasattr(config, word)]
        if field in values and named and (field != "num_layers"):
            setattr(config, named[0], values[field])
    scale = getattr(config, "attention_multiplier", None)  # Granite: 1 / head width
    if isinstance(scale, float) and abs(scale * teacher["head_dim"] - 1) < 1e-6:
        config.attention_multiplier = 1 / shape.head_dim


def _set_layers(config: Any, num_teacher_layers: int, chosen: Iterable[int]) -> None:
    """Make a config describe only the chosen layers of a teacher, in that order; lists with an entry per layer follow."""
    chosen = list(chosen)
    for name, value in list(vars(config).items()):
        if name in LAYER_NUMBERS and isinstance(value, list):
            setattr(config, name, [place for place, layer in enumerate(chosen) if layer in value])
        elif isinstance(value, list | tuple) and len(value) == num_teacher_layers and name not in ("architectures", "eos_token_id"):
            setattr(config, name, type(value)(value[layer] for layer in chosen))
    config.num_hidden_layers = len(chosen)


def _set_units(config: Any, count: int, source: str) -> None:
    """Write the feed-forward width under the name that this family uses. Raises ModelError where it has none that is one number."""
    named = [name for name in FIELDS["intermediate_size"] if hasattr(config, name) and not isinstance(getattr(config, name), list)]
    if not named:
        raise ModelError(
            f"model {source}: its config has no name known here for the feed-forward width, so a narrower one could not be loaded again. "
            "Leave student.intermediate_size out: whole layers can go, by student.num_layers."
        )
    setattr(config, named[0], count)


def _random_model(config: Any, seed: int, source: str) -> Any:
    """A model of this config; torch's own random state is left as it was. Raises ConfigError where transformers refuses the sizes."""
    import transformers

    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        except (ValueError, AssertionError, RuntimeError, TypeError, ZeroDivisionError) as error:
            raise ConfigError(
                f"a fresh student shaped after {source} cannot be built: {error}. "
                "Change student.hidden_size and student.num_attention_heads, or use student.init 'prune_layers'."
            ) from error
    model.config.architectures = [type(model).__name__]
    return model


def _pruned(config: DistillConfig, structure: Structure | None) -> Any:
    """The teacher's weights with layers and units left out: built anew from the smaller config, so that it is what a reload gives.

    Memory while it is built: the teacher as stored, and the student in float32.
    """
    source = config.teacher.model
    if models.sees_images_only(source, revision=config.teacher.revision):
        raise ModelError(f"model {source} sees images, and no student is cut from such a model. Use student.init 'fresh' or 'pretrained'.")
    dtype = torch.float32 if source.lower().endswith(".gguf") else "auto"
    teacher = models.load_model(source, revision=config.teacher.revision, dtype=dtype)
    if getattr(teacher, "is_quantized", False):
        raise ModelError(
            f"model {source} is stored quantized; a student cut from it could not be trained. Use student.init 'fresh' or 'pretrained'."
        )
    num_layers = teacher.config.get_text_config().num_hidden_layers
    assert structure is not None or not config.student.is_measured, "what stays is measured first (structure.choose)"
    chosen = kept_layers(config.student, num_layers) if structure is None else structure.layers
    prefix = layer_list(teacher, num_layers, source)
    smaller = copy.deepcopy(teacher.config)
    _set_layers(smaller.get_text_config(), num_layers, chosen)
    weights = _chosen_weights(teacher.state_dict(), prefix, chosen)
    if structure is not None and structure.units is not None:
        _set_units(smaller.get_text_config(), len(structure.units[0]), source)
        for place, (layer, units) in enumerate(zip(chosen, structure.units, strict=True)):
            width = teacher.config.get_text_config().hidden_size
            mlp = find_mlp(teacher.get_submodule(f"{prefix}.{layer}"), width, place=layer, source=source)
            cut_units(weights, f"{prefix}.{place}.", mlp, units)
    generation = teacher.generation_config
    del teacher
    student = _random_model(smaller, config.train.seed, source)
    try:
        student.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise ModelError(
            f"model {source} cannot lose layers or units: {str(error).strip().splitlines()[-1].strip()} "
            "Use student.init 'fresh' or 'pretrained'."
        ) from None
    student.tie_weights()
    student.generation_config = generation
    log.info("student: layers %s of %d of %s", list(chosen), num_layers, source)
    return student


def _chosen_weights(weights: dict[str, torch.Tensor], prefix: str, chosen: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """The weights outside the layers, and those of the chosen layers under their new numbers."""
    new_number = {str(layer): str(place) for place, layer in enumerate(chosen)}
    result = {}
    for name, value in weights.items():
        if not name.startswith(f"{prefix}."):
            result[name] = value
            continue
        layer, _, rest = name.removeprefix(f"{prefix}.").partition(".")
        if layer in new_number:
            result[f"{prefix}.{new_number[layer]}.{rest}"] = value
    return result
