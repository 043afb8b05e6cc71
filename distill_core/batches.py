"""From the cache to tensors: which windows make up each micro-batch, the same ones after any resume."""
# B: windows in a micro-batch   L: tokens in a window   P = L - 1: positions   K: teacher entries

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from .cache import Cache
from .cache.shards import read_rows
from .config import LossConfig
from .errors import ConfigError
from .losses import IGNORE_INDEX, check_targets
from .positions import most_uncertain, ranks_to_keep

Tensors = dict[str, torch.Tensor]
SORTED_STEPS = 50
"""Steps whose windows are sorted together: enough for like lengths, and every epoch is another order."""
AHEAD_TOKENS = 16_384
"""Tokens that a thread reads ahead of training: row groups of a few micro-batches, a few MB."""


class Visits(Dataset):
    """The training windows in the order of their visits: visit v is window order(epoch v // n)[v % n].

    One long sequence without a sampler, so that a resumed run needs nothing but the number of visits already made.
    `group_by_length`: windows in a step, which are then of like length.
    """

    def __init__(self, cache: Cache, *, num_visits: int, seed: int, group_by_length: int | None = None) -> None:
        self.cache, self.num_visits, self.seed, self.group = cache, num_visits, seed, group_by_length
        self._lengths = window_lengths(cache) if group_by_length else None
        self._epoch, self._order = -1, self._ordered(0)
        self._ahead = max(2, AHEAD_TOKENS // cache.plan.window_tokens)

    def __len__(self) -> int:
        return self.num_visits

    def __getitem__(self, visit: int) -> int:
        epoch, place = divmod(visit, len(self._order))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._ordered(epoch)
        self.cache.ahead("train", self._order[place + 1 : place + 1 + self._ahead])
        return int(self._order[place])

    def _ordered(self, epoch: int) -> NDArray[np.int64]:
        order = self.cache.order("train", seed=self.seed, epoch=epoch)
        if self.group is None or self._lengths is None:
            return order
        return grouped_by_length(order, self._lengths, windows_per_step=self.group, random=np.random.default_rng([self.seed, epoch, 1]))


def grouped_by_length(
    order: NDArray[np.int64], lengths: NDArray[np.int64], *, windows_per_step: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """The same windows, those of like length in one step, steps in random order; neighbours in `order` stay near, for the cache's sake."""
    pieces = []
    for first in range(0, len(order), SORTED_STEPS * windows_per_step):
        together = order[first : first + SORTED_STEPS * windows_per_step]
        together = together[np.argsort(lengths[together], kind="stable")]
        whole = len(together) // windows_per_step * windows_per_step
        steps = together[:whole].reshape(-1, windows_per_step)
        pieces += [steps[random.permutation(len(steps))].ravel(), together[whole:]]
    return np.concatenate(pieces)


def window_lengths(cache: Cache) -> NDArray[np.int64]:
    """Tokens in each training window, padding not counted."""
    lengths: list[int] = []
    for entry in cache.manifest.entries_of("train"):
        lengths += [int(sum(each)) for each in read_rows(cache.shard_path(entry), 0, entry.num_windows, ["doc_lens"])["doc_lens"]]
    return np.array(lengths, np.int64)


class Collate:
    """Window numbers to one micro-batch, looked at once for what the loss could not be computed from (LossInputError)."""

    def __init__(self, cache: Cache, loss: LossConfig, *, split: str = "train") -> None:
        self.cache, self.loss, self.split = cache, loss, split
        if cache.plan.num_exact is not None and loss.kl_weight and loss.divergence != "forward_kl":
            raise ConfigError(
                f"cache {cache.name} was captured with select 'topk+sample': drawn entries give the forward KL's gradient, not that of "
                f"loss.divergence '{loss.divergence}'. Use forward_kl, or capture with --capture.select topk."
            )
        self.by = loss.positions if loss.position_share < 1 else "all"
        if self.by == "entropy":
            cache.read_also("teacher_entropy")
        if cache.has_hard_labels and self.by == "entropy":
            raise ConfigError(
                f"cache {cache.name} holds hard labels, whose entropy is 0: by loss.positions 'entropy' they would be left out first. "
                "Use gap, or translate with --unaligned skip."
            )
        if cache.has_hard_labels and loss.kl_weight and loss.divergence == "reverse_kl":
            raise ConfigError(
                f"cache {cache.name} holds hard labels where no teacher's row is the student's: they are infinitely far by "
                "loss.divergence 'reverse_kl'. Use forward_kl or jsd, or translate with --unaligned skip."
            )

    def __call__(self, windows: list[int]) -> Tensors:
        rows = self.cache.rows(self.split, windows, temperature=self.loss.temperature, top_k=self.loss.top_k, with_drawn=True)
        if self.by == "entropy":
            rows["targets"] = most_uncertain(rows["targets"], rows["teacher_entropy"], self.loss.position_share)
        rows = rows if self.cache.packing else without_idle_end(rows)
        batch = to_tensors(rows)
        if self.by == "gap":
            batch["gap_ranks"] = ranks_to_keep(rows["targets"], self.loss.position_share)
        names = ("teacher_ids", "teacher_logprobs", "teacher_tail", "labels")
        check_targets(*(batch[name].flatten(0, 1) for name in names), vocab_size=self.cache.plan.vocab_size)  # milliseconds
        return batch


def without_idle_end(rows: dict[str, Any]) -> dict[str, Any]:
    """The windows cut after the last token that any of them learns: what follows teaches nothing, and a causal model never looks ahead."""
    learned = np.flatnonzero(rows["targets"].any(axis=0))
    if not len(learned):
        return rows
    num_positions = int(learned[-1]) + 1
    tokens = {name: rows[name][:, : num_positions + 1] for name in ("input_ids", "position_ids", "token_bytes")}
    per_position = ("targets", "teacher_ids", "teacher_logprobs", "teacher_tail", "gold_logprob")
    return tokens | {name: rows[name][:, :num_positions] for name in (*per_position, *_hidden(rows))}


def _hidden(rows: dict[str, Any]) -> list[str]:
    """Columns of hidden states, where they are read."""
    return [name for name in rows if name.startswith("hidden_")]


def to_tensors(rows: dict[str, Any]) -> Tensors:
    """input_ids, position_ids [B, L]; labels [B, P] (the next token, or IGNORE_INDEX); the teacher's side [B, P, …];
    valid_rows [M], which of the B x P rows are learned from: found here, where no GPU has to be waited for."""
    names = ("input_ids", "position_ids", "teacher_ids", "teacher_logprobs", "teacher_tail", *_hidden(rows))
    tensors = {name: torch.from_numpy(rows[name]) for name in names}
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
