"""Adversarial training: the student must stay near the teacher where its input embeddings are changed for the worse."""

import torch

from ..cache import Cache
from ..config import LossConfig
from ..heads import HeadOps
from ..perturbation import PerturbedLoss, mean_embedding_norm
from .terms import MicroBatch


class Adversarial:
    """T² x the divergence from the clean cached targets, under the worst change of the input embeddings that a few steps find.

    Virtual adversarial training (Miyato et al. 2017, arXiv:1704.03976, equation 5) with the teacher's stored distribution in place of
    the student's own. A token's change is at most loss.adversarial_radius x the mean norm of the student's embeddings long.
    """

    name = "adversarial"

    def __init__(self, cache: Cache, loss: LossConfig, ops: HeadOps, *, seed: int) -> None:
        self.weight, self.share, self.num_steps, self.seed = loss.adversarial_weight, loss.adversarial_radius, loss.adversarial_steps, seed
        self.perturbed, self.vocab_size = PerturbedLoss(cache, loss, ops), cache.plan.vocab_size

    def value(self, batch: MicroBatch) -> torch.Tensor:
        radius = self.share * mean_embedding_norm(batch.model, self.vocab_size)
        seed = (self.seed, *batch.number)
        change_BLD = self.perturbed.worst(batch.model, batch.inputs, radius, num_steps=self.num_steps, seed=seed)
        return self.perturbed.parts(batch.model, batch.inputs, change_BLD).loss
