"""Public reports about NaN, infinity and precision: the input that exposes each, here."""

import math

import pytest
import torch
from loss_cases import FUSED, IMPLS, MODES, assert_no_worse, call, distance, made, run, with_teacher

from distill_core.losses import IGNORE_INDEX

F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("gap", [25.0, 40.0, 80.0])
@pytest.mark.parametrize("tail", ["bucket", "drop", "renormalize"])
def test_report_21_one_minus_a_hundred_millionth(impl, gap, tail):
    """In float32 1 - 1e-8 is 1: gradients of NaN for a sure student. https://github.com/arcee-ai/DistillKit/issues/45

    The student's tail 25 to 80 below its head; the stored probabilities, rounded, sum to 1.0005.
    """
    torch.manual_seed(0)
    logits_NV = torch.randn(4, 50)
    logits_NV[:, :5] += gap
    teacher_NV = torch.randn(4, 50, dtype=torch.float64) * 0.3
    teacher_NV[:, :5] += gap / 4
    case = with_teacher(torch.eye(4), logits_NV.T.contiguous(), None, teacher_NV, torch.randint(0, 50, (4,)), top_k=5)
    assert_no_worse(case, impl, tail=tail, ce_weight=0.5)
    heavy = case.changed(logprobs_NK=case.logprobs_NK + math.log(1.0005))
    parts, grads = run(heavy, impl, tail=tail)
    assert torch.isfinite(parts.loss)
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_report_22_padding_entries_of_minus_infinity(impl, divergence, tail):
    """Reverse KL was finite, its gradient NaN. https://github.com/huggingface/trl/pull/5594

    Rows of different length, padded with (-inf, id 0), where id 0 is stored for real in the same row.
    """
    case = made(dtype=F32)
    case.ids_NK[:, 0], case.ids_NK[:, 1:] = 0, torch.tensor([1, 2, 3, 4])
    padded = case.changed(
        ids_NK=torch.cat([case.ids_NK, torch.zeros(7, 2, dtype=torch.int64)], -1),
        logprobs_NK=torch.cat([case.logprobs_NK, torch.full((7, 2), -math.inf)], -1),
    )
    knobs = {"divergence": divergence, "tail": tail}
    (parts, grads), (plain, plain_grads) = run(padded, impl, **knobs), run(case, impl, **knobs)
    assert parts.loss.item() == pytest.approx(plain.loss.item(), rel=1e-6, abs=1e-6)
    for grad, plain_grad in zip(grads, plain_grads, strict=True):
        torch.testing.assert_close(grad, plain_grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
def test_report_24_tokens_that_neither_side_can_say(impl, divergence):
    """-inf minus -inf, times 0. https://github.com/p-e-w/heretic/pull/348 https://github.com/google-deepmind/optax/pull/1786"""
    case = made(dtype=F32)
    bias_V = torch.cat([case.bias_V, torch.full((2,), -math.inf)])
    wider = case.changed(lm_head_VD=torch.cat([case.lm_head_VD, torch.randn(2, 4)]), bias_V=bias_V)
    knobs = {"divergence": divergence, "ce_weight": 0.5}
    (parts, grads), (plain, _) = run(wider, impl, **knobs), run(case, impl, **knobs)
    assert parts.loss.item() == pytest.approx(plain.loss.item(), rel=1e-6)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert not grads[1][-2:].any()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("n", [0, 5])
def test_report_25_a_batch_with_nothing_to_learn(impl, n):
    """0/0, or a constant without a graph, on which DDP hangs. https://github.com/microsoft/LMOps/issues/38
    https://github.com/NVIDIA-NeMo/Automodel/issues/3796 https://github.com/meta-pytorch/torchtune/issues/2341
    https://github.com/huggingface/trl/pull/6859

    Every label -100, or no row at all: loss 0 with a graph, gradients of zeros.
    """
    case = made(n=5, dtype=F32)
    fields = ("hidden_ND", "ids_NK", "logprobs_NK", "tail_N")
    case = case.changed(labels_N=torch.full((n,), IGNORE_INDEX), **{name: getattr(case, name)[:n] for name in fields})
    student = case.student()
    parts = call(case, student, impl=impl, ce_weight=0.5, z_loss_weight=0.1, divisor=torch.tensor(1.0))
    assert parts.loss.item() == 0.0
    assert parts.loss.requires_grad
    parts.loss.backward()
    assert all(torch.equal(leaf.grad, torch.zeros_like(leaf)) for leaf in student)


@pytest.mark.parametrize("impl", FUSED)
def test_report_26_half_precision_sums(impl):
    """The head's gradient summed in bfloat16 over chunks. https://github.com/linkedin/Liger-Kernel/issues/512
    https://github.com/linkedin/Liger-Kernel/issues/827 https://github.com/linkedin/Liger-Kernel/pull/830

    64 chunks of bfloat16: less than twice the error of rounding the exact gradient once; the loss within 1e-4.
    """
    case = made(n=64, v=300, d=32, k=50, noise=0.3, bias=False, dtype=BF16)
    truth, (_, true_VD) = run(case, "reference", torch.float64)
    parts, (_, head_grad_VD) = run(case, impl, chunk_tokens=1)
    assert distance(head_grad_VD, true_VD) < 2 * distance(true_VD.to(BF16), true_VD)
    assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=1e-4)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("hidden", [F32, BF16])
@pytest.mark.parametrize("head", [F32, BF16])
def test_report_27_types_that_meet_under_autocast(impl, hidden, head):
    """float32 parameters, bfloat16 gradients: addmm refused. https://github.com/linkedin/Liger-Kernel/pull/1283"""
    case = made(n=9, v=60, d=8, bias=False, dtype=BF16)
    case = case.changed(hidden_ND=case.hidden_ND.to(hidden), lm_head_VD=case.lm_head_VD.to(head))
    truth, true_grads = run(case, "reference", torch.float64)
    with torch.autocast("cpu", BF16):
        parts, grads = run(case, impl, chunk_tokens=4)
    assert [grad.dtype for grad in grads] == [hidden, head]
    assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=1e-5)
    assert all(distance(grad, true) <= 3e-3 for grad, true in zip(grads, true_grads, strict=True))
