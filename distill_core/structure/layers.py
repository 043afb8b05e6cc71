"""How much each layer of a teacher is worth: what the cached teacher's distributions lose when it is left out.

Importance of a layer is the KL at T = 1 from the cache's distributions to the model without it, over a sample of windows: exact, for the
layer is really left out, and the teacher's own side is read from the cache. Beside it stands the block influence of Men et al. 2024
(arXiv:2403.03853, eq. 1): 1 - mean cosine of a layer's input and output, one pass for all layers.
"""
# B: windows   L: tokens in a window   P = L - 1: positions   D: hidden size

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from ..batches import Tensors, model_inputs, to_tensors
from ..cache import Cache
from ..errors import ModelError
from ..heads import HeadOps, head_inputs
from ..losses import IGNORE_INDEX
from ..scoring import score

SAMPLE_WINDOWS = 8
"""Enough to order the built-in teacher's layers and SmolLM2-135M's; a pass for every layer that is tried costs time."""
BATCH_WINDOWS = 4

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sample:
    """The windows that are looked at: the first ones of a split."""

    cache: Cache
    split: str = "train"
    num_windows: int = SAMPLE_WINDOWS

    @property
    def count(self) -> int:
        return min(self.num_windows, self.cache.num_windows(self.split))

    def batches(self, device: torch.device) -> Iterator[tuple[Tensors, torch.Tensor]]:
        """(what the model is called with, which positions are learned from [B, L], the last one never)."""
        for first in range(0, self.count, BATCH_WINDOWS):
            rows = self.cache.rows(self.split, list(range(first, min(first + BATCH_WINDOWS, self.count))))
            batch = {name: tensor.to(device) for name, tensor in to_tensors(rows).items()}
            learned_BP = batch["labels"] != IGNORE_INDEX
            yield model_inputs(batch, packing=self.cache.packing), nn.functional.pad(learned_BP, (0, 1))

    def kl(self, model: nn.Module, ops: HeadOps) -> float:
        """Mean KL from the cached teacher to the model, nats per token."""
        return score(model, ops, self.cache, split=self.split, batch_windows=BATCH_WINDOWS, num_windows=self.count).kl_to_teacher


class LayerCost(NamedTuple):
    layer: int
    """Counted from 0."""
    kl: float
    """Nats per token, with this layer alone left out."""
    influence: float
    """1 - mean cosine of its input and output."""


class Removal(NamedTuple):
    num_left: int
    """Layers that are left after it."""
    layer: int
    kl: float
    """Nats per token, with this layer and all before it left out."""


def layer_list(model: nn.Module, num_layers: int, source: str) -> str:
    """Name of the module list that holds the layers, such as 'model.layers'.

    Raises ModelError where it is not clear, and where layers hang together in other ways than one after the other.
    """
    _check_on_their_own(model, source)
    found = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == num_layers]
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if len(outermost) != 1:
        raise ModelError(
            f"model {source}: {len(outermost)} of its parts could be its {num_layers} layers, so none can be removed. "
            "Use student.init 'fresh' or 'pretrained'."
        )
    return outermost[0]


def _check_on_their_own(model: nn.Module, source: str) -> None:
    """Raise ModelError where a layer reads more than the states before it, or is described by its number: others would change with it."""
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    sharing = getattr(config, "num_kv_shared_layers", None)
    if sharing:  # Gemma 3n and 4: a count from the end, so other layers would share after a cut
        why = f"its last {sharing} layers read keys and values of layers before them"
    elif getattr(config, "hidden_size_per_layer_input", None):
        why = "one embedding holds an input of its own for every layer"
    elif getattr(config, "is_heterogeneous", False):
        why = "its config gives single layers, by their numbers, sizes of their own"
    else:
        return
    raise ModelError(f"model {source}: {why}, so no layer can be taken out alone. Use student.init 'fresh' or 'pretrained'.")


@contextmanager
def left_out(layers: Sequence[nn.Module]) -> Iterator[None]:
    """While it lasts, these layers hand on the hidden states that they were given."""

    def hand_on(_layer: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        given = positional[0] if positional else named["hidden_states"]
        return (given, *output[1:]) if isinstance(output, tuple) else given

    hooks = [layer.register_forward_hook(hand_on, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def measure_layers(model: nn.Module, layers: Sequence[nn.Module], ops: HeadOps, sample: Sample) -> list[LayerCost]:
    """Every layer's importance: one pass over the sample for each, and one more."""
    influences = _block_influences(model, layers, sample)
    costs = []
    for place, layer in enumerate(layers):
        with left_out([layer]):
            costs.append(LayerCost(place, sample.kl(model, ops), influences[place]))
    return costs


@torch.no_grad()
def _block_influences(model: nn.Module, layers: Sequence[nn.Module], sample: Sample) -> list[float]:
    """1 - mean over learned positions of cos(input, output), for each layer."""
    sums = [0.0] * len(layers)
    count, learned_BL = 0, torch.empty(0)

    def note(place: int) -> Callable[..., None]:
        def hook(_layer: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            given_BLD = (positional[0] if positional else named["hidden_states"]).float()
            result_BLD = (output[0] if isinstance(output, tuple) else output).float()
            sums[place] += nn.functional.cosine_similarity(given_BLD, result_BLD, dim=-1)[learned_BL].double().sum().item()

        return hook

    hooks = [layer.register_forward_hook(note(place), with_kwargs=True) for place, layer in enumerate(layers)]
    try:
        for inputs, learned_BL in sample.batches(next(model.parameters()).device):
            count += int(learned_BL.sum())
            head_inputs(model, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [1 - total / count for total in sums]


def order_of_removal(
    model: nn.Module, layers: Sequence[nn.Module], ops: HeadOps, sample: Sample, *, until: int = 1, say: Say = lambda _: None
) -> list[Removal]:
    """Greedy: each time the layer goes without which the KL is smallest, given those that went before, until `until` are left.

    The same for the same model, sample and device: of equal ones the first goes. With n layers it takes up to n (n + 1) / 2 passes over
    the sample, the first n of which are those of measure_layers.
    """
    gone: list[int] = []
    removals = []
    while len(layers) - len(gone) > until:
        tried = []
        for place in (place for place in range(len(layers)) if place not in gone):
            with left_out([layers[each] for each in (*gone, place)]):
                tried.append((sample.kl(model, ops), place))
        kl, place = min(tried)
        gone.append(place)
        removals.append(Removal(len(layers) - len(gone), place, kl))
        say(f"without layer {place}: {len(layers) - len(gone)} left, KL {kl:.4f}")
    return removals
