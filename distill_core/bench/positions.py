"""What the cache's benchmark is about: a real teacher's distributions over real text, with the truth beside what a cache would store."""
# R: positions   K: entries   A: stored temperatures   t: asked temperatures   V: real vocabulary   D: hidden size

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .. import corpus, models
from ..batches import model_inputs
from ..cache.reader import position_ids
from ..config import DistillConfig
from ..device import pick_device
from ..heads import head_inputs, probe_head, read_head
from ..sparse import fp32_logits, sparse_rows, widened

TEMPERATURES = (0.5, 0.6, 0.8, 1.0, 1.15, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


@dataclass(frozen=True)
class Positions:
    """Everything in nats; log-probabilities at T = 1."""

    ids_RK: NDArray[np.uint32]
    logprobs_RK: NDArray[np.float32]
    tail_RA: NDArray[np.float32]
    tail_mean_RA: NDArray[np.float16]
    true_tail_Rt: NDArray[np.float64]
    """log of the sum over the tokens outside the K of exp(lp / T), from the whole vocabulary in float64, at TEMPERATURES."""
    true_partition_Rt: NDArray[np.float64]
    """The same over all tokens."""
    vocab_size: int


@torch.no_grad()
def read_positions(config: DistillConfig, *, top_k: int = 100, progress: Callable[[str], None]) -> Positions:
    """Every target of the config's training windows, as its teacher sees it, one window at a time."""
    tokenizer = models.load_tokenizer(config.teacher.model, revision=config.teacher.revision)
    windows = corpus.build_windows(config.text, tokenizer).train
    device = pick_device(config.device)
    model = models.load_model(config.teacher.model, revision=config.teacher.revision, dtype="float32", device=str(device)).eval()
    vocab_size = models.real_vocab_size(model, tokenizer)
    head = widened(read_head(model, probe_head(model, vocab_size)))
    top_k = min(top_k, vocab_size - 1)
    parts = []
    for number in range(len(windows)):
        progress(f"window {number + 1} of {len(windows)}")
        ids_1L = torch.from_numpy(windows.input_ids_NL[number : number + 1].astype(np.int64)).to(device)
        at_1L = torch.from_numpy(position_ids(windows.doc_lens[number], config.text.window_tokens)[None]).to(device)
        targets_P = torch.from_numpy(windows.targets_NP[number]).to(device)
        hidden_1LD = head_inputs(model, **model_inputs({"input_ids": ids_1L, "position_ids": at_1L}, packing=config.text.packing))
        hidden_RD = hidden_1LD[0, :-1][targets_P]
        kept = sparse_rows(hidden_RD, ids_1L[0, 1:][targets_P], head, top_k=top_k, vocab_size=vocab_size, chunk_tokens=128)
        logprobs_RV = fp32_logits(hidden_RD, head, vocab_size=vocab_size).double().log_softmax(-1)
        whole_Rt = _log_sums(logprobs_RV)
        tail_Rt = _log_sums(logprobs_RV.scatter_(1, kept.ids_RK.to(device), -torch.inf))
        parts.append((kept.ids_RK, kept.logprobs_RK, kept.tail_RA, kept.tail_mean_RA, tail_Rt, whole_Rt))
    ids, logprobs, tail, mean, true_tail, true_whole = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return Positions(ids.astype(np.uint32), logprobs, tail, mean.astype(np.float16), true_tail, true_whole, vocab_size)


def _log_sums(logprobs_RV: torch.Tensor) -> torch.Tensor:
    return torch.stack([(logprobs_RV / temperature).logsumexp(-1) for temperature in TEMPERATURES], dim=1).cpu()


def stretched(
    positions: Positions, *, vocab_size: int, num_positions: int, seed: int = 0
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """(ids [num_positions, K] over a vocabulary of another size, logprobs): the teacher's rows, again and again if need be.

    Ids are scaled, so that their skew, and what must be stored to know them, are the teacher's own. Rows that come again, which are
    for measuring speed, are drawn anew between an id and the next, with log-probabilities other by a percent, so that none repeats.
    """
    dice = np.random.default_rng(seed)
    rows = np.arange(num_positions) % len(positions.ids_RK)
    old_ids = positions.ids_RK[rows].astype(np.int64)
    start, end = old_ids * vocab_size // positions.vocab_size, (old_ids + 1) * vocab_size // positions.vocab_size
    again = np.arange(num_positions) >= len(positions.ids_RK)
    ids = start + (again[:, None] * dice.random(old_ids.shape) * (end - start)).astype(np.int64)
    logprobs = positions.logprobs_RK[rows]
    logprobs[again] = -np.sort(-logprobs[again] * (1 + 0.01 * dice.random((int(again.sum()), logprobs.shape[1]), np.float32)), -1)
    return ids.astype(np.uint32), logprobs
