"""What may be added to the distillation loss: each a sum over the micro-batch's learned tokens, weighted and divided like the loss itself.

A term that is not asked for is not in the list, and costs nothing.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..batches import Tensors
from ..heads import Body


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What a term may look at."""

    model: Any
    """As the Trainer holds it: wrapped or not."""
    inputs: Tensors
    """What Collate made."""
    body: Body
    """The student's forward pass over it."""
    num_valid: torch.Tensor
    """0-d int64: tokens that are learned from."""
    number: tuple[int, ...]
    """(optimizer step, micro-batch in it, process): what random draws are seeded with, so that a resumed run makes the same."""


class Term(Protocol):
    name: str
    """Its key in metrics.jsonl: a mean per learned token, weight not included."""
    weight: float

    def value(self, batch: MicroBatch) -> torch.Tensor:
        """0-d, with its graph: the sum over the learned tokens, in the term's own unit."""
        ...


class RouterBalance:
    """The load-balancing loss of a mixture of experts: the model's mean over tokens, so each micro-batch counts by its share of them."""

    name = "router_loss"

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def value(self, batch: MicroBatch) -> torch.Tensor:
        assert batch.body.router_loss is not None
        return batch.body.router_loss * batch.num_valid
