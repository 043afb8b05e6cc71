"""What enters a language model's output head, and what the model does to the logits after it.

The loss and the capture need the last hidden state and the head's weight, never a batch of full logits. `model.base_model`'s output is
silently wrong for models that transform or scale it before the head, so the model itself is run with the head's product left out, and
everything it does afterwards (a scale, a softcap) is found by a probe and checked against the model's own logits, once, before work starts.
"""
# B: batch   L: tokens in a window   D: hidden size   V: rows of the head (vocabulary, padding rows included)   R: probe values
# S: hidden states made up to try the head

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from .errors import ModelError

APART = (
    "pad_token_id", "image_token_id", "image_token_index", "video_token_id", "audio_token_id", "vision_start_token_id",
    "vision_end_token_id",
)  # fmt: skip
"""Where a config names the tokens that stand for no text."""
PROBE_LIMITS = (1e-2, 3e4)
"""Smallest and largest raw logit fed to the model: small ones show a scale, large ones a cap; float16 still holds both."""


@dataclass(frozen=True)
class HeadOps:
    """logits = scale * raw, or softcap * tanh(scale * raw / softcap), where raw = hidden @ weight.T + bias."""

    logit_scale: float = 1.0
    logit_softcap: float | None = None

    def apply(self, raw: torch.Tensor) -> torch.Tensor:
        """The model's logits from the head's raw products, any shape."""
        scaled = raw * self.logit_scale if self.logit_scale != 1.0 else raw
        return scaled if self.logit_softcap is None else self.logit_softcap * torch.tanh(scaled / self.logit_softcap)


class Head(NamedTuple):
    """The live parameters of the head (not copies: gradients reach them) and what follows its product."""

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None
    logit_scale: float
    logit_softcap: float | None


def unwrapped(model: Any) -> Any:
    """The transformers model inside DistributedDataParallel, torch.compile and PEFT."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None)
        if inner is None and hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            inner = model.get_base_model()
        if inner is None:
            return model
        model = inner


def head_module(model: nn.Module) -> nn.Linear:
    """The module whose product is the logits, a Linear or shaped like one.

    Raises ModelError where there is none, or where its product is not hidden @ weight.T + bias with a plain weight.
    """
    inner = unwrapped(model)
    head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    name = type(inner).__name__
    if head is None:
        raise ModelError(
            f"model {name} has no output head over a vocabulary. "
            "Pick a causal language model (its class ends in ForCausalLM or LMHeadModel)."
        )
    if hasattr(head, "base_layer"):
        raise ModelError(
            f"model {name}: its head carries an adapter ({type(head).__name__}), so its weight alone is not the head. "
            "Leave the head out of student.lora_target_modules."
        )
    strange = sorted({key for key, _ in head.named_parameters()} - {"weight", "bias"})
    if strange:
        raise ModelError(
            f"model {name}: its head, a {type(head).__name__}, has more parameters than weight and bias ({strange[0]}), so its logits are "
            "more than one product. Pick another model."
        )
    weight = getattr(head, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        held = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ModelError(
            f"model {name}: its head is a {type(head).__name__} whose weight ({held}) is not a matrix of floating-point numbers. "
            "Quantized heads and several heads cannot be served; load the model without quantization, or pick another."
        )
    return head


def read_head(model: nn.Module, ops: HeadOps | None = None) -> Head:
    """The head's live weight and bias with what follows them; `ops` is what `probe_head` found, none: it is probed now.

    Raises ModelError as `probe_head` does.
    """
    head = head_module(model)
    ops = probe_head(model) if ops is None else ops
    return Head(head.weight, getattr(head, "bias", None), ops.logit_scale, ops.logit_softcap)


@contextmanager
def _replaced_forward(head: nn.Module, stub: Any) -> Iterator[None]:
    """`head(x)` calls `stub(x)` inside; an own forward that hooks may have set on the instance is put back."""
    before = head.__dict__.get("forward")
    head.forward = stub
    try:
        yield
    finally:
        del head.forward
        if before is not None:
            head.forward = before


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; every module's own mode is restored, frozen parts included."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _without_cache(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """transformers only keeps packed documents apart when no key-value cache is made (masking_utils, 5.24)."""
    parameters = inspect.signature(unwrapped(model).forward).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {"use_cache": False, **inputs} if takes_any or "use_cache" in parameters else inputs


class Body(NamedTuple):
    """What a model computes before its head."""

    hidden_BLD: torch.Tensor
    """What enters the head."""
    router_loss: torch.Tensor | None
    """Mixture of experts, where asked for: the load-balancing loss that transformers computes, 0-d, not yet weighted."""
    layers: tuple[torch.Tensor, ...] | None = None
    """Where asked for: the hidden states [B, L, D] that transformers gives, the embeddings first."""


def run_body(model: nn.Module, *, with_router_loss: bool = False, with_layers: bool = False, **inputs: Any) -> Body:
    """The model up to its head for these inputs; no logits are computed and gradients flow into the body.

    The whole model is called, so wrappers, hooks, adapters, autocast and gradient checkpointing work as ever. Give no labels.
    `with_router_loss`: only for models that have one (`routers.has_router_loss`).
    Raises ModelError if the head was not called exactly once.
    """
    seen: list[torch.Tensor] = []

    def keep(hidden_BLD: torch.Tensor) -> torch.Tensor:
        seen.append(hidden_BLD)
        return hidden_BLD[..., :1].clone()  # what follows the head must work on something; one column costs nothing, and is no view

    asked = ({"output_router_logits": True} if with_router_loss else {}) | ({"output_hidden_states": True} if with_layers else {})
    with _replaced_forward(head_module(model), keep):
        output = model(**_without_cache(model, inputs), **asked)
    if len(seen) != 1:
        raise ModelError(
            f"model {type(unwrapped(model)).__name__} called its head {len(seen)} times in one pass, not once, "
            "so its logits are not one product. Pick another model."
        )
    return Body(seen[0], output.aux_loss if with_router_loss else None, output.hidden_states if with_layers else None)


def head_inputs(model: nn.Module, **inputs: Any) -> torch.Tensor:
    """hidden_BLD alone, as `run_body` gives it."""
    return run_body(model, **inputs).hidden_BLD


def sample_ids(model: nn.Module, vocab_size: int, num_tokens: int) -> torch.Tensor:
    """The same random ids below vocab_size every time, [1, num_tokens]; never padding or an image's place, which models treat apart."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (1, num_tokens), generator=generator)
    config = getattr(unwrapped(model), "config", None)
    apart = {token_id for name in APART if isinstance(token_id := getattr(config, name, None), int)}
    plain = next(number for number in range(vocab_size) if number not in apart)
    for token_id in apart:
        ids[ids == token_id] = next((number for number in range(token_id + 1, vocab_size) if number not in apart), plain)
    return ids.to(next(model.parameters()).device)


def probe_head(model: nn.Module, vocab_size: int | None = None) -> HeadOps:
    """What the model does between its head and its logits, found with 8 tokens in eval mode and checked against its own logits.

    A ramp of raw logits is fed in the head's place: comparing ordinary logits would miss a softcap, since tanh is a straight line near 0.
    `vocab_size`: ids below it are used for the 8 tokens (none: every row of the head).
    Modes are restored. Raises ModelError, naming the model, where the logits are not scale * raw or cap * tanh(scale * raw / cap).
    """
    head = head_module(model)
    rows = head.weight.shape[0]
    real = min(vocab_size or rows, rows)
    name = type(unwrapped(model)).__name__
    inputs = _without_cache(model, {"input_ids": sample_ids(model, real, 8)})
    ramp_R = _ramp(real, inputs["input_ids"].device)
    padded_V = torch.cat([ramp_R, ramp_R.new_zeros(rows - real)])

    with in_eval_mode(model), torch.no_grad():
        _check_product(head, name)
        with _replaced_forward(head, lambda hidden: padded_V.expand(*hidden.shape[:-1], rows)):
            seen = model(**inputs).logits
        if not real <= seen.shape[-1] <= rows:
            raise ModelError(
                f"model {name}: its head has {rows:,} rows but its logits {seen.shape[-1]:,}, so it does more than one product. "
                "Pick another model."
            )
        seen_R = seen[..., :real].reshape(-1, real)[-1]
        rounding = 1e-4 if seen_R.dtype == torch.float32 else 1e-2
        ops = _fit(name, ramp_R.double().cpu(), seen_R.double().cpu(), _numbers(unwrapped(model)), rounding)
        _check_against_logits(model, name, inputs, ops)
    return ops


def _check_product(head: nn.Linear, name: str) -> None:
    """The head itself must be hidden @ weight.T + bias, for large values too: a cap inside it would not show in small logits."""
    generator = torch.Generator().manual_seed(0)
    trial_SD = torch.randn(4, head.weight.shape[1], generator=generator).to(head.weight)
    raw_SV = nn.functional.linear(trial_SD, head.weight)
    trial_SD = trial_SD * (1e3 / raw_SV.abs().max().clamp_min(1e-6))
    ours_SV = nn.functional.linear(trial_SD, head.weight, getattr(head, "bias", None))
    error = (head(trial_SD) - ours_SV).abs().max().item()
    if not error <= 2e-2 * ours_SV.abs().max().item():
        raise ModelError(
            f"model {name}: its head, a {type(head).__name__}, gives other values than hidden states times its weight, by up to "
            f"{error:.3g}. Pick another model."
        )


def _ramp(num: int, device: torch.device) -> torch.Tensor:
    """Raw logits of both signs, spaced evenly in their logarithm, in float32 whatever the model's own type."""
    low, high = PROBE_LIMITS
    sizes = torch.logspace(torch.tensor(low).log10().item(), torch.tensor(high).log10().item(), (num + 1) // 2)
    return torch.cat([-sizes.flip(0), sizes])[-num:].to(device)


def _fit(name: str, ramp_R: torch.Tensor, seen_R: torch.Tensor, known: list[float], rounding: float) -> HeadOps:
    """The scale and the cap that turn the ramp into what was seen, to the relative precision `rounding`."""
    if not torch.isfinite(seen_R).all():
        raise ModelError(
            f"model {name}: its logits are not finite for raw values up to {PROBE_LIMITS[1]:g}. "
            "Load it in float32 or bfloat16 (teacher.dtype)."
        )
    scale = _exact((seen_R[-len(seen_R) // 4 :] / ramp_R[-len(ramp_R) // 4 :]).median().item(), known, rounding)
    cap = _exact(seen_R[-1].item(), known, rounding)
    smallest = ramp_R.abs().argmin()
    slope = _exact((seen_R[smallest] / ramp_R[smallest]).item(), known, rounding)
    candidates = [HeadOps(scale)] + ([HeadOps(slope, cap)] if cap > 0 else [])
    for ops in candidates:
        if torch.allclose(ops.apply(ramp_R), seen_R, rtol=2 * rounding, atol=0):
            return ops
    raise ModelError(
        f"model {name} changes its logits after the head in a way that is neither a scale nor a softcap "
        f"(raw {ramp_R[smallest]:.3g} -> {seen_R[smallest]:.3g}, raw {ramp_R[-1]:.3g} -> {seen_R[-1]:.3g}), "
        "so no loss can be computed from its hidden states. Pick another model."
    )


def _numbers(model: nn.Module) -> list[float]:
    """Positive numbers in the model's config and their inverses: the exact constants that a probe in low precision only nears."""
    config = getattr(model, "config", None)
    values = config.to_dict().values() if config is not None and hasattr(config, "to_dict") else ()
    plain = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e4]
    return [1.0, *plain, *(1 / value for value in plain)]


def _exact(value: float, known: list[float], rounding: float) -> float:
    near = min(known, key=lambda candidate: abs(candidate - value))
    return near if abs(near - value) <= rounding * abs(value) else value


def _check_against_logits(model: nn.Module, name: str, inputs: dict[str, Any], ops: HeadOps) -> None:
    """Hidden states and weight, put together by hand, must give the model's own logits."""
    hidden_BLD = head_inputs(model, **inputs)
    truth = model(**inputs).logits
    head = read_head(model, ops)
    bias_V = None if head.bias_V is None else head.bias_V.to(hidden_BLD.dtype)
    ours = ops.apply(nn.functional.linear(hidden_BLD, head.weight_VD.to(hidden_BLD.dtype), bias_V).float())[..., : truth.shape[-1]]
    if ours.shape != truth.shape:
        raise ModelError(
            f"model {name}: logits of shape {tuple(truth.shape)} where its head gives {tuple(ours.shape)}. Pick another model."
        )
    allowed = (1e-4 if hidden_BLD.dtype == torch.float32 else 4e-2) * max(1.0, truth.float().abs().max().item())
    error = (ours - truth.float()).abs().max().item()
    if not error <= allowed:
        raise ModelError(
            f"model {name}: its logits differ by up to {error:.3g} (allowed {allowed:.3g}) from hidden states times the head's weight "
            f"with scale {ops.logit_scale:g} and softcap {ops.logit_softcap}; what it does besides is not known. Pick another model."
        )
