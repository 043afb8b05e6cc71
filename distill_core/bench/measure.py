"""How the loss benchmark measures: time in turns with the bare products, memory of one call."""

# N: tokens   V: vocabulary   D: hidden size   C: tokens of one chunk
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

import torch

from ..device import MemoryMeter, can_reset_peak, pick_device
from ..losses import IGNORE_INDEX, Workspace, default_chunk_tokens
from .cases import Candidate, Case, Shape, candidates, speed_case


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
    """Forward and backward, on the same memory for every candidate of its type; into fresh gradients, unless it keeps them."""
    labels_N = case.labels_N.clone()
    labels_N[: int(labels_N.shape[0] * candidate.share_ignored)] = IGNORE_INDEX
    hidden_ND = case.hidden_ND.detach().to(candidate.dtype or case.hidden_ND.dtype).requires_grad_()
    lm_head_VD = case.lm_head_VD.detach().to(candidate.dtype or case.lm_head_VD.dtype).requires_grad_(not candidate.is_head_frozen)
    own = replace(case, hidden_ND=hidden_ND, lm_head_VD=lm_head_VD, labels_N=labels_N, workspace=Workspace())

    def call() -> None:
        hidden_ND.grad = None
        if not candidate.keeps_gradients:
            lm_head_VD.grad = None
        candidate.run(own, None).backward()

    return call


def seconds_of(call: Callable[[], None], device: torch.device) -> float:
    """CPU time of this process, or on a GPU the time between two events on it."""
    if device.type != "cuda":
        start = time.process_time()
        call()
        return time.process_time() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def time_in_turns(case: Case, chosen: list[Candidate], repeats: int) -> tuple[float, list[float]]:
    """Median seconds of the floor and of each candidate; every round takes each once, the first round is not counted."""
    device = case.hidden_ND.device
    calls = [floor_call(case), *(training_call(candidate, case) for candidate in chosen)]
    rounds = [[seconds_of(call, device) for call in calls] for _ in range(repeats + 1)][1:]
    floor_s, *medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return floor_s, medians


def peak_bytes_of(index: int, shape: Shape, top_k: int, threads: int, device_name: str, dtype: torch.dtype) -> int:
    """What one call adds at its peak, fresh gradients included. On a CPU: meant for a process that has done nothing else."""
    if device_name == "cpu":
        torch.set_num_threads(threads)
    device, candidate = pick_device(device_name), candidates(pick_device(device_name).type)[index]
    training_call(candidate, speed_case(Shape(8, 2 * top_k, 16), top_k, device, dtype))()  # libraries load what they need
    call = training_call(candidate, speed_case(shape, top_k, device, dtype))
    meter = MemoryMeter(device)
    meter.reset_peak()
    before = meter.now_bytes()
    call()
    return meter.peak_bytes() - before


def measure_peaks(
    indices: list[int], shape: Shape, top_k: int, threads: int, device_name: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[int | None]:
    """On a CPU each in a process forked from one that has only imported this module; None where the system keeps no peak."""
    if device_name != "cpu":
        return [peak_bytes_of(index, shape, top_k, threads, device_name, dtype) for index in indices]
    if sys.platform != "linux" or not can_reset_peak():
        return [None] * len(indices)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return [pool.submit(peak_bytes_of, index, shape, top_k, threads, device_name, dtype).result() for index in indices]


def device_name_of(device: torch.device) -> str:
    """What the system calls the processor that was measured."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
