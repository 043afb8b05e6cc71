"""Students that learn through LoRA adapters: their own weights stay as they are, in full precision or quantized (QLoRA). PEFT does it.

Head and input embeddings are never adapted: the loss then computes no gradient of the head, and none of size V x D is stored.
"""

import copy
import warnings
from typing import Any

import torch
from torch import nn

from .config import StudentConfig
from .errors import ConfigError
from .units import show_count

INSTALL = "Install it: pip install 'distill-core[lora]'"


MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Families whose kernels read out_proj's weight themselves, so that PEFT refuses to adapt it."""


def is_adapted(model: nn.Module) -> bool:
    """Whether PEFT wraps this model; while it does, the model inside has a peft_config too."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def with_adapter(model: Any, student: StudentConfig, *, seed: int) -> Any:
    """The model wrapped by PEFT: only the adapters learn. torch's own random state is left as it was.

    Fused experts and routers are no linear layers and stay as they are.
    Raises ConfigError: PEFT is missing, or lora_target_modules names no part of this model, or its head or embeddings.
    """
    try:
        import peft
    except ImportError:
        raise ConfigError(f"student.lora_rank needs PEFT, which is not installed. {INSTALL}") from None
    assert student.lora_rank is not None
    names = _linear_names(model)
    targets = list(student.lora_target_modules or names)
    asked = f"student.lora_target_modules {targets}"
    way_out = f"Parts that can be: {', '.join(names)}; leave the setting out for all of them."
    fixed = {"head": model.get_output_embeddings(), "embeddings": model.get_input_embeddings()}
    for kind, part in fixed.items():
        if any(module is part and name.rpartition(".")[2] in targets for name, module in model.named_modules()):
            raise ConfigError(
                f"{asked} names the {kind} of {type(model).__name__}, which cannot be adapted: the loss needs a plain head. {way_out}"
            )
    wanted = peft.LoraConfig(
        r=student.lora_rank,
        lora_alpha=student.lora_alpha or 2 * student.lora_rank,
        lora_dropout=student.lora_dropout,
        target_modules=targets,
        task_type=peft.TaskType.CAUSAL_LM,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # GPT-2's layers are transposed; PEFT sees it by itself
        warnings.filterwarnings("ignore", "The following rank_pattern keys")  # experts, which are not asked for
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(model, wanted)
        except ValueError as error:
            raise ConfigError(f"{asked}: {str(error).strip().splitlines()[0]} {way_out}") from error
    adapted.peft_config["default"].base_model_name_or_path = ""  # else each checkpoint asks the hub for the base's config
    return adapted


def _linear_names(model: Any) -> list[str]:
    """Last parts of the names of the layers that can be adapted, all but the head."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    parts = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D) and part is not head}
    return sorted(parts - ({"out_proj"} if model.config.model_type in MAMBA else set()))


def adapter_words(model: nn.Module) -> str | None:
    """How much of the model learns, in one line; none for a student that learns as a whole."""
    if not is_adapted(model):
        return None
    learns = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    adapted = sum(_is_lora(part) for part in model.modules())
    return f"LoRA: {show_count(learns)} parameters learn, in {adapted} linear layers; all others stay as they are"


def _is_lora(part: nn.Module) -> bool:
    return hasattr(part, "get_delta_weight") and hasattr(part, "base_layer")


def quantization(student: StudentConfig, device: torch.device) -> Any:
    """How transformers shall load the weights: int8, or NF4 with quantized scales (Dettmers et al. 2023, arXiv:2305.14314).

    Head and embeddings keep their type. Raises ConfigError where bitsandbytes is missing, or the device is neither a CPU nor CUDA.
    """
    import transformers

    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise ConfigError(f"student.quantize '{student.quantize}' needs bitsandbytes, which is not installed. {INSTALL}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"student.quantize '{student.quantize}' works on a CPU or a CUDA GPU, not on '{device}'. Leave it out there.")
    if student.quantize == "8bit":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
    )


def without_cpu_repacking(model: nn.Module) -> None:
    """Keep 4-bit weights as they are stored: bitsandbytes (0.50) repacks them on some CPUs the first time a model is judged, after which
    products are rounded to bfloat16 and the weights can no longer be read back."""
    part: Any
    for part in model.modules():
        if getattr(part, "support_avx512bf16_for_cpu", False):
            part.support_avx512bf16_for_cpu = False


@torch.no_grad()
def plain_model(model: Any) -> Any:
    """What can be saved and loaded by plain transformers: the model itself, or, of an adapted one, its adapters merged into its weights.

    The merged weights are new float32 tensors on the CPU, one layer at a time; the adapted model keeps its own, to the last bit. Quantized
    weights are read back first, so the result is as large as the unquantized model. It is for saving only: buffers are not filled.
    """
    if not is_adapted(model):
        return model
    import transformers

    base = model.get_base_model()
    config = copy.deepcopy(base.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(_merged_weights(base), strict=True, assign=True)
    plain.tie_weights()
    plain.generation_config = base.generation_config
    return plain


def _merged_weights(base: Any) -> dict[str, torch.Tensor]:
    """The state dict that the model would have without adapters, had it learned what they hold."""
    special = {name: part for name, part in base.named_modules() if _is_lora(part) or (isinstance(part, nn.Linear) and _is_quantized(part))}
    outermost = {name: part for name, part in special.items() if not name.endswith(".base_layer")}
    inside = tuple(f"{name}." for name in outermost)
    weights = {name: value.cpu() for name, value in base.state_dict().items() if not name.startswith(inside)}
    for name, part in outermost.items():
        linear = part.base_layer if _is_lora(part) else part
        weight = _dense(linear)
        if _is_lora(part):
            weight = weight + sum(part.get_delta_weight(adapter).to(weight) for adapter in part.active_adapters)
        weights[f"{name}.weight"] = weight.float().cpu()
        if linear.bias is not None:
            weights[f"{name}.bias"] = linear.bias.float().cpu()
    return weights


def _is_quantized(linear: Any) -> bool:
    return not linear.weight.is_floating_point()


def _dense(linear: Any) -> torch.Tensor:
    """The weight as a matrix of numbers, read back where it is quantized."""
    if not _is_quantized(linear):
        return linear.weight
    from peft.utils.integrations import dequantize_bnb_weight

    return dequantize_bnb_weight(linear.weight, state=getattr(linear, "state", None))
