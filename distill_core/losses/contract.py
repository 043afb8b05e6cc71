"""What goes into a loss implementation and what comes out; every implementation shares these types."""

# N: tokens that are learned from (ignored ones are gone)   V: rows of the head   D: hidden size   K: stored teacher entries per token
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..config import Divergence, Tail
from .workspace import Workspace

IGNORE_INDEX = -100
"""A label that says: nothing is learned from this token. The same value as in torch and transformers."""


class LossParts(NamedTuple):
    """Sums over the valid tokens, in nats, each a 0-d tensor; the caller divides once, by the step's valid tokens.

    With weights_N, a token counts with its weight in loss, kl, ce and z_loss, and as one token in the rest.
    """

    loss: Tensor
    """(kl_weight * T^2 * kl + ce_weight * ce + z_loss_weight * z_loss) / divisor. The only part with a graph."""
    kl: Tensor
    """The divergence from the teacher at the temperature asked for; T^2, kl_weight and divisor are not in it."""
    ce: Tensor
    """Cross-entropy with the labels at T = 1; ce_weight and divisor are not in it. 0 when no labels were given."""
    agreement: Tensor
    """int64: tokens whose most likely student token is the teacher's first entry; a tie counts as agreement."""
    num_valid: Tensor
    """int64: tokens that were learned from."""
    z_loss: Tensor
    """Squared log-sum-exp of the logits at T = 1; z_loss_weight is not in it. 0 when neither labels nor a z_loss_weight was given."""
    teacher_mass: Tensor
    """The teacher's probability inside the K, at the temperature asked for: kept mass times num_valid. Weights are not in it."""
    student_mass: Tensor
    """The student's probability of the same K entries."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """The loss's settings, checked."""

    temperature: float
    kl_weight: float
    ce_weight: float
    z_loss_weight: float
    jsd_weight: float
    divergence: Divergence
    tail: Tail
    logit_scale: float
    logit_softcap: float | None
    vocab_size: int
    """Real vocabulary: rows of the head from here on are padding, and take no part."""
    chunk_tokens: int
    workspace: Workspace
    accumulate_head_grad: bool = False
    """Whether the head's gradient goes straight into its .grad, in the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The teacher's side of N tokens, as every implementation reads it."""

    ids_NK: Tensor
    """int64, every id inside the vocabulary: an empty entry repeats the id of the row's most likely one."""
    logprobs_NK: Tensor
    """float32 or float64, natural log at T = 1; -inf marks an empty entry."""
    tail_N: Tensor | None
    """log of the sum, over the tokens outside the K, of exp(logprob / temperature)."""
    labels_N: Tensor | None
    """int64 next tokens, none of them IGNORE_INDEX."""
    weights_N: Tensor | None = None
    """What each token counts, in loss and gradient."""
    divisor: Tensor | None = None
    """0-d: loss and gradient are divided by it, row by row, so that no gradient has to be divided afterwards."""

    def rows(self, start: int, stop: int) -> "Targets":
        """The same for tokens start..stop; no copy."""
        return Targets(
            ids_NK=self.ids_NK[start:stop],
            logprobs_NK=self.logprobs_NK[start:stop],
            tail_N=None if self.tail_N is None else self.tail_N[start:stop],
            labels_N=None if self.labels_N is None else self.labels_N[start:stop],
            weights_N=None if self.weights_N is None else self.weights_N[start:stop],
            divisor=self.divisor,
        )


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """The type in which logits are held: float64 if any input is, else float32, whatever the inputs are.

    A distillation gradient is a difference of nearly equal probabilities: bfloat16 logits would lose a third of it near the optimum.
    """
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
