"""From the cache to tensors: which windows make up each micro-batch, the same ones after any resume."""
# B: windows in a micro-batch   L: tokens in a window   P = L - 1: positions   K: teacher entries

from typing import Any

import torch
from torch.utils.data import Dataset

from .cache import Cache
from .config import LossConfig
from .errors import ConfigError
from .losses import IGNORE_INDEX, check_targets

Tensors = dict[str, torch.Tensor]
AHEAD_TOKENS = 16_384
"""Tokens that a thread reads ahead of training: row groups of a few micro-batches, a few MB."""


class Visits(Dataset):
    """The training windows in the order of their visits: visit v is window order(epoch v // n)[v % n].

    One long sequence without a sampler, so that a resumed run needs nothing but the number of visits already made.
    """

    def __init__(self, cache: Cache, *, num_visits: int, seed: int) -> None:
        self.cache, self.num_visits, self.seed = cache, num_visits, seed
        self._epoch, self._order = -1, cache.order("train", seed=seed, epoch=0)
        self._ahead = max(2, AHEAD_TOKENS // cache.plan.window_tokens)

    def __len__(self) -> int:
        return self.num_visits

    def __getitem__(self, visit: int) -> int:
        epoch, place = divmod(visit, len(self._order))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.cache.order("train", seed=self.seed, epoch=epoch)
        self.cache.ahead("train", self._order[place + 1 : place + 1 + self._ahead])
        return int(self._order[place])


class Collate:
    """Window numbers to one micro-batch, looked at once for what the loss could not be computed from (LossInputError)."""

    def __init__(self, cache: Cache, loss: LossConfig, *, split: str = "train") -> None:
        self.cache, self.loss, self.split = cache, loss, split
        if cache.plan.num_exact is not None and loss.kl_weight and loss.divergence != "forward_kl":
            raise ConfigError(
                f"cache {cache.name} was captured with select 'topk+sample': drawn entries give the forward KL's gradient, not that of "
                f"loss.divergence '{loss.divergence}'. Use forward_kl, or capture with --capture.select topk."
            )

    def __call__(self, windows: list[int]) -> Tensors:
        rows = self.cache.rows(self.split, windows, temperature=self.loss.temperature, top_k=self.loss.top_k, with_drawn=True)
        batch = to_tensors(rows)
        names = ("teacher_ids", "teacher_logprobs", "teacher_tail", "labels")
        check_targets(*(batch[name].flatten(0, 1) for name in names), vocab_size=self.cache.plan.vocab_size)  # milliseconds
        return batch


def to_tensors(rows: dict[str, Any]) -> Tensors:
    """input_ids, position_ids [B, L]; labels [B, P] (the next token, or IGNORE_INDEX); the teacher's side [B, P, …];
    valid_rows [M], which of the B x P rows are learned from: found here, where no GPU has to be waited for."""
    tensors = {
        name: torch.from_numpy(rows[name]) for name in ("input_ids", "position_ids", "teacher_ids", "teacher_logprobs", "teacher_tail")
    }
    targets = torch.from_numpy(rows["targets"])
    tensors["gold_logprob"] = torch.from_numpy(rows["gold_logprob"])
    tensors["labels"] = tensors["input_ids"][:, 1:].masked_fill(~targets, IGNORE_INDEX)
    tensors["valid_rows"] = targets.flatten().nonzero().squeeze(-1)
    return tensors


def model_inputs(batch: Tensors, *, packing: bool, mask_padding: bool = False) -> Tensors:
    """What the model is called with. Packed documents are told apart by positions that restart; padding stands to the right of
    everything that counts, so a causal model never sees it and needs no mask: only the balance of experts counts tokens, and asks for
    `mask_padding` (no use with packing, where the rest of a window is one more document)."""
    if packing:
        return {name: batch[name] for name in ("input_ids", "position_ids")}
    inputs = {"input_ids": batch["input_ids"]}
    if mask_padding:
        positions_BL = batch["position_ids"]  # 0, 1, 2, … to the end of the document, then 0 again
        inputs["attention_mask"] = (positions_BL == torch.arange(positions_BL.shape[1], device=positions_BL.device)).long()
    return inputs
