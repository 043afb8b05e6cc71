"""How the loss benchmark measures: time in turns with the bare products, memory of one call."""

# N: tokens   V: vocabulary   D: hidden size   C: tokens of one chunk
import functools
import multiprocessing
import platform
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from .. import multipliers
from ..device import MemoryMeter, can_reset_peak, pick_device
from ..losses import IGNORE_INDEX, Workspace, default_chunk_tokens
from ..multipliers import is_onednn_faster
from ..remedies import is_out_of_memory
from .cases import Candidate, Case, Shape, speed_case


def floor_calls(case: Case) -> list[Callable[[], None]]:
    """The three products by the faster of torch's libraries here, then, where that is not torch's default, by the default one."""
    faster = case.hidden_ND.device.type == "cpu" and is_onednn_faster()
    return [floor_call(case, by_onednn=True), floor_call(case)] if faster else [floor_call(case)]


def floor_call(case: Case, *, by_onednn: bool = False) -> Callable[[], None]:
    """The three products alone, in the chunks that the loss would use, into buffers that are already there."""
    hidden_ND, lm_head_VD = case.hidden_ND.detach(), case.lm_head_VD.detach()
    chunk = min(default_chunk_tokens(lm_head_VD.shape[0], hidden_ND.device), hidden_ND.shape[0])
    logits_CV = hidden_ND.new_zeros(chunk, lm_head_VD.shape[0])
    hidden_grad_ND, head_grad_VD = torch.zeros_like(hidden_ND), torch.zeros_like(lm_head_VD)

    def call() -> None:
        with multipliers.by_onednn(is_on=by_onednn):
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
    own = replace(
        case,
        hidden_ND=hidden_ND,
        lm_head_VD=lm_head_VD,
        teacher_hidden_ND=case.teacher_hidden_ND.to(hidden_ND.dtype),
        labels_N=labels_N,
        workspace=Workspace(),
    )

    def call() -> None:
        candidate.run(own, None).backward()
        hidden_ND.grad = None  # at the end, so that the candidates of a table do not hold a head's gradient each
        if not candidate.keeps_gradients:
            lm_head_VD.grad = None

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


def time_in_turns(case: Case, chosen: list[Candidate], repeats: int) -> tuple[list[float], list[float]]:
    """Median seconds of `floor_calls` and of each candidate; every round takes each once, the first round is not counted."""
    device, floors = case.hidden_ND.device, floor_calls(case)
    calls = [*floors, *(training_call(candidate, case) for candidate in chosen)]
    rounds = [[seconds_of(call, device) for call in calls] for _ in range(repeats + 1)][1:]
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return medians[: len(floors)], medians[len(floors) :]


class Peak(NamedTuple):
    """What one call adds at its peak."""

    measured_bytes: int | None = None
    """None where the system keeps no peak, or where it does not fit."""
    fits: bool = True
    wanted_bytes: int | None = None
    """By arithmetic, where that can be told."""


def free_bytes(device: torch.device) -> int:
    """What can be had now without taking it from another process."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def peak_bytes_of(candidate: Candidate, shape: Shape, top_k: int, threads: int, device_name: str, dtype: torch.dtype) -> int:
    """What one call adds at its peak, fresh gradients included. On a CPU: meant for a process that has done nothing else."""
    if device_name == "cpu":
        torch.set_num_threads(threads)
    device = pick_device(device_name)
    training_call(candidate, speed_case(Shape(8, 2 * top_k, 16), top_k, device, dtype))()  # libraries load what they need
    call = training_call(candidate, speed_case(shape, top_k, device, dtype))
    meter = MemoryMeter(device)
    meter.reset_peak()
    before = meter.now_bytes()
    call()
    return meter.peak_bytes() - before


def measure_peaks(
    chosen: list[Candidate], shape: Shape, top_k: int, threads: int, device_name: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[Peak]:
    """One after the other, on a CPU each in a process forked from one that has only imported this module.

    Not tried: what wants more, by arithmetic, than is free now. What is killed, or gets no memory, does not fit either.
    """
    context = multiprocessing.get_context("forkserver") if device_name == "cpu" and sys.platform == "linux" else None
    if context is not None:
        context.set_forkserver_preload([__name__])
    return [_measure_peak(candidate, shape, top_k, threads, device_name, dtype, context) for candidate in chosen]


def _measure_peak(
    candidate: Candidate, shape: Shape, top_k: int, threads: int, device_name: str, dtype: torch.dtype, context: BaseContext | None
) -> Peak:
    wanted = candidate.wanted_bytes(shape, candidate.dtype or dtype)
    # the inputs are there twice when it is timed: as they are, and as the floor's gradients
    if wanted is not None and wanted + 2 * shape.input_bytes(dtype) > free_bytes(pick_device(device_name)):
        return Peak(None, fits=False, wanted_bytes=wanted)
    if device_name == "cpu" and (context is None or not can_reset_peak()):
        return Peak(wanted_bytes=wanted)
    call = functools.partial(peak_bytes_of, candidate, shape, top_k, threads, device_name, dtype)
    measured = call_within_memory(call) if context is None else in_own_process(context, call)
    return Peak(measured, fits=measured is not None, wanted_bytes=wanted)


def call_within_memory(call: Callable[[], int]) -> int | None:
    """What it returns; None where the device, or this process, has not the memory for it. Other errors are raised."""
    try:
        return call()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def in_own_process(context: BaseContext, call: Callable[[], int]) -> int | None:
    """What the call returns in a process of its own; None where that was killed, or got no memory.

    Raises RuntimeError where the process ended in another way; its own words are on the screen by then.
    """
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sending, call))  # type: ignore[attr-defined]
    process.start()
    sending.close()  # so that the end of the process is the end of the pipe
    try:
        found = receiving.recv()
    except EOFError:
        found = None
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"bench: a measuring process ended with exit code {process.exitcode}; see its message above.")
    return found


def _answer(sending: Connection, call: Callable[[], int]) -> None:
    with suppress(OSError):  # only Linux has it: when memory ends, this process is to go, and not the one that waits for it
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    sending.send(call_within_memory(call))


def device_name_of(device: torch.device) -> str:
    """What the system calls the processor that was measured."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
