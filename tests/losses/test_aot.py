"""The row kernels compiled for GPUs that are not here: registers, spills, shared memory and wide loads, read from the result."""

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distill_core.losses.triton_loss import BLOCK_V, NUM_WARPS

pytest.importorskip("triton")
if sys.platform != "linux":
    pytest.skip("triton's compilers are Linux programs", allow_module_level=True)

HERE = Path(__file__).parent
KERNELS = ("tail_stats_kernel", "tail_gradient_kernel")
SHARED_KIB = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64, "gfx950": 160}
"""What one block may use (CUDA programming guide, table of compute capabilities; AMD CDNA 3 and 4 instruction set guides)."""
REGISTERS = 65536
"""32-bit registers of one multiprocessor, NVIDIA. AMD: 512 for each lane of a wavefront at most."""
PLAIN, EVERYTHING = (False, False), (True, True)
REDUCTIONS = {"tail_stats_kernel": 2, "tail_gradient_kernel": 0}
"""Over a whole row by all warps: largest and sum, and one more sum for a second temperature. Each is written to shared memory, waited for,
and read: without the barrier, a race that the interpreter cannot see. The gradient's elements are read and written by one thread each."""
HOLE = -3.4028234663852886e38


def case(kernel, target, options, *, block_v=BLOCK_V, num_warps=NUM_WARPS):
    constants = {"HAS_CAP": options[0], "NEEDS_AT_1": options[1], "HOLE": HOLE, "BLOCK_V": block_v}
    return {"kernel": kernel, "target": target, "constants": constants, "num_warps": num_warps}


def compile_all(cases, cache, *, timeout_s=300):
    """Facts of each, from another process with a time limit and a compiler cache of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1", "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / "aot_worker.py"), json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def complaints(facts):
    """What would keep the kernel from being launched, or from being fast."""
    threads = facts["num_warps"] * (64 if facts["target"].startswith("gfx") else 32)
    reductions = REDUCTIONS[facts["kernel"]]
    reductions += 1 if reductions and facts["constants"]["NEEDS_AT_1"] else 0
    wide = 1 if facts["kernel"] == "tail_stats_kernel" else min(facts["wide_stores"], 1)
    checks = {
        "spills": facts["spills"] == 0 and facts["stack"] == 0,
        "shared memory": facts["shared"] <= SHARED_KIB[facts["target"]] * 1024,
        "registers": facts["registers"] <= 512 if facts["target"].startswith("gfx") else facts["registers"] * threads <= REGISTERS,
        "barriers": facts["barriers"] >= reductions,
        "wide loads": facts["wide_loads"] >= 1 and wide == 1,
    }
    return [name for name, is_good in checks.items() if not is_good]


@functools.cache
def matrix(cache):
    """Both kernels with all they can do, for every target; once for all tests of this file."""
    made = compile_all([case(kernel, target, EVERYTHING) for kernel, target in itertools.product(KERNELS, SHARED_KIB)], cache)
    return {(facts["kernel"], facts["target"]): facts for facts in made}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("target", SHARED_KIB)
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_without_spills_and_loads_wide(kernel, target, cache):
    facts = matrix(cache)[kernel, target]
    assert complaints(facts) == [], facts


@pytest.mark.slow
@pytest.mark.parametrize("options", [PLAIN, (True, False), (False, True)], ids=["plain", "softcap", "two temperatures"])
def test_the_lesser_variants_too(options, cache):
    for facts in compile_all([case(kernel, target, options) for kernel, target in itertools.product(KERNELS, SHARED_KIB)], cache):
        assert complaints(facts) == [], facts


def test_a_bad_kernel_is_caught(cache):
    """The same kernel with one warp: 128 elements a thread in three arrays, more than there are registers."""
    (facts,) = compile_all([case("tail_stats_kernel", "sm_90", PLAIN, block_v=4096, num_warps=1)], cache)
    assert "spills" in complaints(facts), facts
    assert "barriers" in complaints(facts), "one warp waits for nobody"
