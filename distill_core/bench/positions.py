"""What the cache's benchmark is about: a real teacher's distributions over real text, with the truth beside what a cache would store."""
# R: positions   K: entries   A: stored temperatures   t: asked temperatures   V: real vocabulary   D: hidden size

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import corpus, models
from ..batches import model_inputs
from ..cache.reader import position_ids
from ..config import DistillConfig
from ..device import pick_device
from ..heads import probe_head, read_head
from ..sparse import read_batch, widened

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
    forward_s: float
    """Seconds a token of the bare teacher: its whole forward pass, logits included."""
    capture_s: float
    """Seconds a token of forward pass, top K, tail, next token and entropy, as a capture does it."""


@torch.no_grad()
def read_positions(config: DistillConfig, *, top_k: int = 100, progress: Callable[[str], None]) -> Positions:
    """Every target of the config's training windows, as its teacher sees it, one window at a time; the first one is read twice."""
    tokenizer = models.load_tokenizer(config.teacher.model, revision=config.teacher.revision)
    windows = corpus.build_windows(config.text, tokenizer).train
    device = pick_device(config.device)
    model = models.load_model(config.teacher.model, revision=config.teacher.revision, dtype="float32", device=str(device)).eval()
    vocab_size = models.real_vocab_size(model, tokenizer)
    head = widened(read_head(model, probe_head(model, vocab_size)))
    sizes: dict[str, Any] = {"top_k": min(top_k, vocab_size - 1), "vocab_size": vocab_size, "chunk_tokens": 512}
    packing = config.text.packing
    parts, times = [], []
    for number in (0, *range(len(windows))):
        progress(f"window {number + 1} of {len(windows)}")
        ids_1L = torch.from_numpy(windows.input_ids_NL[number : number + 1].astype(np.int64)).to(device)
        at_1L = torch.from_numpy(position_ids(windows.doc_lens[number], config.text.window_tokens)[None]).to(device)
        targets_1P = torch.from_numpy(windows.targets_NP[number : number + 1]).to(device)
        inputs = model_inputs({"input_ids": ids_1L, "position_ids": at_1L}, packing=packing)
        began = _now_s(device)
        logits_PV = model(**inputs, use_cache=False).logits[0, :-1]  # with a cache, packed documents would see each other
        between = _now_s(device)
        kept = read_batch(model, head, ids_1L, at_1L, targets_1P, packing=packing, **sizes)
        times.append((between - began, _now_s(device) - between))
        truth = _log_sums(logits_PV[targets_1P[0], :vocab_size], kept.ids_RK.to(device))
        parts.append((kept.ids_RK, kept.logprobs_RK, kept.tail_RA, kept.tail_mean_RA, *truth))
    ids, logprobs, tail, mean, true_tail, true_whole = (torch.cat(part).numpy() for part in zip(*parts[1:], strict=True))
    forward_s, capture_s = np.sum(times[1:], axis=0) / windows.input_ids_NL.size
    stored = (ids.astype(np.uint32), logprobs, tail, mean.astype(np.float16))
    return Positions(*stored, true_tail, true_whole, vocab_size, float(forward_s), float(capture_s))


def _now_s(device: torch.device) -> float:
    """CPU time, so that a busy machine does not count; wall time where a GPU does the work."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _log_sums(logits_RV: torch.Tensor, ids_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(tail, whole) log-sum-exps at TEMPERATURES from the model's own logits, [R, t] float64, a few rows at a time."""
    tails, wholes = [], []
    for some_CV, ids_CK in zip(logits_RV.split(16), ids_RK.split(16), strict=True):
        logprobs_CV = some_CV.double().log_softmax(-1)
        wholes.append(torch.stack([(logprobs_CV / temperature).logsumexp(-1) for temperature in TEMPERATURES], dim=1))
        logprobs_CV.scatter_(1, ids_CK, -torch.inf)
        tails.append(torch.stack([(logprobs_CV / temperature).logsumexp(-1) for temperature in TEMPERATURES], dim=1))
    return torch.cat(tails).cpu(), torch.cat(wholes).cpu()


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
