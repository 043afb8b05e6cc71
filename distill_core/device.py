"""Which device, and how much of its memory is in use: one meter with the same four questions for a GPU and for a CPU."""

import ctypes
import functools
import re
from pathlib import Path

import psutil
import torch

from .errors import ConfigError

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs, sets VmHWM back to the present size (Linux, man 5 proc)."""

M_MMAP_THRESHOLD = -3
"""Of malloc.h: from this size on a block is a mapping of its own."""


def pick_device(name: str) -> torch.device:
    """'auto' is the first GPU, else the CPU; or 'cpu', 'cuda', 'cuda:1'. Raises ConfigError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    wanted = re.fullmatch(r"cuda(?::(\d+))?", name)
    if wanted is None:
        raise ConfigError(f"device '{name}' is not known. Use 'auto', 'cpu', 'cuda' or 'cuda:1'.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(wanted[1] or 0)
    if index >= count:
        found = f"{count} CUDA device{'s' if count > 1 else ''}, numbered from 0" if count else "no CUDA device"
        raise ConfigError(f"device '{name}': this machine has {found}. Use 'auto' or 'cpu'.")
    return torch.device(f"cuda:{index}")


def return_freed_blocks() -> bool:
    """Let glibc give freed blocks of 64 KiB and more back at once; whether it does (other C libraries are left as they are).

    By itself glibc raises that size to 32 MiB as blocks are freed, and keeps the rest for later. For measuring what tensors need; no
    training asks for it: with 1 MiB, a student 384 wide took 7 % less memory (974 MB, not 1,047) for 28 % more CPU time (22.8 s, not
    17.8: once, on a busy machine). Below 1 MiB holes were left still: of a student 320 wide, with adapters, 83 to 103 MB.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 2**16))


class MemoryMeter:
    """Memory of a device, in bytes. A GPU: torch's allocator, limit from its driver. A CPU: this process, limit the machine's RAM.

    Peaks count from the last reset_peak(), or from the first use. Where a process cannot reset the system's own peak
    (anywhere but Linux, and in some containers), the peak is the highest value that now_bytes() was asked for.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._seen_bytes = 0
        self.name = torch.cuda.get_device_name(device) if device.type == "cuda" else "process memory"

    def now_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        self._seen_bytes = max(self._seen_bytes, now := psutil.Process().memory_info().rss)
        return now

    def peak_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        now = self.now_bytes()
        return max(now, _high_water_bytes()) if can_reset_peak() else self._seen_bytes

    def reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        if can_reset_peak():
            CLEAR_REFS.write_text(RESET_PEAK)
        self._seen_bytes = 0
        self.now_bytes()

    def limit_bytes(self) -> int:
        """All of the device's memory, whoever uses it."""
        if self.device.type == "cuda":
            return _nvml_total_bytes(self.device.index or 0) or torch.cuda.get_device_properties(self.device).total_memory
        return psutil.virtual_memory().total


@functools.cache
def can_reset_peak() -> bool:
    """Whether the kernel lets this process set its high-water mark back."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
        return _high_water_bytes() > 0
    except OSError:
        return False


def _high_water_bytes() -> int:
    """VmHWM: the most that this process ever had resident; 0 where the kernel does not say."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _nvml_total_bytes(index: int) -> int | None:
    """The driver's figure; None where it cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)  # CUDA_VISIBLE_DEVICES renumbers torch's devices, not the driver's
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return None
