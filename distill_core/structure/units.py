"""The feed-forward units of a layer: which linear layers they are, what each is worth, and weights without some of them.

A unit is one entry of what the down projection reads. Its importance is the mean absolute value of that entry over a sample times the norm
of the column of the down projection that it is multiplied with: what it adds to the residual stream, in the manner of Minitron's neuron
importance (Muralidharan et al. 2024, arXiv:2407.14679, section 2.2), which takes the activations alone. Gated layers and plain ones are
told by their shapes, not by their names.
"""
# B: windows   L: tokens in a window   D: hidden size   I: feed-forward units

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import ModelError
from ..heads import head_inputs
from .layers import Sample

WAY_OUT = "Leave student.intermediate_size out: whole layers can go, by student.num_layers."


class Mlp(NamedTuple):
    up: tuple[str, ...]
    """Names, within the layer, of the linear layers whose outputs are the units: one, or gate and up."""
    down: str
    num_units: int
    is_transposed: bool
    """Weights are [in, out], as in GPT-2."""


def find_mlp(layer: nn.Module, hidden_size: int, *, place: int, source: str) -> Mlp:
    """The feed-forward part of a layer, which is number `place` of model `source`.

    Raises ModelError, with the reason, where it is not one or two linear layers up and one down.
    """
    found, others = [], []
    for name, module in layer.named_modules():
        linear = {child: sizes for child, part in module.named_children() if (sizes := _sizes(part)) is not None}
        prefix = f"{name}." if name else ""
        mlp = _as_mlp(linear, prefix, module, layer, hidden_size)
        if mlp is not None:
            found.append(mlp)
        elif _is_fused(linear):
            others.append(f"{prefix[:-1]} has gate and up in one matrix")
        elif any(parameter.dim() == 3 for parameter in module.parameters(recurse=False)):
            others.append(f"{prefix[:-1]} holds experts")
    if len(found) == 1:
        return found[0]
    why = f"{len(found)} of its parts could be it" if found else "; ".join(others) or "no part of it is one or two matrices up and one down"
    raise ModelError(f"model {source}: the feed-forward part of its layer {place} cannot be made narrower: {why}. {WAY_OUT}")


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """(in, out) of a linear layer, None for anything else."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return tuple(module.weight.shape) if type(module).__name__ == "Conv1D" else None  # type: ignore[arg-type]


def _as_mlp(linear: dict[str, tuple[int, int]], prefix: str, module: nn.Module, layer: nn.Module, hidden_size: int) -> Mlp | None:
    """The module as a feed-forward part: its linear layers are one down and one or two up, and nothing else in it depends on the width."""
    candidates = [
        (down, [name for name in linear if name != down and linear[name] == (out, width)])
        for down, (width, out) in linear.items()
        if out == hidden_size
    ]
    fitting = [(down, up) for down, up in candidates if up and len(up) in (1, 2) and len(up) + 1 == len(linear)]
    if len(fitting) != 1:
        return None
    down, up = fitting[0]
    if module is not layer and any(sum(1 for _ in part.parameters()) for name, part in module.named_children() if name not in linear):
        return None
    kinds = {type(module.get_submodule(name)).__name__ == "Conv1D" for name in linear}
    return Mlp(tuple(prefix + name for name in up), prefix + down, linear[down][0], kinds.pop()) if len(kinds) == 1 else None


def _is_fused(linear: dict[str, tuple[int, int]]) -> bool:
    """Two linear layers, of which one gives twice what the other reads."""
    return len(linear) == 2 and any(linear[up] == (linear[down][1], 2 * linear[down][0]) for up in linear for down in linear if up != down)


@torch.no_grad()
def measure_units(model: nn.Module, layers: Sequence[nn.Module], mlps: Sequence[Mlp], sample: Sample) -> list[torch.Tensor]:
    """Importance of every unit of these layers, [I] each, float64 on the CPU: one pass over the sample for all."""
    sums = [torch.zeros(mlp.num_units, dtype=torch.float64) for mlp in mlps]
    count, learned_BL = 0, torch.empty(0)

    def note(place: int) -> Callable[..., None]:
        def hook(_down: nn.Module, given: tuple[Any, ...]) -> None:
            # no other position counts: padding would
            sums[place] += given[0].reshape(*learned_BL.shape, -1)[learned_BL].abs().double().sum(0).cpu()

        return hook

    downs = [layer.get_submodule(mlp.down) for layer, mlp in zip(layers, mlps, strict=True)]
    hooks = [down.register_forward_pre_hook(note(place)) for place, down in enumerate(downs)]
    try:
        for inputs, learned_BL in sample.batches(next(model.parameters()).device):
            count += int(learned_BL.sum())
            head_inputs(model, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for total_I, down, mlp in zip(sums, downs, mlps, strict=True):
        weight = down.weight.detach().double().cpu()  # type: ignore[operator]
        found.append(total_I / count * weight.norm(dim=1 if mlp.is_transposed else 0))
    return found


def most_important(importance_I: torch.Tensor, count: int) -> tuple[int, ...]:
    """The `count` units of the largest importance, in their order; of equal ones the first stay."""
    order = torch.argsort(importance_I, descending=True, stable=True)
    return tuple(sorted(order[:count].tolist()))


def cut_units(weights: dict[str, torch.Tensor], prefix: str, mlp: Mlp, units: Sequence[int]) -> None:
    """Replace, in a state dict, the layer's feed-forward weights by those of the units that stay. `prefix`: the layer's, with its dot."""
    kept = torch.tensor(units)
    for name in mlp.up:
        weights[f"{prefix}{name}.weight"] = weights[f"{prefix}{name}.weight"].index_select(1 if mlp.is_transposed else 0, kept)
        if f"{prefix}{name}.bias" in weights:
            weights[f"{prefix}{name}.bias"] = weights[f"{prefix}{name}.bias"].index_select(0, kept)
    weights[f"{prefix}{mlp.down}.weight"] = weights[f"{prefix}{mlp.down}.weight"].index_select(0 if mlp.is_transposed else 1, kept)
