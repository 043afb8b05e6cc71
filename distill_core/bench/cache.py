"""`distill bench cache`: what a cache costs, how fast it is, and how far from the teacher, on a real teacher's distributions.

Temperature: error of kept mass and of the log-partition against the whole vocabulary in float64, and the width of the error bar.
Storage: bytes a token by codec and K, with ids scaled to a vocabulary of 151,936; KL from what the teacher said to what is read.
Capture: time of a capture, writing included, over the teacher's bare forward pass, window by window in turns.
Speed: CPU time of writing and of reading in training's order, wall time of 25 random windows, and the reader's peak memory, in a
process of its own, on a cache and on one ten times as long.
"""
# R: positions   K: entries   n: windows   L: tokens in a window   P = L - 1   t: asked temperatures

import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..cache import CacheWriter, Fingerprint, Plan, ShardColumns, ShardPlan, open_cache, reader
from ..cache.codecs import decode, encode
from ..cache.manifest import Teacher
from ..cache.shards import parquet, to_numpy
from ..cache.tail import AT_ONE, cut_to, kept_mass, log_partition, tail_at, tail_bracket
from ..config import Codec, DistillConfig
from ..device import MemoryMeter, can_reset_peak, pick_device
from ..paths import publish
from .positions import TEMPERATURES, Positions, read_positions, stretched

VOCAB_SIZE = 151_936
TOP_KS = (100, 50, 20)
WINDOW_TOKENS = 256
SHARD_WINDOWS = 128
NUM_SHARDS = 20
NUM_RANDOM_WINDOWS = 25
READER_BUDGET_BYTES = 16 * 1024**2
"""Less than the shorter of the two caches takes when decoded, so that the longer one would show in memory."""

Row = dict[str, Any]


def bench_cache(config: DistillConfig, *, threads: int = 1, progress: Callable[[str], None] | None = None) -> dict[str, list[Row]]:
    """{'temperature', 'storage', 'capture': rows}; see the module's docstring. Nats, bytes, seconds. `threads`: the teacher's."""
    say = progress or (lambda _: None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        positions = read_positions(config, top_k=max(TOP_KS), progress=say)
    finally:
        torch.set_num_threads(before)
    say("temperature")
    rows: dict[str, list[Row]] = {"temperature": temperature_rows(positions), "storage": []}
    for codec in get_args(Codec):
        for top_k in TOP_KS:
            if top_k <= positions.ids_RK.shape[1]:
                say(f"{codec}, K = {top_k}")
                rows["storage"].append(storage_row(positions, codec, top_k) | speed_row(positions, codec, top_k))
    rows["capture"] = [capture_row(positions, row) for row in rows["storage"] if "write_ktok_per_s" in row][:1]
    return rows


def capture_row(positions: Positions, storage: Row) -> Row:
    """What a capture costs over the teacher's bare forward pass, writing in that codec included."""
    written_s = 1e-3 / storage["write_ktok_per_s"]
    whole_s = positions.capture_s + written_s
    return {
        "codec": storage["codec"],
        "top_k": storage["top_k"],
        "forward_tokens_per_s": 1 / positions.forward_s,
        "capture_tokens_per_s": 1 / whole_s,
        "overhead": whole_s / positions.forward_s - 1,
    }


def temperature_rows(positions: Positions) -> list[Row]:
    """One row for each of TEMPERATURES, from what a cache would store."""
    rows = []
    for column, temperature in enumerate(TEMPERATURES):
        true_N = positions.true_partition_Rt[:, column]
        true_mass_N = -np.expm1(positions.true_tail_Rt[:, column] - true_N)
        tail_N = tail_at(positions.tail_RA, positions.tail_mean_RA, temperature)
        low_N, high_N = tail_bracket(positions.tail_RA, positions.tail_mean_RA, temperature)
        outside_N = (low_N > positions.true_tail_Rt[:, column]) | (high_N < positions.true_tail_Rt[:, column])
        partition_N, low_partition_N, high_partition_N = (
            log_partition(positions.logprobs_RK, some_N, temperature) for some_N in (tail_N, low_N, high_N)
        )
        error_N = np.abs(partition_N - true_N)
        rows.append(
            {
                "temperature": temperature,
                "kept_mass": float(true_mass_N.mean()),
                "kept_mass_error": float(np.abs(kept_mass(positions.logprobs_RK, tail_N, temperature) - true_mass_N).mean()),
                "log_partition_error": float(error_N.mean()),
                "log_partition_error_max": float(error_N.max()),
                "error_bar": float((high_partition_N - low_partition_N).mean()),
                "share_outside_error_bar": float(outside_N.mean()),
                "num_positions": len(true_N),
            }
        )
    return rows


def storage_row(positions: Positions, codec: Codec, top_k: int) -> Row:
    """Bytes a position of whole shards and of the entries alone, on rows that never repeat, and the KL of storing them."""
    num_windows = len(positions.ids_RK) // (WINDOW_TOKENS - 1)
    columns = made_columns(positions, num_windows, top_k)
    num_positions = columns.targets_nP.size
    encoded = encode(codec, columns.teacher_ids_nPK, columns.teacher_logprobs_nPK, vocab_size=VOCAB_SIZE)
    arrays = {name: to_numpy(series) for name, series in encoded.items()}
    ids, logprobs = decode(codec, arrays, columns.targets_nP, top_k=top_k, vocab_size=VOCAB_SIZE)
    true = _by_id(columns.teacher_ids_nPK, columns.teacher_logprobs_nPK)
    stored = _by_id(ids, logprobs)
    tail = cut_to(positions.logprobs_RK, positions.tail_RA[:, AT_ONE], 1.0, top_k=top_k)[1][:num_positions].reshape(true.shape[:2])
    kl = (np.exp(true) * (true - stored)).sum(-1) + log_partition(stored, tail, 1.0) - log_partition(true, tail, 1.0)
    return {
        "codec": codec,
        "top_k": top_k,
        "entry_bytes": len(parquet(encoded, WINDOW_TOKENS)) / num_positions,
        "total_bytes": len(parquet(columns.series(codec, vocab_size=VOCAB_SIZE), WINDOW_TOKENS)) / num_positions,
        "storage_kl": float(kl.mean()),
        "storage_kl_p99": float(np.quantile(kl, 0.99)),
        "num_positions": num_positions,
    }


def _by_id(ids: NDArray[np.uint32], logprobs: NDArray[Any]) -> NDArray[Any]:
    return np.take_along_axis(logprobs.astype(np.float64), np.argsort(ids, -1), -1)


def made_columns(positions: Positions, num_windows: int, top_k: int, *, first: int = 0) -> ShardColumns:
    """A shard whose every position is a target, with the teacher's rows in it."""
    shape = (num_windows, WINDOW_TOKENS - 1)
    count = shape[0] * shape[1]
    ids, logprobs = stretched(positions, vocab_size=VOCAB_SIZE, num_positions=count, seed=first)
    rows = np.arange(count) % len(positions.ids_RK)
    dice = np.random.default_rng(first)
    input_ids = np.concatenate([ids[:num_windows, :1], ids[:, 0].reshape(shape)], axis=1)
    return ShardColumns(
        window_ids_n=np.arange(first, first + num_windows, dtype=np.uint64),
        input_ids_nL=input_ids,
        doc_lens=[[WINDOW_TOKENS]] * num_windows,
        token_bytes_nL=dice.integers(1, 9, input_ids.shape).astype(np.uint16),
        targets_nP=np.ones(shape, bool),
        teacher_ids_nPK=ids[:, :top_k].reshape(*shape, top_k),
        teacher_logprobs_nPK=logprobs[:, :top_k].reshape(*shape, top_k),
        tail_logsumexp_nPA=positions.tail_RA[rows].reshape(*shape, -1),
        tail_mean_logprob_nPA=positions.tail_mean_RA[rows].reshape(*shape, -1),
        gold_logprob_nP=logprobs[:, 0].reshape(shape),
        teacher_entropy_nP=(-positions.tail_RA[rows, AT_ONE]).astype(np.float16).reshape(shape),
    )


def speed_row(positions: Positions, codec: Codec, top_k: int) -> Row:
    """Thousands of tokens a CPU second, written and read; milliseconds for a random window; the reader's peak in MiB, short and long."""
    with tempfile.TemporaryDirectory() as place:
        short, long = Path(place) / "short", Path(place) / "long"
        written_s = write_cache(short, positions, codec, top_k, num_shards=NUM_SHARDS // 10, copy_of=None)
        write_cache(long, positions, codec, top_k, num_shards=NUM_SHARDS, copy_of=short)
        num_tokens = NUM_SHARDS // 10 * SHARD_WINDOWS * WINDOW_TOKENS
        return {
            "write_ktok_per_s": num_tokens / written_s / 1e3,
            "read_ktok_per_s": statistics.median(num_tokens / read_in_order(short) / 1e3 for _ in range(3)),
            "random_window_ms": random_window_s(long) * 1e3,
            "reader_peak_mib": peak_mib_of_reading(short),
            "reader_peak_mib_10x": peak_mib_of_reading(long),
        }


def write_cache(folder: Path, positions: Positions, codec: Codec, top_k: int, *, num_shards: int, copy_of: Path | None) -> float:
    """A cache in that folder; returns the CPU seconds of writing. `copy_of`: take its shards in turn instead of making others."""
    shards = tuple(
        ShardPlan(name=f"train-{i:05d}", split="train", first_window=i * SHARD_WINDOWS, num_windows=SHARD_WINDOWS)
        for i in range(num_shards)
    )
    plan = Plan(
        fingerprint=Fingerprint(fields={}),
        top_k=top_k,
        vocab_size=VOCAB_SIZE,
        window_tokens=WINDOW_TOKENS,
        packing=True,
        codec=codec,
        shards=shards,
    )
    teacher = Teacher(model="benchmark", architecture="none", num_parameters=0, disk_bytes=0, dtype="float32")
    seconds = 0.0
    with CacheWriter(folder, plan) as writer:
        for shard in writer.missing():
            if copy_of is None:
                columns = made_columns(positions, SHARD_WINDOWS, top_k, first=shard.first_window)
                began = time.process_time()
                writer.write(shard, columns)
                seconds += time.process_time() - began
            else:
                entry = open_cache(copy_of).manifest.entries[int(shard.name[-5:]) % (NUM_SHARDS // 10)]
                shutil.copy(copy_of / "shards" / f"{entry.name}.parquet", writer.shard_path(shard.name))
                publish(
                    folder / "manifest.d" / f"{shard.name}.json",
                    entry.model_copy(update={"name": shard.name, "plan_sha256": plan.sha256()}).to_json(),
                )
        writer.finish(teacher=teacher, config={}, text={}, versions={})
    return seconds


def read_in_order(folder: Path) -> float:
    """CPU seconds of reading a whole cache as training does."""
    began = time.process_time()
    cache = open_cache(folder)
    order = cache.order("train", seed=0, epoch=0)
    for first in range(0, len(order), 8):
        cache.rows("train", order[first : first + 8], temperature=1.5)
    return time.process_time() - began


def random_window_s(folder: Path) -> float:
    """Median wall seconds of one window from nowhere near the last one."""
    cache = open_cache(folder)
    cache.rows("train", [0])
    picked = np.random.default_rng(0).choice(cache.num_windows("train"), NUM_RANDOM_WINDOWS, replace=False)
    times = []
    for window in picked:
        began = time.perf_counter()
        cache.rows("train", [int(window)])
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def peak_mib_of_reading(folder: Path) -> float | None:
    """Most memory that reading the cache from its first window to its last adds to a fresh process; None where the system keeps no peak."""
    if not can_reset_peak():
        return None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak_mib_here, folder).result()


def _peak_mib_here(folder: Path) -> float:
    reader.MEMORY_BUDGET_BYTES = READER_BUDGET_BYTES
    cache = open_cache(folder)
    cache.rows("train", [0])
    meter = MemoryMeter(pick_device("cpu"))
    meter.reset_peak()
    before = meter.now_bytes()
    for first in range(0, cache.num_windows("train"), 8):
        cache.rows("train", list(range(first, first + 8)))
    return (meter.peak_bytes() - before) / 2**20


def cache_table(rows: dict[str, list[Row]]) -> str:
    """The rows as plain text, one block for temperature, one for storage and speed."""
    first = rows["temperature"][0]
    lines = [
        f"Temperature, {first['num_positions']:,} positions. Errors against the whole vocabulary in float64; logs in nats.",
        f"  {'T':>5}{'kept mass':>11}{'error':>10}{'log-partition error':>21}{'largest':>10}{'error bar':>11}{'outside it':>12}",
    ]
    for row in rows["temperature"]:
        lines.append(
            f"  {row['temperature']:>5g}{row['kept_mass']:>11.4f}{row['kept_mass_error']:>10.1e}{row['log_partition_error']:>21.1e}"
            f"{row['log_partition_error_max']:>10.1e}{row['error_bar']:>11.1e}{row['share_outside_error_bar']:>12.0%}"
        )
    lines += [
        "",
        f"Storage and speed, vocabulary {VOCAB_SIZE:,}, windows of {WINDOW_TOKENS} tokens. Bytes a position; "
        "thousands of tokens a CPU second.",
        f"  {'codec':<8}{'K':>4}{'entries':>9}{'all':>7}{'storage KL':>12}{'p99':>10}{'write':>8}{'read':>8}"
        f"{'random window':>15}{'reader peak':>13}{'10x longer':>12}",
    ]
    for row in rows["storage"]:
        peaks = [f"{row[name]:.0f} MiB" if row[name] is not None else "-" for name in ("reader_peak_mib", "reader_peak_mib_10x")]
        lines.append(
            f"  {row['codec']:<8}{row['top_k']:>4}{row['entry_bytes']:>9.0f}{row['total_bytes']:>7.0f}{row['storage_kl']:>12.1e}"
            f"{row['storage_kl_p99']:>10.1e}{row['write_ktok_per_s']:>8.0f}{row['read_ktok_per_s']:>8.0f}"
            f"{row['random_window_ms']:>12.1f} ms{peaks[0]:>13}{peaks[1]:>12}"
        )
    for row in rows["capture"]:
        lines += [
            "",
            f"Capture, {row['codec']}, K = {row['top_k']}: {row['capture_tokens_per_s']:,.0f} tokens a second, the bare forward pass "
            f"{row['forward_tokens_per_s']:,.0f}: {row['overhead']:+.1%} time.",
        ]
    return "\n".join(lines)
