"""`distill bench loss`: time, memory and error of the loss's implementations, beside what one would otherwise write.

Time is that of forward and backward (CPU time, or between two CUDA events), as a ratio to the floor: the three bare matrix
products of the same shape (logits, gradient of the hidden states, gradient of the head) by the faster of torch's two libraries, taken
in turns with it so that a busy machine slows both. Memory is what one call adds at its peak, fresh gradients included (on a CPU in
a process of its own). Error is against float64 on targets close to the student's own, where it is largest. An implementation that is
further from float64 than plain dense code of the same loss gets no speed, nor does one that does not fit into the free memory.
"""

# N: tokens   V: vocabulary   D: hidden size   C: tokens of one chunk
import json
from collections.abc import Callable
from typing import Any

import torch

from ..device import pick_device
from .cases import Known, Shape, check_case, errors, speed_case
from .implementations import candidates
from .measure import Peak, device_name_of, measure_peaks, time_in_turns

DEFAULT_SHAPES = (Shape(512, 8192, 256), Shape(512, 32000, 256))
"""Half a minute on one thread of an AMD EPYC."""
FULL_SHAPES = (Shape(2048, 32000, 512), Shape(2048, 151936, 1024), Shape(512, 262144, 640))
"""Heads of the size of Llama's, Qwen's and Gemma's. The dense code beside ours wants about 12 GiB, by arithmetic, and most of the time."""
GPU_SHAPES = (Shape(8192, 128256, 4096), Shape(8192, 151936, 1024))
"""bfloat16, on a GPU: Llama 3 8B's head, and Qwen 3 0.6B's. Not measured yet."""


def bench_loss(
    shapes: tuple[Shape, ...] | None = None,
    *,
    device: str = "cpu",
    threads: int = 1,
    repeats: int = 3,
    top_k: int = 100,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for each shape and implementation, the floor's first; see the module's docstring for what is measured.

    `shapes` None: GPU_SHAPES on a GPU, in bfloat16, DEFAULT_SHAPES elsewhere, in float32. Times in seconds, memory in bytes;
    `median_s` and `ratio_to_floor` are None for an implementation that fails the error check (`is_right`) or would not fit (`fits`;
    `wanted_bytes` is what it wants by arithmetic, where that is known). Raises ConfigError for a device
    that is not there.
    """
    say = progress or (lambda _: None)
    found = pick_device(device)
    if shapes is None:
        shapes = GPU_SHAPES if found.type == "cuda" else DEFAULT_SHAPES
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [row for shape in shapes for row in _bench_shape(Shape(*shape), found, threads, repeats, top_k, say)]
    finally:
        torch.set_num_threads(before)


def _bench_shape(
    shape: Shape, device: torch.device, threads: int, repeats: int, top_k: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    everyone, dtype = candidates(device.type), torch.bfloat16 if device.type == "cuda" else torch.float32
    words = f"{shape.num_tokens} tokens, vocabulary {shape.vocab_size:,}, hidden {shape.hidden_size}"
    say(f"{words}: error against float64")
    case = check_case(shape, top_k, device)
    known: Known = {}
    checked = [errors(candidate, case, candidate.dtype or dtype, known) for candidate in everyone]
    del case, known
    right = [index for index, (_, is_right) in enumerate(checked) if is_right]
    say(f"{words}: memory")
    measured = measure_peaks([everyone[index] for index in right], shape, top_k, threads, str(device), dtype)
    peaks = dict(zip(right, measured, strict=True))
    say(f"{words}: time")
    fitting = [index for index in right if peaks[index].fits]
    floors_s, medians = time_in_turns(speed_case(shape, top_k, device, dtype), [everyone[index] for index in fitting], repeats)
    times = dict(zip(fitting, medians, strict=True))
    versions = {"device": device_name_of(device), "torch": torch.__version__, "dtype": str(dtype).removeprefix("torch.")}
    common = {**shape._asdict(), "top_k": top_k, "num_threads": threads, **versions}
    floor_s = floors_s[0]
    rows: list[dict[str, Any]] = [
        {"implementation": name, "tail": None, "median_s": seconds, "ratio_to_floor": seconds / floor_s, **common}
        for name, seconds in zip(FLOORS, floors_s)
    ]
    for index, (candidate, (found, is_right)) in enumerate(zip(everyone, checked, strict=True)):
        seconds, peak = times.get(index), peaks.get(index, Peak())
        rows.append(
            {
                "implementation": candidate.name,
                "tail": candidate.tail,
                "is_right": is_right,
                "fits": peak.fits,
                "median_s": seconds,
                "ratio_to_floor": None if seconds is None else seconds / floor_s,
                "peak_bytes": peak.measured_bytes,
                "wanted_bytes": peak.wanted_bytes,
                "loss_error": found[0],
                "hidden_grad_error": found[1],
                "head_grad_error": None if candidate.is_head_frozen else found[2],
                **common,
            }
        )
    return rows


FLOORS = ("three bare matrix products", "the same by torch's default")
"""The second only where the default is the slower library (multipliers.py)."""
TABLE_HEAD = f"  {'implementation':<30}{'tail':<13}{'time':>10}{'/ floor':>9}{'peak':>11}{'error: loss':>13}{'d hidden':>10}{'d head':>10}"


def bench_table(rows: list[dict[str, Any]]) -> str:
    """The rows as plain text, one block to a shape."""
    lines: list[str] = []
    for shape in dict.fromkeys((row["num_tokens"], row["vocab_size"], row["hidden_size"]) for row in rows):
        block = [row for row in rows if (row["num_tokens"], row["vocab_size"], row["hidden_size"]) == shape]
        first = block[0]
        lines.append(
            f"{shape[0]} tokens, vocabulary {shape[1]:,}, hidden {shape[2]}, top {first['top_k']},"
            f" {first['num_threads']} thread(s), {first['dtype']}"
        )
        lines.append(TABLE_HEAD)
        lines.extend(_table_line(row) for row in block)
        lines.append("")
    machine = f"{rows[0]['device']}, torch {rows[0]['torch']}"
    lines.append(f"{machine}. Errors are relative, against float64. Peak includes the gradients; ~: by arithmetic.")
    return "\n".join(lines)


def _table_line(row: dict[str, Any]) -> str:
    def error(name: str) -> str:
        return "-" if row.get(name) is None else f"{row[name]:.0e}"

    def mib(name: str) -> str:
        return f"{row[name] / 2**20:.0f} MiB"

    if row["median_s"] is None:
        speed = f"{'wrong' if not row['is_right'] else 'does not fit':>14}{'':5}"
    else:
        speed = f"{row['median_s'] * 1000:>7.0f} ms{row['ratio_to_floor']:>9.2f}"
    if row.get("peak_bytes") is not None:
        peak = mib("peak_bytes")
    else:
        peak = "-" if row.get("fits", True) or row["wanted_bytes"] is None else f"~{mib('wanted_bytes')}"
    names = f"  {row['implementation']:<30}{row['tail'] or '-':<13}"
    return f"{names}{speed}{peak:>11}{error('loss_error'):>13}{error('hidden_grad_error'):>10}{error('head_grad_error'):>10}"


def json_lines(rows: list[dict[str, Any]]) -> str:
    """One JSON object to a line, for machines."""
    return "\n".join(json.dumps(row) for row in rows)
