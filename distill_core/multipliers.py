"""Which of torch's two libraries multiplies float32 matrices on a CPU: MKL, its default, or oneDNN.

MKL gives its AVX-512 code to Intel's processors only. On an AMD EPYC (Zen 5), torch 2.13, one thread, it does 84 to 102 GFLOP/s and
oneDNN 175 to 218, on the three products of heads of 32,000 x 512 and 151,936 x 1,024; both add up in float32 (errors 3e-7 and 5e-7).
torch has one switch that hands its products to oneDNN: `fp32_precision = "bf16"`, a permission to round the inputs to bfloat16. oneDNN
makes use of it where a processor has matrix units (AMX); elsewhere it multiplies float32. Which of the two is tried here, once.
"""

# M, N, K: rows, columns and inner size of a product
import contextlib
import functools
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
FLOAT32_ERROR = 2e-6
"""Relative; bfloat16 inputs would be 2e-3 off."""


@functools.cache
def is_onednn_faster() -> bool:
    """Whether float32 products should go to oneDNN here: AVX-512 that MKL leaves unused, and nothing lost by it. The same answer always."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available() and hasattr(torch.backends.mkldnn, "matmul")):
        return False
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "Intel" not in processor_vendor() and _keeps_float32()


@contextlib.contextmanager
def by_onednn(*, is_on: bool) -> Iterator[None]:
    """Hands float32 products to oneDNN, if is_on. The switch is the process's own: other threads multiply that way meanwhile."""
    if not is_on:
        yield
        return
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def processor_vendor() -> str:
    """'GenuineIntel', 'AuthenticAMD', …; empty where the system does not say."""
    found = re.search(r"^vendor_id\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE) if CPU_INFO.exists() else None
    return found[1] if found else platform.processor()


def _keeps_float32() -> bool:
    """One product of numbers that bfloat16 cannot hold, against float64."""
    random = torch.Generator().manual_seed(0)
    a_MK, b_KN = torch.randn(64, 256, generator=random), torch.randn(256, 512, generator=random)
    with by_onednn(is_on=True):
        found_MN = a_MK @ b_KN
    true_MN = a_MK.double() @ b_KN.double()
    return float((found_MN - true_MN).norm() / true_MN.norm()) < FLOAT32_ERROR
