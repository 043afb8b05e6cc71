"""The door's promises, for every implementation: what is ignored, what is padding, which inputs and which uses of the graph are right."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loss_cases import DIVERGENCES, FUSED, IMPLS, MODES, assert_no_worse, call, distance, made, run, with_teacher

import distill_core.losses as door
from distill_core.losses import IGNORE_INDEX, LossParts, available_impls, choice, topk_kl

F32 = torch.float32


def poisoned(case, row):
    """The row ignored, and everything about it unusable."""
    hidden_ND, ids_NK, logprobs_NK, tail_N, labels_N = (
        tensor.clone() for tensor in (case.hidden_ND, case.ids_NK, case.logprobs_NK, case.tail_N, case.labels_N)
    )
    hidden_ND[row], logprobs_NK[row], tail_N[row], labels_N[row] = float("nan"), float("nan"), float("inf"), IGNORE_INDEX
    ids_NK[row] = torch.tensor([-5, 10**9, 0, 3, 2**40])
    return case.changed(hidden_ND=hidden_ND, ids_NK=ids_NK, logprobs_NK=logprobs_NK, tail_N=tail_N, labels_N=labels_N)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("row", [0, 3, 6])
def test_ignored_rows_leave_no_trace(impl, row):
    """Bit for bit as if the row had never been there (peremartra/optipfair#34, linkedin/Liger-Kernel#974)."""
    case = made(dtype=F32)
    rest = [i for i in range(7) if i != row]
    fields = ("hidden_ND", "ids_NK", "logprobs_NK", "tail_N", "labels_N")
    short = case.changed(**{name: getattr(case, name)[rest] for name in fields})
    parts, grads = run(poisoned(case, row), impl, ce_weight=0.5)
    short_parts, short_grads = run(short, impl, ce_weight=0.5)
    assert [part.item() for part in parts] == [part.item() for part in short_parts]
    assert torch.equal(grads[0][rest], short_grads[0])
    assert torch.equal(grads[0][row], torch.zeros(4))
    assert all(torch.equal(a, b) for a, b in zip(grads[1:], short_grads[1:], strict=True))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("n", [0, 5])
def test_nothing_to_learn_from_keeps_the_graph(impl, n):
    """All ignored, or no token at all: loss 0 with a graph, gradients of zeros (microsoft/LMOps#38, huggingface/trl#6859)."""
    case = made(n=5, dtype=F32)
    fields = ("hidden_ND", "ids_NK", "logprobs_NK", "tail_N")
    case = case.changed(labels_N=torch.full((n,), IGNORE_INDEX), **{name: getattr(case, name)[:n] for name in fields})
    student = case.student()
    parts = call(case, student, impl=impl, ce_weight=0.5)
    assert [part.item() for part in parts] == [0] * 8
    parts.loss.backward()
    assert all(torch.equal(leaf.grad, torch.zeros_like(leaf)) for leaf in student)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_empty_entries(impl, divergence, tail):
    """-inf entries with any id change nothing, also where id 0 is both padding and real (huggingface/trl#5594)."""
    case = made(dtype=F32)
    case.ids_NK[2, 0], case.ids_NK[2, 1] = 0, 1  # id 0 is really stored in row 2
    case.ids_NK[2, 2:] = torch.tensor([2, 3, 4])
    padding = torch.tensor([[0, -1, 10**6]]).expand(7, 3)
    padded = case.changed(
        ids_NK=torch.cat([case.ids_NK, padding], dim=-1), logprobs_NK=torch.cat([case.logprobs_NK, torch.full((7, 3), -torch.inf)], dim=-1)
    )
    knobs = {"divergence": divergence, "tail": tail, "ce_weight": 0.5}
    (parts, grads), (padded_parts, padded_grads) = run(case, impl, **knobs), run(padded, impl, **knobs)
    assert padded_parts.loss.item() == pytest.approx(parts.loss.item(), rel=1e-6)
    for grad, padded_grad in zip(grads, padded_grads, strict=True):
        torch.testing.assert_close(padded_grad, grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_of_different_length_are_the_sum_of_their_parts(impl):
    """Row i keeps i + 1 entries: the same as seven calls with K of 1 to 5."""
    case = made(dtype=F32)
    kept = (torch.arange(7) % 5 + 1)[:, None]
    ragged = case.changed(logprobs_NK=case.logprobs_NK.masked_fill(torch.arange(5) >= kept, -torch.inf))
    total = 0.0
    for i in range(7):
        k = int(kept[i])
        row = case.changed(
            hidden_ND=case.hidden_ND[i : i + 1],
            labels_N=case.labels_N[i : i + 1],
            ids_NK=case.ids_NK[i : i + 1, :k],
            logprobs_NK=case.logprobs_NK[i : i + 1, :k],
            tail_N=ragged.tail_N[i : i + 1],
        )
        total += call(row, row.student(), impl=impl).loss.item()
    assert call(ragged, ragged.student(), impl=impl).loss.item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_gap_of_80(impl, temperature, sign, divergence):
    """The student's tail, or all of its stored entries, 80 below the rest: no NaN, no clamp (arcee-ai/DistillKit#45)."""
    torch.manual_seed(0)
    logits_NV = torch.randn(4, 50)
    logits_NV[:, :5] += sign * 40.0
    logits_NV[:, 5:] -= sign * 40.0
    teacher_NV = torch.randn(4, 50, dtype=torch.float64) * 0.3
    teacher_NV[:, :5] += 5.0
    case = with_teacher(
        torch.eye(4), logits_NV.T.contiguous(), None, teacher_NV, torch.randint(0, 50, (4,)), top_k=5, temperature=temperature
    )
    assert_no_worse(case, impl, temperature=temperature, ce_weight=0.5, divergence=divergence)


@pytest.mark.parametrize("impl", IMPLS)
def test_suppressed_columns(impl):
    """Two tokens that neither side can say: -inf in the head's bias (p-e-w/heretic#348)."""
    case = made(v=10, dtype=F32)
    bias_V = torch.cat([torch.full((2,), -torch.inf), case.bias_V])  # two more columns than the teacher knows, in front
    wider = case.changed(
        lm_head_VD=torch.cat([torch.randn(2, 4), case.lm_head_VD]), bias_V=bias_V, ids_NK=case.ids_NK + 2, labels_N=case.labels_N + 2
    )
    (parts, grads), (wider_parts, wider_grads) = run(case, impl, ce_weight=0.5), run(wider, impl, ce_weight=0.5)
    assert wider_parts.loss.item() == pytest.approx(parts.loss.item(), rel=1e-6)
    torch.testing.assert_close(wider_grads[1][2:], grads[1], atol=1e-6, rtol=1e-5)
    assert torch.equal(wider_grads[1][:2], torch.zeros(2, 4))


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_beyond_the_vocabulary_take_no_part(impl):
    """Padding rows that would win by 50: same loss, same gradients, zeros for themselves (NVIDIA/Model-Optimizer#2489)."""
    case = made(dtype=F32)
    padded = case.changed(
        lm_head_VD=torch.cat([case.lm_head_VD, torch.randn(3, 4)]), bias_V=torch.cat([case.bias_V, torch.full((3,), 50.0)])
    )
    (parts, grads), (padded_parts, padded_grads) = run(case, impl, ce_weight=0.5), run(padded, impl, ce_weight=0.5, vocab_size=13)
    assert [part.item() for part in padded_parts] == pytest.approx([part.item() for part in parts], rel=1e-6)
    for grad, padded_grad in zip(grads[1:], padded_grads[1:], strict=True):
        torch.testing.assert_close(padded_grad[:13], grad, atol=1e-6, rtol=1e-5)
        assert torch.equal(padded_grad[13:], torch.zeros_like(padded_grad[13:]))


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(
    "knobs", [{"logit_softcap": 30.0}, {"logit_scale": 1 / 16}, {"logit_scale": 1 / 8, "logit_softcap": 20.0}], ids=str
)
def test_softcap_and_scale(impl, knobs):
    """Logits up to 124 under a cap of 30, as Gemma's, and scales as Cohere's and Granite's (unslothai/unsloth#11277)."""
    case = made(n=9, v=60, d=8, k=9, dtype=F32)
    case = case.changed(hidden_ND=case.hidden_ND * 12)
    for temperature in (1.0, 2.0):
        assert_no_worse(case, impl, temperature=temperature, ce_weight=0.5, **knobs)


@pytest.mark.parametrize("impl", IMPLS)
def test_upstream_scale_and_a_second_backward(impl):
    """(3 loss).backward() twice with retain_graph adds up to 6 times the gradient (Dao-AILab/quack#209, pytorch/torchtitan#3250)."""
    case = made(dtype=F32)
    _, grads = run(case, impl)
    student = case.student()
    loss = 3.0 * call(case, student, impl=impl).loss
    loss.backward(retain_graph=True)
    loss.backward()
    for leaf, grad in zip(student, grads, strict=True):
        torch.testing.assert_close(leaf.grad, 6 * grad)


@pytest.mark.parametrize("impl", IMPLS)
def test_gradients_can_be_asked_for_without_side_effects(impl):
    case = made(dtype=F32)
    student = case.student()
    loss = call(case, student, impl=impl).loss
    first = [grad.clone() for grad in torch.autograd.grad(loss, student, retain_graph=True)]
    second = torch.autograd.grad(loss, student)
    assert all(leaf.grad is None for leaf in student)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("impl", IMPLS)
def test_only_the_loss_has_a_graph(impl):
    parts = call(made(dtype=F32), made(dtype=F32).student(), impl=impl)
    assert isinstance(parts, LossParts)
    assert [part.requires_grad for part in parts] == [True] + [False] * 7
    assert [part.shape for part in parts] == [torch.Size([])] * 8


@pytest.mark.parametrize("impl", IMPLS)
def test_one_step_of_eight_is_eight_of_one(impl):
    """Sums, divided once by the step's tokens: micro-batches of unequal length add up exactly (huggingface/trl#4719)."""
    case = made(n=16, ignored=5, dtype=F32)
    whole = case.student()
    parts = call(case, whole, impl=impl, ce_weight=0.5)
    (parts.loss / parts.num_valid).backward()
    pieces = case.student()
    for i in range(8):
        rows = slice(2 * i, 2 * i + 2)
        fields = ("ids_NK", "logprobs_NK", "tail_N", "labels_N")
        piece = case.changed(**{name: getattr(case, name)[rows] for name in fields})
        (call(piece, (pieces[0][rows], *pieces[1:]), impl=impl, ce_weight=0.5).loss / parts.num_valid).backward()
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_strides_and_whole_number_types(impl):
    """Transposed, stepped and expanded inputs, int32 ids and labels, float16 log-probabilities."""
    case = made(n=6, dtype=F32)
    logprobs_NK = case.logprobs_NK.half()
    expected = topk_kl(
        case.hidden_ND, case.lm_head_VD, case.ids_NK, logprobs_NK.float(), teacher_tail_N=case.tail_N, labels_N=case.labels_N, impl=impl
    )
    hidden_ND = case.hidden_ND.T.contiguous().T
    lm_head_VD = torch.stack([case.lm_head_VD, case.lm_head_VD * 9], dim=-1)[..., 0]
    ids_NK = torch.cat([case.ids_NK, case.ids_NK], dim=-1).int()[:, :5]
    tail_N = torch.stack([case.tail_N, case.tail_N], dim=-1).float().flatten()[::2]
    assert not (hidden_ND.is_contiguous() or lm_head_VD.is_contiguous() or ids_NK.is_contiguous() or tail_N.is_contiguous())
    found = topk_kl(hidden_ND, lm_head_VD, ids_NK, logprobs_NK, teacher_tail_N=tail_N, labels_N=case.labels_N.int(), impl=impl)
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)


@pytest.mark.parametrize("impl", FUSED)
def test_autocast_changes_nothing_on_a_cpu(impl):
    """Logits stay float32 under bfloat16 autocast (linkedin/Liger-Kernel#1283)."""
    case = made(dtype=F32)
    parts, grads = run(case, impl)
    with torch.autocast("cpu", torch.bfloat16):
        cast_parts, cast_grads = run(case, impl)
    assert parts.loss.item() == cast_parts.loss.item()
    assert all(torch.equal(a, b) for a, b in zip(grads, cast_grads, strict=True))


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(
    "types", [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, F32), (F32, torch.bfloat16), (torch.float16, torch.float16)]
)
def test_narrow_inputs(impl, types):
    """bfloat16 near KL 5e-4: loss to 1e-4, gradients to the rounding of the result, over many chunks (linkedin/Liger-Kernel#512)."""
    case = made(n=64, v=1000, d=32, k=100, noise=0.03, bias=False, dtype=types[0])
    case = case.changed(lm_head_VD=case.lm_head_VD.to(types[1]))
    truth, truth_grads = run(case, "reference", torch.float64)
    parts, grads = run(case, impl, chunk_tokens=4)
    assert [grad.dtype for grad in grads] == list(types)
    assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=1e-4)
    assert all(distance(grad, true) <= 3e-3 for grad, true in zip(grads, truth_grads, strict=True))


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_bfloat16_near_the_optimum(impl, divergence, tail):
    """KL of about 5e-4 from bfloat16 inputs: loss within 1e-4 of float64, both gradients within 3e-3, in every mode."""
    case = made(n=64, v=1000, d=32, k=100, noise=0.03, bias=False, dtype=torch.bfloat16)
    truth, truth_grads = run(case, "reference", torch.float64, divergence=divergence, tail=tail)
    if (divergence, tail) == ("forward_kl", "bucket"):
        assert truth.kl.item() / 64 < 6e-4
    parts, grads = run(case, impl, chunk_tokens=16, divergence=divergence, tail=tail)
    assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=1e-4)
    assert all(distance(grad, true) <= 3e-3 for grad, true in zip(grads, truth_grads, strict=True))


def test_tied_embeddings_get_both_gradients():
    """One weight as embedding and head (NVIDIA-NeMo/RL#2363)."""
    case = made(v=13, d=4, bias=False)
    totals = {}
    for impl in ("reference", "chunked"):
        weight_VD = case.lm_head_VD.clone().requires_grad_()
        call(case, (weight_VD[torch.arange(7)].tanh(), weight_VD, None), impl=impl).loss.backward()
        totals[impl] = weight_VD.grad
    torch.testing.assert_close(totals["chunked"], totals["reference"], atol=1e-12, rtol=0)


def test_auto_says_once_what_it_chose(caplog):
    case = made(dtype=F32)
    choice.say_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="distill_core.losses"):
        for _ in range(3):
            call(case, case.student())
    assert [record.getMessage() for record in caplog.records] == ["loss: using impl='chunked', because the student is on cpu"]


def test_auto_on_a_gpu(monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(choice, "has_triton", lambda: True)
    assert choice.choose(gpu, F32) == ("triton", "the student is on CUDA")
    assert choice.choose(gpu, torch.float64) == ("chunked", "the student is float64")
    monkeypatch.setattr(choice, "has_triton", lambda: False)
    assert choice.choose(gpu, F32) == ("chunked", "triton is not installed")


def test_works_without_triton():
    """Not installed: said once, and everything but that implementation is there."""
    code = """
import logging, sys
sys.modules["triton"] = None
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
import torch
from distill_core.losses import available_impls, topk_kl
topk_kl(torch.ones(1, 2), torch.ones(3, 2), torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]]).log(), tail="renormalize")
print(available_impls())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    said = "loss: using impl='chunked', because the student is on cpu\n['reference', 'chunked', 'tiled']\n"
    assert done.stdout == said, done.stderr[-2000:]


def test_public_names():
    assert sorted(door.__all__) == [
        "IGNORE_INDEX",
        "LossParts",
        "Workspace",
        "available_impls",
        "check_targets",
        "default_chunk_tokens",
        "gap_rows",
        "loss_floor",
        "topk_kl",
    ]
    assert available_impls()[:3] == ["reference", "chunked", "tiled"]


@pytest.mark.parametrize(
    ("vocab_size", "device", "expected"), [(32000, "cpu", 512), (151936, "cpu", 256), (151936, "cuda", 1664), (8000, "cuda", 2048)]
)
def test_chunk_follows_the_vocabulary(vocab_size, device, expected):
    assert choice.default_chunk_tokens(vocab_size, torch.device(device)) == expected
