"""How close a model is to the teacher and to the text, on windows it never trained on; the teacher itself is not needed."""
# B: windows in a batch   L: tokens in a window   P = L - 1: positions   W: windows

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .batches import model_inputs, to_tensors
from .cache import Cache
from .heads import HeadOps, head_inputs, read_head
from .losses import topk_kl
from .progress import Progress


@dataclass(frozen=True)
class Scores:
    """Sums per window, so that two models can be compared window by window."""

    nll_W: NDArray[np.float64]
    """Negative log-likelihood of the text, nats."""
    kl_W: NDArray[np.float64]
    """KL(teacher || model) at T = 1 over the cache's entries and the tail as one bucket, nats: a lower bound of the full KL."""
    agreed_W: NDArray[np.float64]
    """Positions whose most likely token is the teacher's."""
    tokens_W: NDArray[np.float64]
    bytes_W: NDArray[np.float64]

    @property
    def nll(self) -> float:
        """Mean per token, nats."""
        return float(self.nll_W.sum() / self.tokens_W.sum())

    @property
    def kl_to_teacher(self) -> float:
        """Mean per token, nats."""
        return float(self.kl_W.sum() / self.tokens_W.sum())

    @property
    def top1_agreement(self) -> float:
        return float(self.agreed_W.sum() / self.tokens_W.sum())

    @property
    def bits_per_byte(self) -> float:
        """Bits the model needs for one byte of the text: comparable across vocabularies."""
        return float(self.nll_W.sum() / math.log(2) / self.bytes_W.sum())

    @property
    def perplexity(self) -> float:
        """Per token: comparable only within one vocabulary."""
        return math.exp(self.nll)


@torch.no_grad()
def score(
    model: nn.Module, ops: HeadOps, cache: Cache, *, split: str = "heldout", batch_windows: int = 8, progress: Progress | None = None
) -> Scores:
    """Score every window of a split. The model's mode is restored."""
    was_training = model.training
    model.eval()
    head = read_head(model, ops)
    device = head.weight_VD.device
    total = cache.num_windows(split)
    rows = []
    for first in range(0, total, batch_windows):
        picked = list(range(first, min(first + batch_windows, total)))
        stored = cache.rows(split, picked)
        batch = {name: tensor.to(device) for name, tensor in to_tensors(stored).items()}
        hidden_BLD = head_inputs(model, **model_inputs(batch, packing=cache.packing))
        for i in range(len(picked)):
            parts = topk_kl(
                hidden_BLD[i, :-1],
                head.weight_VD,
                batch["teacher_ids"][i],
                batch["teacher_logprobs"][i],
                teacher_tail_N=batch["teacher_tail"][i],
                labels_N=batch["labels"][i],
                bias_V=head.bias_V,
                logit_scale=head.logit_scale,
                logit_softcap=head.logit_softcap,
                vocab_size=cache.plan.vocab_size,
            )
            num_bytes = stored["token_bytes"][i, 1:][stored["targets"][i]].sum()
            rows.append([float(parts.ce), float(parts.kl), float(parts.agreement), float(parts.num_valid), float(num_bytes)])
        if progress is not None:
            progress.at(picked[-1] + 1, total, "windows")
    model.train(was_training)
    return Scores(*np.array(rows, dtype=np.float64).T)


def bootstrap_interval(difference_W: NDArray[np.float64], weight_W: NDArray[np.float64]) -> tuple[float, float, float]:
    """(mean, low, high): a mean over windows, per unit of weight, with its 95 % bootstrap interval over windows.

    Windows are drawn with replacement 2,000 times with a fixed seed (Efron 1979, Annals of Statistics 7:1). It says how much
    the answer depends on which held-out windows were taken; another training seed adds to it.
    """
    picks = np.random.default_rng(0).integers(0, len(weight_W), (2000, len(weight_W)))
    means = difference_W[picks].sum(1) / weight_W[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference_W.sum() / weight_W.sum()), float(low), float(high)
