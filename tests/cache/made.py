"""A small cache made from random distributions, with the full truth beside it."""

from dataclasses import dataclass

import numpy as np

from distill_core.cache import ANCHORS, CacheWriter, Fingerprint, Plan, ShardColumns, ShardPlan
from distill_core.cache.manifest import Teacher
from distill_core.paths import caches_dir

V, L, K = 60, 12, 8
P = L - 1
TEACHER = Teacher(model="made", architecture="None", num_parameters=1, disk_bytes=4, dtype="float32")


@dataclass
class Truth:
    logprobs_NPV: np.ndarray
    input_ids_NL: np.ndarray
    targets_NP: np.ndarray
    doc_lens: list


def truth(num_windows, *, seed=0):
    dice = np.random.default_rng(seed)
    logits = dice.normal(size=(num_windows, P, V)) * 3
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    doc_lens = [[5, 4] if i % 2 else [12] for i in range(num_windows)]
    targets = np.ones((num_windows, P), bool)
    for row, lens in zip(targets, doc_lens, strict=True):
        row[sum(lens) - 1 :] = False
        row[lens[0] - 1 : lens[0]] = False
    return Truth(logprobs, dice.integers(0, V, (num_windows, L)).astype(np.uint32), targets, doc_lens)


def plan(num_windows, *, per_shard=5, heldout=4, codec="exact", **fields):
    shards = [("train", first, min(per_shard, num_windows - heldout - first)) for first in range(0, num_windows - heldout, per_shard)]
    shards += [("heldout", num_windows - heldout, heldout)]
    named = [
        ShardPlan(name=f"{split}-{i:05d}", split=split, first_window=first, num_windows=n) for i, (split, first, n) in enumerate(shards)
    ]
    fingerprint = Fingerprint(fields={"teacher.model": "made", "text.windows_sha256": "abc"} | fields)
    return Plan(fingerprint=fingerprint, top_k=K, vocab_size=V, window_tokens=L, packing=True, codec=codec, shards=tuple(named))


def columns(known, shard):
    picked = slice(shard.first_window, shard.first_window + shard.num_windows)
    logprobs, targets, ids = known.logprobs_NPV[picked], known.targets_NP[picked], known.input_ids_NL[picked]
    order = np.argsort(-logprobs, -1)
    top = np.take_along_axis(logprobs, order[..., :K], -1)
    rest = np.take_along_axis(logprobs, order[..., K:], -1)
    powers = np.exp(rest[..., None] / np.array(ANCHORS))
    tail, mean = np.log(powers.sum(-2)), (powers * rest[..., None]).sum(-2) / powers.sum(-2)
    gold = np.take_along_axis(logprobs, ids[:, 1:, None].astype(int), -1)[..., 0]
    return ShardColumns(
        window_ids_n=np.arange(picked.start, picked.stop, dtype=np.uint64),
        input_ids_nL=ids,
        doc_lens=known.doc_lens[picked],
        token_bytes_nL=np.full(ids.shape, 3, np.uint16),
        targets_nP=targets,
        teacher_ids_nPK=np.where(targets[..., None], order[..., :K], 0xFFFFFFFF).astype(np.uint32),
        teacher_logprobs_nPK=np.where(targets[..., None], top, -np.inf).astype(np.float32),
        tail_logsumexp_nPA=np.where(targets[..., None], tail, -np.inf).astype(np.float32),
        tail_mean_logprob_nPA=np.where(targets[..., None], mean, 0).astype(np.float16),
        gold_logprob_nP=np.where(targets, gold, 0).astype(np.float32),
        teacher_entropy_nP=np.where(targets, -(np.exp(logprobs) * logprobs).sum(-1), 0).astype(np.float16),
    )


def make(name="made", num_windows=24, *, only=None, read_tokens_per_s=None, **fields):
    """Write a cache, or only its first shards; returns (plan, truth)."""
    known, planned = truth(num_windows), plan(num_windows, **fields)
    with CacheWriter(caches_dir() / name, planned) as writer:
        for shard in writer.missing()[:only]:
            writer.write(shard, columns(known, shard))
        if only is None:
            writer.finish(teacher=TEACHER.model_copy(update={"read_tokens_per_s": read_tokens_per_s}), config={}, text={}, versions={})
    return planned, known
