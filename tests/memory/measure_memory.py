"""The peak memory of a training step in a fresh process, for the three ways to distil: python tests/measure_memory.py '{"mode": …}'

Prints JSON: baseline_bytes (the process after the imports and one step of a tiny model in the same mode) and peak_bytes. 'offline fused'
is what this package trains with, head inputs and fused loss; 'offline dense' and 'online' are what one would write instead: full logits,
in float32, and for 'online' the teacher beside the student.
"""

import json
import sys

import torch
import transformers

import distill_core.trainer  # what a training imports is the program's share  # noqa: F401
from distill_core.device import MemoryMeter, return_freed_blocks
from distill_core.heads import HeadOps, head_inputs, read_head
from distill_core.losses import loss_floor, topk_kl

TINY = {"vocab": 128, "hidden": 32, "layers": 1, "heads": 2, "ffn": 64, "batch": 1, "window": 16}
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


def loss_of(mode, student, teacher, ids, positions, shape):
    """Sum over tokens of KL(teacher || student) in one of three ways, with a made-up cache of K = 100 for the offline ones."""
    tokens, entries = shape["batch"] * (shape["window"] - 1), min(100, shape["vocab"])
    head_VD = read_head(student, HeadOps()).weight_VD
    if mode == "online":
        with torch.no_grad():
            teacher_NV = (head_input(teacher, ids, positions) @ read_head(teacher, HeadOps()).weight_VD.T).log_softmax(-1)
        student_NV = (head_input(student, ids, positions) @ head_VD.T).log_softmax(-1)
        return torch.nn.functional.kl_div(student_NV, teacher_NV, reduction="sum", log_target=True)
    ids_NK = torch.randint(shape["vocab"], (tokens, entries))
    logprobs_NK = torch.randn(tokens, entries).log_softmax(-1) - 0.1
    if mode == "offline dense":
        student_NK = (head_input(student, ids, positions) @ head_VD.T).log_softmax(-1).gather(-1, ids_NK)
        return (logprobs_NK.exp() * (logprobs_NK - student_NK)).sum()
    more = {"teacher_tail_N": torch.full((tokens,), -2.3), "labels_N": ids[:, 1:].flatten()}
    parts = topk_kl(head_input(student, ids, positions), head_VD, ids_NK, logprobs_NK, **more, vocab_size=shape["vocab"], impl="chunked")
    loss_floor(logprobs_NK, teacher_ids_NK=ids_NK, **more)
    return parts.loss


def steps(shape, mode, meter):
    """Three optimizer steps; the meter's peak counts from the second on, when the optimizer's state exists."""
    student = llama(shape).train()
    teacher = llama(shape["teacher"]).eval() if mode == "online" else None
    optimizer = torch.optim.AdamW(student.parameters(), fused=True)
    positions = (torch.arange(shape["window"]) % (shape["window"] // 2)).expand(shape["batch"], shape["window"])
    for step in range(STEPS):
        if step == 1:
            meter.reset_peak()
        ids = torch.randint(shape["vocab"], (shape["batch"], shape["window"]))
        (loss_of(mode, student, teacher, ids, positions, shape) / ids.numel()).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main(arguments):
    asked = json.loads(arguments[0])
    mode, shape = asked.pop("mode"), asked
    return_freed_blocks()  # else the heap's history is measured, not the step
    meter = MemoryMeter(torch.device("cpu"))
    steps({**TINY, "teacher": TINY}, mode, meter)
    baseline = meter.peak_bytes()
    steps({**shape, "teacher": {**shape, **shape.get("teacher", {})}}, mode, meter)
    print(json.dumps({"baseline_bytes": baseline, "peak_bytes": meter.peak_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1:])
