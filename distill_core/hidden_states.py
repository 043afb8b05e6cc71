"""Hidden states of chosen layers: what a capture keeps of the teacher's, and how the stored numbers become states again."""
# B: windows   L: tokens in a window   R: rows, positions with a target   D: hidden size   W: stored width

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from .cache.manifest import HiddenPlan
from .errors import CacheError, ModelError
from .heads import Body, unwrapped

INT8_STEPS = 127


def layer_states(model: nn.Module, body: Body, layers: Sequence[int]) -> list[torch.Tensor]:
    """[B, L, D] of each: 0 the embeddings, n what layer n gives; of the last one, as transformers has it, after the last norm.

    Raises ModelError for a model that does not give one state per layer.
    """
    found, inner = body.layers, unwrapped(model)
    num_layers = inner.config.get_text_config().num_hidden_layers
    if found is None or len(found) != num_layers + 1:
        raise ModelError(
            f"model {type(inner).__name__} gives {len(found or ())} hidden states for its {num_layers} layers and the embeddings, so "
            "layers cannot be told apart. Leave capture.hidden_layers and loss.hidden_weight out, or pick another model."
        )
    return [found[layer] for layer in layers]


def projection(width: int, stored_width: int, seed: int) -> torch.Tensor:
    """[D, W] float32 with orthogonal columns of length sqrt(D / W): a state's length is kept on average, at W = D exactly.

    The Q of a Gaussian matrix, uniform over all such (Mezzadri 2007, arXiv:math-ph/0609050, section 5); lengths and angles of projected
    states come out right within about 1 / sqrt(W) (Johnson and Lindenstrauss 1984).
    """
    gaussian_DW = np.random.default_rng(seed).standard_normal((width, stored_width))
    q_DW, r_WW = np.linalg.qr(gaussian_DW)
    return torch.from_numpy(q_DW * np.sign(np.diag(r_WW)) * np.sqrt(width / stored_width)).float()


class HiddenKeeper:
    """Turns a forward pass of the teacher into the columns that its cache stores."""

    def __init__(self, plan: HiddenPlan, width: int, device: torch.device) -> None:
        self.plan = plan
        self.projection_DW = projection(width, plan.width, plan.seed).to(device) if plan.projection == "orthonormal" else None

    def columns(self, model: nn.Module, body: Body, targets_BP: torch.Tensor) -> dict[str, torch.Tensor]:
        """Column name -> rows of the positions with a target, on the CPU. Raises CacheError for states that float16 cannot hold."""
        kept: dict[str, torch.Tensor] = {}
        for layer, state_BLD in zip(self.plan.layers, layer_states(model, body, self.plan.layers), strict=True):
            state_RW = state_BLD[:, :-1][targets_BP].float()
            if self.projection_DW is not None:
                state_RW = state_RW @ self.projection_DW
            kept |= {name: part.cpu() for name, part in encode(self.plan, layer, state_RW).items()}
        return kept


def encode(plan: HiddenPlan, layer: int, state_RW: torch.Tensor) -> dict[str, torch.Tensor]:
    """float16: the numbers themselves; int8: steps of each row's largest / 127, off by half a step at most. Raises CacheError."""
    if plan.codec == "float16":
        half_RW = state_RW.half()
        if not torch.isfinite(half_RW).all():
            raise CacheError(
                f"the teacher's state after layer {layer} reaches {state_RW.abs().max():.3g}, which float16 cannot hold. "
                "Use --capture.hidden_codec int8, whose rows have a scale each."
            )
        return {plan.column(layer): half_RW}
    scale_R = state_RW.abs().amax(1) / INT8_STEPS
    steps_RW = torch.where(scale_R[:, None] > 0, state_RW / scale_R[:, None], 0.0).round().to(torch.int8)
    return {plan.column(layer): steps_RW, plan.scale_column(layer): scale_R}


def decode(plan: HiddenPlan, layer: int, columns: dict[str, Any], rows: torch.Tensor) -> torch.Tensor:
    """[R, W] float32: the stored states of those rows, `columns` flattened to [B x P, ...]."""
    state_RW = columns[plan.column(layer)].flatten(0, 1)[rows].float()
    return state_RW * columns[plan.scale_column(layer)].flatten(0, 1)[rows][:, None] if plan.codec == "int8" else state_RW
