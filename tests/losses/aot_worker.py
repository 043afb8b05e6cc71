"""Compiles the row kernels for GPUs that are not here and prints, as one JSON line each, what the compiler made of them.

`python aot_worker.py CASES`, CASES a JSON list of {"kernel", "target", "constants", "num_warps"}. A process of its own: the
interpreter of the other tests must not be on, and the compiler may take for ever on a bad kernel.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from distill_core.losses import triton_kernels

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {"stride_x": "i64", "V": "i32", "height": "fp32", "temperature": "fp32"}
ALIGNED = ("x_ptr", "stride_x", "most_ptr", "total_ptr", "total_at_1_ptr", "factor_ptr", "factor_at_1_ptr")
"""What a launch finds divisible by 16. V is not among them: the kernels must be good at V = 50,257 too."""


def compiled(kernel_name: str, target: str, constants: dict, num_warps: int):
    kernel = getattr(triton_kernels, kernel_name)
    names = [parameter.name for parameter in kernel.params]
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "*fp32") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in ALIGNED if name in names}
    gpu = GPUTarget("hip", target, 64) if target.startswith("gfx") else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=gpu, options={"num_warps": num_warps})


def nvidia_facts(made) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
        listing = subprocess.run([TOOLS / "nvdisasm", "-c", cubin], capture_output=True, text=True, check=True).stdout
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", listing)),
        "barriers": len(re.findall(r"\bBAR\.", listing)),
        "wide_loads": len(re.findall(r"ld\.global[^;]*v4\.b32", made.asm["ptx"])),
        "wide_stores": len(re.findall(r"st\.global[^;]*v4\.b32", made.asm["ptx"])),
    }


def amd_facts(made) -> dict:
    text = made.asm["amdgcn"]

    def number(name: str) -> int:
        return max(int(found) for found in re.findall(rf"\.{name}:\s*(\d+)", text))

    return {
        "registers": number("vgpr_count"),
        "stack": number("private_segment_fixed_size"),
        "spills": number("vgpr_spill_count") + number("sgpr_spill_count"),
        "barriers": len(re.findall(r"\bs_barrier", text)),
        "wide_loads": len(re.findall(r"(?:global|buffer)_load_dwordx4", text)),
        "wide_stores": len(re.findall(r"(?:global|buffer)_store_dwordx4", text)),
    }


for case in json.loads(sys.argv[1]):
    result = compiled(case["kernel"], case["target"], case["constants"], case["num_warps"])
    facts = amd_facts(result) if case["target"].startswith("gfx") else nvidia_facts(result)
    print(json.dumps({**case, **facts, "shared": result.metadata.shared}), flush=True)
