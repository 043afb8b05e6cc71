"""Which device, and the four questions to its memory."""

import mmap
import platform
import subprocess
import sys

import pytest
import torch

from distill_core import device as subject
from distill_core.device import MemoryMeter, pick_device
from distill_core.errors import ConfigError

NUM_BYTES = 64 * 2**20


def resident_block():
    """Fresh pages from the system, touched: the allocator's heap might hand out memory that is resident already. Gone on close()."""
    block = mmap.mmap(-1, NUM_BYTES)
    for place in range(0, NUM_BYTES, 4096):
        block[place] = 1
    return block


def test_pick_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="device 'cuda:1': this machine has no CUDA device. Use 'auto' or 'cpu'."):
        pick_device("cuda:1")
    with pytest.raises(ConfigError, match="device 'gpu' is not known. Use 'auto', 'cpu', 'cuda' or 'cuda:1'."):
        pick_device("gpu")


def test_pick_device_with_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda:0")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="device 'cuda:2': this machine has 2 CUDA devices, numbered from 0"):
        pick_device("cuda:2")


def test_peak_sees_what_is_gone_and_can_be_reset():
    meter = MemoryMeter(torch.device("cpu"))
    meter.reset_peak()
    before = meter.now_bytes()
    block = resident_block()
    assert meter.now_bytes() - before > 0.9 * NUM_BYTES
    block.close()
    assert meter.now_bytes() - before < 0.5 * NUM_BYTES
    assert 0.9 * NUM_BYTES < meter.peak_bytes() - before < 1.5 * NUM_BYTES
    meter.reset_peak()
    assert meter.peak_bytes() - before < 0.5 * NUM_BYTES
    assert meter.now_bytes() < meter.limit_bytes()
    assert meter.name == "process memory"


def test_peak_without_the_kernels_help(monkeypatch):
    """Where the high-water mark cannot be reset, the peak is the highest value seen."""
    monkeypatch.setattr(subject, "can_reset_peak", lambda: False)
    meter = MemoryMeter(torch.device("cpu"))
    meter.reset_peak()
    before = meter.peak_bytes()
    block = resident_block()
    meter.now_bytes()
    block.close()
    assert meter.peak_bytes() - before > 0.9 * NUM_BYTES
    meter.reset_peak()
    assert meter.peak_bytes() - before < 0.5 * NUM_BYTES


FREED_BLOCKS = """
import numpy as np, psutil
from distill_core.device import return_freed_blocks
assert return_freed_blocks()
process = psutil.Process()
blocks = [np.ones(2**18) for _ in range(100)]
full = process.memory_info().rss
del blocks[:-1]
assert full - process.memory_info().rss > 180 * 2**20
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own setting")
def test_freed_blocks_go_back_while_a_later_one_lives():
    """A hundred blocks of 2 MiB, all freed but the last: a heap would keep them below it. In a process whose heap holds nothing yet."""
    subprocess.run([sys.executable, "-c", FREED_BLOCKS], check=True)
