"""Learning from intermediate layers: the student's states, through a learned projection each, must point where the teacher's do."""
# R: learned rows   D: the student's hidden size   W: stored width of the teacher's states

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..cache import Cache
from ..config import LossConfig
from ..heads import unwrapped
from ..hidden_states import decode, layer_states
from ..layer_map import layer_pairs
from .terms import MicroBatch

MODULE = "hidden_projections"
"""Name under which the projections are a part of the model that is trained: so the optimizer, its clipping and DDP see them."""
FILE = f"{MODULE}.safetensors"


class HiddenStates:
    """Mean over the layer pairs of 1 - cos(W h, t) or of the mean squared difference of W h and t, summed over the learned tokens.

    h: the student's state, t: the stored one of the teacher, W: a projection without bias that is learned too. FitNets (Romero et al.
    2015, arXiv:1412.6550, equation 3) with squared differences as in TinyBERT (arXiv:1909.10351, equation 8) or the cosine of DistilBERT
    (arXiv:1910.01108, section 2).
    """

    name = "hidden"

    def __init__(self, model: nn.Module, cache: Cache, loss: LossConfig, *, seed: int) -> None:
        inner: Any = unwrapped(model)
        num_layers = inner.config.get_text_config().num_hidden_layers
        self.pairs = layer_pairs(loss, cache.manifest, cache=cache.name, num_layers=num_layers)
        assert cache.plan.hidden is not None
        self.weight, self.kind, self.plan = loss.hidden_weight, loss.hidden_loss, cache.plan.hidden
        self.projections = _projections(inner, len(self.pairs), self.plan.width, seed)
        model.add_module(MODULE, self.projections)
        for column in self.plan.columns:
            cache.read_also(column)

    def value(self, batch: MicroBatch) -> torch.Tensor:
        rows = batch.inputs["valid_rows"]
        states = layer_states(batch.model, batch.body, [student for student, _ in self.pairs])
        total = rows.new_zeros((), dtype=torch.float32)
        with torch.autocast(rows.device.type, enabled=False):
            for projection, state_BLD, (_, layer) in zip(self.projections, states, self.pairs, strict=True):
                target_RW = decode(self.plan, layer, batch.inputs, rows)
                ours_RW = projection(state_BLD[:, :-1].flatten(0, 1)[rows].float())
                if self.kind == "cosine":
                    total = total + (1 - nn.functional.cosine_similarity(ours_RW, target_RW, dim=1)).sum()
                else:
                    total = total + (ours_RW - target_RW).square().mean(1).sum()
        return total / len(self.pairs)

    def save(self, checkpoint: Path) -> None:
        save_file({name: weight.detach().cpu().contiguous() for name, weight in self.projections.state_dict().items()}, checkpoint / FILE)

    def load(self, checkpoint: Path) -> None:
        self.projections.load_state_dict(load_file(checkpoint / FILE))


def _projections(inner: Any, count: int, width: int, seed: int) -> nn.ModuleList:
    """Linear layers that begin as parts of an orthogonal matrix; torch's own random state is left as it was."""
    size, device = inner.config.get_text_config().hidden_size, inner.get_input_embeddings().weight.device
    made = [nn.Linear(size, width, bias=False, device="meta").to_empty(device="cpu") for _ in range(count)]
    generator = torch.Generator().manual_seed(seed)
    for projection in made:
        nn.init.orthogonal_(projection.weight, generator=generator)
    return nn.ModuleList(made).to(device)


@contextmanager
def without_projections(model: nn.Module) -> Iterator[None]:
    """Inside, the model is what will be taken home: its state has no projections."""
    taken = model._modules.pop(MODULE, None)
    try:
        yield
    finally:
        if taken is not None:
            model.add_module(MODULE, taken)
