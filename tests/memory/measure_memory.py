"""The peak memory of a training step in a fresh process, for the three ways to distil: python tests/memory/measure_memory.py '{"mode": …}'

Prints JSON: baseline_bytes (the process after the imports and steps of a small model in the same mode, freed), peak_bytes (the process
at its peak), and tensor_bytes (the tensors alive at their peak, by torch's own record of what it allocated and freed: no heap, no
scratch of the libraries). 'offline fused' is what this package trains with, head inputs and fused loss; 'offline dense' and 'online'
are what one would write instead: full logits, in float32, and for 'online' the teacher beside the student.
"""

import itertools
import json
import sys

import torch
import transformers

import distill_core.trainer  # what a training imports is the program's share  # noqa: F401
from distill_core.adapters import with_adapter
from distill_core.config import StudentConfig
from distill_core.device import MemoryMeter, return_freed_blocks
from distill_core.heads import HeadOps, head_inputs, read_head
from distill_core.losses import Workspace, loss_floor, topk_kl

WARM_UP = {"vocab": 2048, "hidden": 64, "layers": 1, "heads": 2, "ffn": 128, "batch": 4, "window": 129}
"""Products just large enough for the libraries that the measured ones go to: their code and scratch are the program's share."""
STEPS = 3


def llama(shape):
    config = transformers.LlamaConfig(
        vocab_size=shape["vocab"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["ffn"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def head_input(model, ids, positions):
    return head_inputs(model, input_ids=ids, position_ids=positions)[:, :-1].flatten(0, 1)


def loss_of(mode, student, teacher, ids, positions, shape, workspace):
    """Mean over tokens of KL(teacher || student) in one of three ways, with a made-up cache of K = 100 for the offline ones."""
    tokens, entries = shape["batch"] * (shape["window"] - 1), min(100, shape["vocab"])
    head_VD = read_head(student, HeadOps()).weight_VD
    if mode == "online":
        with torch.no_grad():
            teacher_NV = (head_input(teacher, ids, positions) @ read_head(teacher, HeadOps()).weight_VD.T).log_softmax(-1)
        student_NV = (head_input(student, ids, positions) @ head_VD.T).log_softmax(-1)
        return torch.nn.functional.kl_div(student_NV, teacher_NV, reduction="sum", log_target=True) / tokens
    ids_NK = torch.randint(shape["vocab"], (tokens, entries))
    logprobs_NK = torch.randn(tokens, entries).log_softmax(-1) - 0.1
    if mode == "offline dense":
        student_NK = (head_input(student, ids, positions) @ head_VD.T).log_softmax(-1).gather(-1, ids_NK)
        return (logprobs_NK.exp() * (logprobs_NK - student_NK)).sum() / tokens
    more = {"teacher_tail_N": torch.full((tokens,), -2.3), "labels_N": ids[:, 1:].flatten()}
    kept = {
        "vocab_size": shape["vocab"],
        "impl": "chunked",
        "workspace": workspace,
        "divisor": torch.tensor(float(tokens)),
    }  # a loss scaled later copies its gradients
    parts = topk_kl(head_input(student, ids, positions), head_VD, ids_NK, logprobs_NK, **more, **kept)
    loss_floor(logprobs_NK, teacher_ids_NK=ids_NK, **more)
    return parts.loss


def student_of(shape):
    student = llama(shape).train()
    if shape.get("checkpointing"):
        student.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rank = shape.get("lora_rank")
    return with_adapter(student, StudentConfig(init="pretrained", model="here", lora_rank=rank), seed=0) if rank else student


def steps(shape, mode, meter):
    """Three optimizer steps; the meter's peak counts from the second on, when the optimizer's state exists. Gives the tensors' peak."""
    student, workspace = student_of(shape), Workspace()
    teacher = llama(shape["teacher"]).eval() if mode == "online" else None
    learned = [weight for weight in student.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, fused=True)
    positions = (torch.arange(shape["window"]) % (shape["window"] // 2)).expand(shape["batch"], shape["window"])

    def step():
        for _ in range(shape.get("accumulation", 1)):
            ids = torch.randint(shape["vocab"], (shape["batch"], shape["window"]))
            loss_of(mode, student, teacher, ids, positions, shape, workspace).backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    meter.reset_peak()
    for _ in range(STEPS - 1):
        step()
    peak = meter.peak_bytes()
    states = [value for state in optimizer.state.values() for value in state.values()]
    weights = [*student.parameters(), *(teacher.parameters() if teacher else ())]
    return peak, sum(tensor.nbytes for tensor in [*weights, *states]) + workspace.num_bytes() + allocated_peak(step)


def allocated_peak(step):
    """Bytes that a step has allocated and not yet freed, at their peak: the sum over torch's record of both."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


def main(arguments):
    asked = json.loads(arguments[0])
    mode, shape = asked.pop("mode"), asked
    return_freed_blocks()  # else the heap's history is measured, not the step
    meter = MemoryMeter(torch.device("cpu"))
    options = {name: shape[name] for name in ("accumulation", "checkpointing", "lora_rank") if name in shape}
    steps({**WARM_UP, **options, "teacher": WARM_UP}, mode, meter)
    baseline = meter.now_bytes()
    peak, tensors = steps({**shape, "teacher": {**shape, **shape.get("teacher", {})}}, mode, meter)
    print(json.dumps({"baseline_bytes": baseline, "peak_bytes": peak, "tensor_bytes": tensors}))


if __name__ == "__main__":
    main(sys.argv[1:])
