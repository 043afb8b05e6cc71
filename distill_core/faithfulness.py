"""Does a cache say what its teacher says? The teacher is run again on a fixed sample and compared, beside itself at another batch size.

Arithmetic in another order gives other last bits, so a live teacher does not agree with itself exactly either: that second
comparison is the yardstick. What the cache adds to it is storage: the rounding of its codec.
"""
# B: windows in a batch   L: tokens in a window   P = L - 1: positions   R: positions with a target   K: entries

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from . import models
from .cache import Cache
from .cache.manifest import TRANSLATED
from .cache.tail import AT_ONE, log_partition
from .config import from_dict
from .device import pick_device
from .errors import CacheError
from .heads import Head, probe_head, read_head
from .sparse import SparseRows, read_batch, widened

STORAGE_KL = 2e-5
"""Nats: what a codec may add (cache/codecs.py)."""


@dataclass(frozen=True)
class Agreement:
    """How close one reading is to another, over R positions; nats."""

    who: str
    top1_agreement: float
    same_entries: float
    """Share of the K entries that both have."""
    kl: float
    """Mean KL of the buckets (entries both have, and all the rest), first to second."""
    logprob_error: float
    """Mean absolute difference of the log-probabilities of entries that both have."""
    tail_error: float
    """The same of the tail's log-sum-exp at T = 1."""
    gold_error: float
    """The same of the next token's log-probability."""


@dataclass(frozen=True)
class Comparison:
    num_positions: int
    batch_windows: tuple[int, int]
    stored: Agreement
    yardstick: Agreement

    @property
    def is_faithful(self) -> bool:
        """No further from the live teacher than storage allows, on top of three times what the teacher is from itself."""
        return self.stored.kl <= STORAGE_KL + 3 * self.yardstick.kl and self.stored.top1_agreement >= self.yardstick.top1_agreement - 0.002

    def to_text(self) -> str:
        lines = [f"{'the live teacher against':<34}{'top-1':>8}{'entries':>9}{'KL':>10}{'logprob':>10}{'tail':>10}{'next token':>12}"]
        for row in (self.stored, self.yardstick):
            lines.append(
                f"{row.who:<34}{row.top1_agreement:>8.2%}{row.same_entries:>9.2%}{row.kl:>10.1e}{row.logprob_error:>10.1e}"
                f"{row.tail_error:>10.1e}{row.gold_error:>12.1e}"
            )
        verdict = (
            "the cache says what its teacher says" if self.is_faithful else "THE CACHE SAYS SOMETHING ELSE than its teacher. Capture again"
        )
        return "\n".join(lines) + f"\n{self.num_positions:,} positions, nats: {verdict}."


def compare(cache: Cache, *, num_windows: int = 8, device: str = "auto", progress: Callable[[str], None] | None = None) -> Comparison:
    """Run the cache's teacher again on evenly spaced training windows. Raises CacheError if it is another teacher now, ModelError."""
    say = progress or (lambda _: None)
    config, plan = from_dict(cache.manifest.config), cache.plan
    if cache.is_translated:
        raise CacheError(
            f"cache {cache.name} speaks other tokens than its teacher's, so the teacher cannot be asked again from them. Compare the cache "
            f"that it was made from: python -m distill_core cache compare {cache.plan.fingerprint.fields[TRANSLATED]}"
        )
    if "teacher_without_context" in cache.manifest.text:
        raise CacheError(
            f"cache {cache.name}: its teacher had a context or images, which are not in the windows, so it cannot be asked again from "
            "them. Capture again under another name and compare the two manifests' sha256 (cache info)."
        )
    say(f"loading the teacher {config.teacher.model}")
    check_teacher(cache)
    where = pick_device(device)
    logging.disable_progress_bar()  # of loading the weights; `progress` says what happens
    model = models.load_model(config.teacher.model, revision=config.teacher.revision, dtype=cache.manifest.teacher.dtype, device=str(where))
    model = model.eval()
    head = widened(read_head(model, probe_head(model, plan.vocab_size)))
    total = cache.num_windows("train")
    picked = np.unique(np.linspace(0, total - 1, min(num_windows, total)).astype(int))
    rows = cache.rows("train", picked)
    sizes = (config.capture.batch_windows, 1 if config.capture.batch_windows > 1 else 2)
    live, again = (_live(model, head, cache, rows, size, say) for size in sizes)
    stored = _stored(cache, rows)
    return Comparison(
        num_positions=len(live.gold_logprob_R),
        batch_windows=sizes,
        stored=agreement(f"the cache ({plan.codec})", live, stored),
        yardstick=agreement(f"itself, {sizes[1]} window(s) at a time", live, again),
    )


def check_teacher(cache: Cache) -> None:
    """Raise CacheError, naming the files, unless the teacher's weights are those the cache was made from."""
    config = from_dict(cache.manifest.config)
    now = models.weights_fingerprint(config.teacher.model, config.teacher.revision)["files"]
    then = cache.plan.fingerprint.fields
    lines = [
        f"teacher.{name}: {stored[:12]}… in the cache, {sha[:12]}… now"
        for name, sha in now.items()
        if (stored := then.get(f"teacher.{name}.sha256", "absent")) != sha
    ]
    if lines:
        raise CacheError(
            f"cache {cache.name}: {config.teacher.model} is not the teacher it was captured from:\n  "
            + "\n  ".join(lines)
            + "\nCompare with the revision it was captured from, or capture again under another name."
        )


def _live(model: Any, head: Head, cache: Cache, rows: dict[str, Any], batch_windows: int, say: Callable[[str], None]) -> SparseRows:
    parts = []
    for first in range(0, len(rows["input_ids"]), batch_windows):
        say(f"the teacher reads, {batch_windows} window(s) at a time: {first} of {len(rows['input_ids'])}")
        part = [torch.from_numpy(rows[name][first : first + batch_windows]) for name in ("input_ids", "position_ids", "targets")]
        plan = cache.plan
        parts.append(
            read_batch(model, head, *part, packing=plan.packing, top_k=plan.num_ranked, vocab_size=plan.vocab_size, chunk_tokens=512)
        )
    names = [field.name for field in dataclasses.fields(SparseRows) if field.name != "hidden"]  # states are not compared
    return SparseRows(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _stored(cache: Cache, rows: dict[str, Any]) -> SparseRows:
    """What the cache holds of the same positions; it speaks of T = 1 only here."""
    targets = rows["targets"]
    tail_R1 = torch.from_numpy(rows["teacher_tail"][targets])[:, None].expand(-1, AT_ONE + 1)
    ids_RK, logprobs_RK = (torch.from_numpy(rows[name][targets]) for name in ("teacher_ids", "teacher_logprobs"))
    gold_R = torch.from_numpy(rows["gold_logprob"][targets])
    return SparseRows(ids_RK, logprobs_RK, tail_R1, torch.zeros_like(tail_R1), gold_R, torch.zeros_like(gold_R))


def agreement(who: str, one: SparseRows, other: SparseRows) -> Agreement:
    """How close the second is to the first."""
    p_RK, q_RK = one.logprobs_RK.double().numpy(), other.logprobs_RK.double().numpy()
    places_RK, is_shared_RK = _places(one.ids_RK, other.ids_RK)
    _, is_in_one_RK = _places(other.ids_RK, one.ids_RK)
    q_at_p_RK = np.take_along_axis(q_RK, places_RK, -1)
    tail_R, other_tail_R = (side.tail_RA[:, AT_ONE].double().numpy() for side in (one, other))
    rest_R = log_partition(np.where(is_shared_RK, -np.inf, p_RK), tail_R, 1.0)
    other_rest_R = log_partition(np.where(is_in_one_RK, -np.inf, q_RK), other_tail_R, 1.0)
    has_tail_R = np.isfinite(tail_R) & np.isfinite(other_tail_R)
    return Agreement(
        who=who,
        top1_agreement=float((one.ids_RK[:, 0] == other.ids_RK[:, 0]).double().mean()),
        same_entries=float(is_shared_RK.mean()),
        kl=float(_bucket_kl(p_RK, q_at_p_RK, is_shared_RK, rest_R, other_rest_R).mean()),
        logprob_error=float(np.abs(p_RK - q_at_p_RK)[is_shared_RK].mean()),
        tail_error=float(np.abs(tail_R[has_tail_R] - other_tail_R[has_tail_R]).sum() / max(1, len(tail_R))),
        gold_error=float((one.gold_logprob_R - other.gold_logprob_R).abs().mean()),
    )


def _places(ids_RK: torch.Tensor, other_ids_RK: torch.Tensor) -> tuple[Any, Any]:
    """(where each id stands among the other's [R, K], whether it is there at all [R, K])."""
    sorted_RK, order_RK = other_ids_RK.sort(1)
    slots_RK = torch.searchsorted(sorted_RK, ids_RK.contiguous()).clamp(max=ids_RK.shape[1] - 1)
    return order_RK.gather(1, slots_RK).numpy(), (sorted_RK.gather(1, slots_RK) == ids_RK).numpy()


def _bucket_kl(p_RK: Any, q_RK: Any, is_shared_RK: Any, rest_R: Any, other_rest_R: Any) -> Any:
    """KL over the shared entries and one bucket for all the rest of either side, both normalised."""
    shared_p, shared_q = (np.where(is_shared_RK, side, -np.inf) for side in (p_RK, q_RK))
    norm_p, norm_q = log_partition(shared_p, rest_R, 1.0), log_partition(shared_q, other_rest_R, 1.0)
    log_ratio = np.where(is_shared_RK, p_RK - q_RK, 0.0) - (norm_p - norm_q)[:, None]
    inside = (np.exp(shared_p - norm_p[:, None]) * log_ratio).sum(1)
    has_rest = np.isfinite(rest_R) & np.isfinite(other_rest_R)
    rest_ratio = np.subtract(rest_R, other_rest_R, out=np.zeros_like(rest_R), where=has_rest) - norm_p + norm_q
    return inside + np.exp(rest_R - norm_p) * rest_ratio
