"""Mixture of experts: the load-balancing loss of the routers, computed by the model itself and weighted as transformers weights it."""

import inspect
from typing import Any

import torch
from torch import nn

from .errors import ConfigError
from .heads import in_eval_mode, run_body, sample_ids, unwrapped

WEIGHT_NAMES = ("router_aux_loss_coef", "aux_loss_coef")
"""Where transformers keeps the weight, on the model itself; the second is JetMoe's."""


def has_router_loss(model: nn.Module) -> bool:
    """Whether transformers computes a load-balancing loss for this model, tried with two tokens.

    Some mixtures of experts are balanced otherwise (DeepSeek V3), and some families have experts in some of their models only (Doge).
    """
    inner = unwrapped(model)
    if "output_router_logits" not in inspect.signature(inner.forward).parameters or _own_weight(inner) is None:
        return False
    try:
        with in_eval_mode(model), torch.no_grad():
            found = run_body(model, with_router_loss=True, input_ids=sample_ids(model, 2, 2)).router_loss
    except IndexError:  # transformers 5.24, where no layer has experts
        return False
    return isinstance(found, torch.Tensor)


def _own_weight(inner: Any) -> float | None:
    places = (inner, inner.config.get_text_config())  # multimodal models keep it in their text config only
    found = [getattr(place, name) for place in places for name in WEIGHT_NAMES if getattr(place, name, None) is not None]
    return float(found[0]) if found else None


def router_loss_weight(model: nn.Module, asked: float | None) -> float:
    """What the load-balancing loss is multiplied by before it is added: `asked`, or what the model's own config says.

    transformers adds it where `output_router_logits` is on, with weight `router_aux_loss_coef`; 0 elsewhere.
    Raises ConfigError for a weight asked of a model that computes no such loss.
    """
    inner = unwrapped(model)
    if not has_router_loss(model):
        if asked:
            raise ConfigError(
                f"loss.router_loss_weight {asked:g}: student {type(inner).__name__} computes no load-balancing loss of routers. "
                "Leave the setting out, or pick a mixture of experts that has one."
            )
        return 0.0
    if asked is not None:
        return asked
    own = _own_weight(inner)
    return own if own and inner.config.get_text_config().output_router_logits else 0.0


def router_words(model: nn.Module, weight: float) -> str | None:
    """One sentence on the load-balancing loss, none for a model that has no such loss."""
    if not has_router_loss(model):
        return None
    if weight:
        return f"mixture of experts: {weight:g} x the routers' load-balancing loss is added (metrics: router_loss)"
    own = _own_weight(unwrapped(model))
    return (
        "mixture of experts: the routers' load-balancing loss is left out, as output_router_logits in its config says. "
        f"Add it with --loss.router_loss_weight {own:g}"
    )
