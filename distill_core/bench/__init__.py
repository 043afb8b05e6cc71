"""`distill bench loss`: time, memory and error of the loss's implementations, beside what one would otherwise write.

Time is CPU time of forward and backward, as a ratio to the floor: the three bare matrix products of the same shape (logits,
gradient of the hidden states, gradient of the head), taken in turns with it so that a busy machine slows both. Memory is
what one call adds at its peak, gradients included, in a process of its own. Error is against float64 on targets close to the
student's own, where it is largest. An implementation that is further from float64 than plain dense code gets no speed.
"""

# N: tokens   V: vocabulary   D: hidden size   C: tokens of one chunk
import json
import multiprocessing
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..device import MemoryMeter, can_reset_peak, pick_device
from ..losses import IGNORE_INDEX, default_chunk_tokens
from .cases import Candidate, Case, Shape, candidates, check_case, errors, speed_case

DEFAULT_SHAPES = (Shape(512, 8192, 256), Shape(512, 32000, 256))
"""Half a minute on one thread of an AMD EPYC."""
FULL_SHAPES = (Shape(2048, 32000, 512), Shape(2048, 151936, 1024), Shape(512, 262144, 640))
"""Heads of the size of Llama's, Qwen's and Gemma's. The dense code beside ours wants about 12 GiB, by arithmetic, and most of the time."""


def floor_call(case: Case) -> Callable[[], None]:
    """The three products alone, in the chunks that the loss would use, into buffers that are already there."""
    hidden_ND, lm_head_VD = case.hidden_ND.detach(), case.lm_head_VD.detach()
    chunk = min(default_chunk_tokens(lm_head_VD.shape[0], hidden_ND.device), hidden_ND.shape[0])
    logits_CV = hidden_ND.new_zeros(chunk, lm_head_VD.shape[0])
    hidden_grad_ND, head_grad_VD = torch.zeros_like(hidden_ND), torch.zeros_like(lm_head_VD)

    def call() -> None:
        for start in range(0, hidden_ND.shape[0], chunk):
            rows_CD = hidden_ND[start : start + chunk]
            part_CV = logits_CV[: rows_CD.shape[0]]
            torch.mm(rows_CD, lm_head_VD.T, out=part_CV)
            torch.mm(part_CV, lm_head_VD, out=hidden_grad_ND[start : start + chunk])
            head_grad_VD.addmm_(part_CV.T, rows_CD)

    return call


def training_call(candidate: Candidate, case: Case) -> Callable[[], None]:
    """Forward and backward, into fresh gradients, on the same memory for every candidate."""
    labels_N = case.labels_N.clone()
    labels_N[: int(labels_N.shape[0] * candidate.share_ignored)] = IGNORE_INDEX
    hidden_ND = case.hidden_ND.detach().requires_grad_()
    lm_head_VD = case.lm_head_VD.detach().requires_grad_(not candidate.is_head_frozen)
    own = replace(case, hidden_ND=hidden_ND, lm_head_VD=lm_head_VD, labels_N=labels_N)

    def call() -> None:
        hidden_ND.grad = lm_head_VD.grad = None
        candidate.run(own, None).backward()

    return call


def cpu_seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def time_in_turns(shape: Shape, top_k: int, chosen: list[Candidate], repeats: int) -> tuple[float, list[float]]:
    """Median CPU seconds of the floor and of each candidate; every round takes each once, the first round is not counted."""
    case = speed_case(shape, top_k)
    calls = [floor_call(case), *(training_call(candidate, case) for candidate in chosen)]
    rounds = [[cpu_seconds(call) for call in calls] for _ in range(repeats + 1)][1:]
    floor_s, *medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return floor_s, medians


def peak_bytes_of(index: int, shape: Shape, top_k: int, threads: int) -> int:
    """What one call adds to this process at its peak, gradients included. Meant for a process that has done nothing else."""
    torch.set_num_threads(threads)
    candidate = candidates()[index]
    training_call(candidate, speed_case(Shape(8, 2 * top_k, 16), top_k))()  # libraries load what they need
    call = training_call(candidate, speed_case(shape, top_k))
    meter = MemoryMeter(pick_device("cpu"))
    meter.reset_peak()
    before = meter.now_bytes()
    call()
    return meter.peak_bytes() - before


def measure_peaks(indices: list[int], shape: Shape, top_k: int, threads: int) -> list[int | None]:
    """Each in a process forked from one that has only imported this module; None where the system keeps no peak."""
    if sys.platform != "linux" or not can_reset_peak():
        return [None] * len(indices)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return [pool.submit(peak_bytes_of, index, shape, top_k, threads).result() for index in indices]


def bench_loss(
    shapes: tuple[Shape, ...] = DEFAULT_SHAPES,
    *,
    threads: int = 1,
    repeats: int = 3,
    top_k: int = 100,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for each shape and implementation, the floor's first; see the module's docstring for what is measured.

    Times in CPU seconds, memory in bytes; `median_s` and `ratio_to_floor` are None for an implementation that fails the error check.
    """
    say = progress or (lambda _: None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [row for shape in shapes for row in _bench_shape(Shape(*shape), threads, repeats, top_k, say)]
    finally:
        torch.set_num_threads(before)


def _bench_shape(shape: Shape, threads: int, repeats: int, top_k: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    everyone = candidates()
    words = f"{shape.num_tokens} tokens, vocabulary {shape.vocab_size:,}, hidden {shape.hidden_size}"
    say(f"{words}: error against float64")
    case = check_case(shape, top_k)
    checked = [errors(candidate, case) for candidate in everyone]
    del case
    right = [index for index, (_, is_right) in enumerate(checked) if is_right]
    say(f"{words}: memory")
    peaks = dict(zip(right, measure_peaks(right, shape, top_k, threads), strict=True))
    say(f"{words}: time")
    floor_s, medians = time_in_turns(shape, top_k, [everyone[index] for index in right], repeats)
    times = dict(zip(right, medians, strict=True))
    common = {**shape._asdict(), "top_k": top_k, "num_threads": threads, "device": cpu_name(), "torch": torch.__version__}
    rows: list[dict[str, Any]] = [{"implementation": FLOOR, "tail": None, "median_s": floor_s, "ratio_to_floor": 1.0, **common}]
    for index, (candidate, (found, is_right)) in enumerate(zip(everyone, checked, strict=True)):
        seconds = times.get(index)
        rows.append(
            {
                "implementation": candidate.name,
                "tail": candidate.tail,
                "is_right": is_right,
                "median_s": seconds,
                "ratio_to_floor": None if seconds is None else seconds / floor_s,
                "peak_bytes": peaks.get(index),
                "loss_error": found[0],
                "hidden_grad_error": found[1],
                "head_grad_error": None if candidate.is_head_frozen else found[2],
                **common,
            }
        )
    return rows


FLOOR = "three bare matrix products"
TABLE_HEAD = (
    f"  {'implementation':<27}{'tail':<13}{'CPU time':>10}{'/ floor':>9}{'peak':>11}{'error: loss':>13}{'d hidden':>10}{'d head':>10}"
)
TABLE_HEAD = (
    f"  {'implementation':<27}{'tail':<13}{'CPU time':>10}{'/ floor':>9}{'peak':>11}{'error: loss':>13}{'d hidden':>10}{'d head':>10}"
)


def bench_table(rows: list[dict[str, Any]]) -> str:
    """The rows as plain text, one block to a shape."""
    lines: list[str] = []
    for shape in dict.fromkeys((row["num_tokens"], row["vocab_size"], row["hidden_size"]) for row in rows):
        block = [row for row in rows if (row["num_tokens"], row["vocab_size"], row["hidden_size"]) == shape]
        first = block[0]
        lines.append(
            f"{shape[0]} tokens, vocabulary {shape[1]:,}, hidden {shape[2]}, top {first['top_k']}, {first['num_threads']} thread(s)"
        )
        lines.append(TABLE_HEAD)
        lines.extend(_table_line(row) for row in block)
        lines.append("")
    lines.append(f"{rows[0]['device']}, torch {rows[0]['torch']}. Errors are relative, against float64. Peak includes the gradients.")
    return "\n".join(lines)


def _table_line(row: dict[str, Any]) -> str:
    def error(name: str) -> str:
        return "-" if row.get(name) is None else f"{row[name]:.0e}"

    took = "wrong" if row["median_s"] is None else f"{row['median_s'] * 1000:.0f} ms"
    ratio = "" if row["ratio_to_floor"] is None else f"{row['ratio_to_floor']:.2f}"
    peak = "-" if row.get("peak_bytes") is None else f"{row['peak_bytes'] / 2**20:.0f} MiB"
    names = f"  {row['implementation']:<27}{row['tail'] or '-':<13}"
    return f"{names}{took:>10}{ratio:>9}{peak:>11}{error('loss_error'):>13}{error('hidden_grad_error'):>10}{error('head_grad_error'):>10}"


def cpu_name() -> str:
    """What the system calls the processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def json_lines(rows: list[dict[str, Any]]) -> str:
    """One JSON object to a line, for machines."""
    return "\n".join(json.dumps(row) for row in rows)
