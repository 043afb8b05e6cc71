"""How the entries of a position are stored: `exact` for browsing, `packed` for two thirds of the disk; one shape when read.

exact   teacher_ids Array(UInt32, (P, K)), teacher_logprobs Array(Float16, (P, K)): plain columns for Polars and SQL.
        Log-probabilities fall, equal ones by rising id; the top-1 is entry 0.
packed  Per position the ids sorted, as differences, in byte planes (all low bytes of a window, then all second ones, …), which zstd
        shrinks best; beside each its gap to the top-1 as a step s of 255, gap = range * s (s + 255) / (2 * 255²): steps near the top-1
        are a third as wide as those at the end, which halves the largest storage error of even steps; the row's top-1 log-probability and
        range; and the top-1's slot, because several entries may share gap 0. Positions without a target hold zeros.
        The top-1 number is chosen so that the kept mass at T = 1 is exact whatever the rounding of the gaps.

Sizes, speed and error, measured: README, "Cache"; again with: python -m distill_core bench cache
"""
# n: windows   P: positions   K: entries   R: positions that carry a distribution

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..config import Codec
from ..errors import CacheError

EMPTY_ID = 0xFFFFFFFF
"""Stands where an entry is absent; its log-probability is -inf. Never a token: no vocabulary is that large."""
STEPS = 255
COLUMNS_OF: dict[str, tuple[str, ...]] = {
    "exact": ("teacher_ids", "teacher_logprobs"),
    "packed": ("teacher_id_planes", "teacher_gap_steps", "teacher_top1_slot", "teacher_top1_logprob", "teacher_gap_range"),
}

Entries = tuple[NDArray[np.uint32], NDArray[Any]]


def encode(codec: Codec, ids_nPK: NDArray[np.uint32], logprobs_nPK: NDArray[np.float32], *, vocab_size: int) -> dict[str, pl.Series]:
    """The columns that hold these entries. Log-probabilities fall within a position; a position is full or empty.

    Raises CacheError where 'packed' meets an entry of probability 0, which has no gap.
    """
    if codec == "exact":
        return {"teacher_ids": pl.Series(ids_nPK), "teacher_logprobs": pl.Series(logprobs_nPK.astype(np.float16))}
    is_full_nP = ids_nPK[..., 0] != EMPTY_ID
    ids_RK, logprobs_RK = ids_nPK[is_full_nP], logprobs_nPK[is_full_nP]
    if not np.isfinite(logprobs_RK).all():
        raise CacheError(
            "the teacher gives some of its top tokens probability 0, which codec 'packed' cannot hold. "
            "Use --capture.codec exact, or a smaller --capture.top_k."
        )
    order_RK = np.argsort(ids_RK, axis=-1)
    sorted_RK = np.take_along_axis(ids_RK, order_RK, -1)
    gaps_RK = np.take_along_axis(logprobs_RK[:, :1] - logprobs_RK, order_RK, -1)
    range_R = gaps_RK.max(-1, initial=0.0).astype(np.float16)
    range_R = np.where(range_R < gaps_RK.max(-1, initial=0.0), np.nextafter(range_R, np.float16(np.inf)), range_R)
    range_R1 = range_R.astype(np.float32)[:, None]
    share_RK = np.divide(gaps_RK, range_R1, out=np.zeros_like(gaps_RK), where=range_R1 > 0)
    steps_RK = np.rint((np.sqrt(1 + 8 * share_RK) - 1) * (STEPS / 2)).astype(np.uint8)
    mass_R = np.exp(logprobs_RK.astype(np.float64)).sum(-1)
    top1_R = (np.log(mass_R) - np.log(np.exp(-_gaps(steps_RK, range_R1)).sum(-1))).astype(np.float32)
    planes = _spread(_planes(np.diff(sorted_RK, axis=-1, prepend=np.uint32(0)), vocab_size), is_full_nP)
    slot_R = (order_RK == 0).argmax(-1).astype(np.uint16)
    return {
        "teacher_id_planes": blobs(np.moveaxis(planes, 2, 1)),
        "teacher_gap_steps": blobs(_spread(steps_RK, is_full_nP)),
        "teacher_top1_slot": blobs(_spread(slot_R if ids_nPK.shape[-1] > 256 else slot_R.astype(np.uint8), is_full_nP)),
        "teacher_top1_logprob": pl.Series(_spread(top1_R, is_full_nP)),
        "teacher_gap_range": pl.Series(_spread(range_R, is_full_nP)),
    }


def decode(codec: Codec, columns: dict[str, NDArray], targets_nP: NDArray[np.bool_], *, top_k: int, vocab_size: int) -> Entries:
    """(ids [n, P, K] uint32, logprobs [n, P, K]) as they were: falling, the top-1 first; equal gaps of `packed` by rising id."""
    if codec == "exact":
        return columns["teacher_ids"], columns["teacher_logprobs"]
    shape = (*targets_nP.shape, top_k)
    num_planes = plane_count(vocab_size)
    planes = _bytes(columns["teacher_id_planes"]).reshape(shape[0], num_planes, shape[1], top_k)
    ids_nPK = np.zeros(shape, np.uint32)
    for plane in range(num_planes):
        ids_nPK |= planes[:, plane].astype(np.uint32) << np.uint32(8 * plane)
    np.cumsum(ids_nPK, axis=-1, dtype=np.uint32, out=ids_nPK)
    steps_nPK = _bytes(columns["teacher_gap_steps"]).reshape(shape)
    slots_nP = _bytes(columns["teacher_top1_slot"]).view(np.uint16 if top_k > 256 else np.uint8).reshape(shape[:2])
    order_nPK, steps_nPK = _falling(steps_nPK, slots_nP)
    first_of_row = np.arange(0, ids_nPK.size, top_k).reshape(*shape[:2], 1)
    ids_nPK = ids_nPK.reshape(-1).take(order_nPK + first_of_row)  # a third of take_along_axis's time
    logprobs_nPK = columns["teacher_top1_logprob"][..., None] - _gaps(steps_nPK, columns["teacher_gap_range"].astype(np.float32)[..., None])
    ids_nPK[~targets_nP] = EMPTY_ID
    logprobs_nPK[~targets_nP] = -np.inf
    return ids_nPK, logprobs_nPK


def _gaps(steps: NDArray, gap_range: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a step stands for, in nats; `steps` of any integer type, [..., K]; `gap_range` [..., 1]."""
    gaps = steps.astype(np.float32)
    gaps *= gaps + STEPS
    gaps *= gap_range / (2 * STEPS**2)
    return gaps


def plane_count(vocab_size: int) -> int:
    """Bytes that the largest id needs."""
    return max(1, (int(vocab_size - 1).bit_length() + 7) // 8)


def _falling(steps_nPK: NDArray[np.uint8], slots_nP: NDArray) -> tuple[NDArray, NDArray]:
    """(slots in falling order of log-probability, their steps): one sort of small integers, gap above, slot below."""
    top_k = steps_nPK.shape[-1]
    num_slots = 1 << max(1, (top_k - 1).bit_length())
    kind: Any = np.uint16 if num_slots <= 256 else np.uint32
    keys_nPK = steps_nPK.astype(kind) * kind(num_slots) + np.arange(top_k, dtype=kind)
    np.put_along_axis(keys_nPK, slots_nP[..., None].astype(np.int64), 0, -1)
    keys_nPK.sort(axis=-1)
    order_nPK = (keys_nPK % kind(num_slots)).astype(np.int64)
    order_nPK[..., 0] = slots_nP
    return order_nPK, keys_nPK // kind(num_slots)


def _planes(numbers_RK: NDArray[np.uint32], vocab_size: int) -> NDArray[np.uint8]:
    """The low byte of every number, then the second, …: [R, planes, K]."""
    as_bytes = np.ascontiguousarray(numbers_RK.astype("<u4")).view(np.uint8).reshape(*numbers_RK.shape, 4)
    return np.moveaxis(as_bytes[..., : plane_count(vocab_size)], -1, 1)


def _spread(rows: NDArray, is_full_nP: NDArray[np.bool_]) -> NDArray:
    full = np.zeros((*is_full_nP.shape, *rows.shape[1:]), rows.dtype)
    full[is_full_nP] = rows
    return full


def blobs(rows: NDArray) -> pl.Series:
    """One blob of bytes to a window."""
    return pl.Series([np.ascontiguousarray(row).tobytes() for row in rows], dtype=pl.Binary)


def _bytes(blobs: NDArray) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(blobs), np.uint8)
