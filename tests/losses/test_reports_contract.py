"""Public reports about the autograd contract, scale and distribution: the input that exposes each, here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loss_cases import FUSED, IMPLS, CountProducts, LargestTensor, assert_no_worse, call, made, run

from distill_core.errors import LossInputError, ModelError
from distill_core.heads import head_module
from distill_core.losses import Workspace, tiled, topk_kl

F32 = torch.float32
HERE = Path(__file__).parent


def rows_of(case, rows):
    return case.changed(**{name: getattr(case, name)[rows] for name in ("hidden_ND", "ids_NK", "logprobs_NK", "tail_N", "labels_N")})


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("lengths", [[2, 2, 2, 2, 16, 16, 16, 16], [4, 4, 4, 4]])
@pytest.mark.parametrize("divides", ["inside", "outside"])
def test_report_28_gradient_accumulation(impl, lengths, divides):
    """A norm 1.78 times too large, or 4 times for equal micro-batches. https://github.com/huggingface/trl/issues/4719
    https://github.com/huggingface/trl/issues/6006 https://github.com/huggingface/trl/issues/6452
    https://github.com/MakazhanAlpamys/Soup/issues/720

    Sums, divided once by the step's tokens: two micro-batches, or one for each sequence, give the gradient of the whole.
    """
    total = sum(lengths)
    case = made(n=total, dtype=F32)
    _, (_, whole_VD, _) = run(case, impl, divisor=total)
    half = total if len(lengths) == 4 else sum(lengths[:4])
    for cuts in ([half, total - half], lengths):
        student, start = case.student(), 0
        for length in cuts:
            piece = rows_of(case, slice(start, start + length))
            inputs = (student[0][start : start + length], *student[1:])
            if divides == "inside":
                call(piece, inputs, impl=impl, divisor=torch.tensor(total)).loss.backward()
            else:
                (call(piece, inputs, impl=impl).loss / total).backward()
            start += length
        assert (student[1].grad.norm() / whole_VD.norm()).item() == pytest.approx(1.0, abs=1e-5)
        torch.testing.assert_close(student[1].grad, whole_VD, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_29_evaluation_loss_a_thousand_times_too_big(impl):
    """Sums in evaluation, means in training. https://github.com/axolotl-ai-cloud/axolotl/pull/3271"""
    case = made(n=9, ignored=2, dtype=F32)
    training = call(case, case.student(), impl=impl, ce_weight=0.5, divisor=7)
    with torch.no_grad():
        evaluation = call(case, case.student(), impl=impl, ce_weight=0.5, divisor=7)
    assert evaluation.loss.item() == training.loss.item()
    assert evaluation.num_valid == 7


@pytest.mark.parametrize("impl", IMPLS)
def test_report_31_scaled_upstream_and_retained_graph(impl):
    """In-place scaling, or grad_output ignored. https://github.com/Dao-AILab/quack/pull/209
    https://github.com/unslothai/unsloth-zoo/pull/610 https://github.com/pytorch/torchtitan/pull/3250
    https://github.com/unslothai/unsloth-zoo/pull/434

    (3 loss).backward() twice is six times the gradient; a scaler's 65,536 comes through; autograd.grad leaves no .grad behind.
    """
    case = made(dtype=F32)
    _, grads = run(case, impl)
    student = case.student()
    loss = 3.0 * call(case, student, impl=impl).loss
    loss.backward(retain_graph=True)
    loss.backward()
    for leaf, grad in zip(student, grads, strict=True):
        torch.testing.assert_close(leaf.grad, 6 * grad)
    student = case.student()
    scaled = torch.autograd.grad(call(case, student, impl=impl).loss * 65536.0, student)
    assert all(leaf.grad is None for leaf in student)
    for found, grad in zip(scaled, grads, strict=True):
        torch.testing.assert_close(found / 65536.0, grad)
    student = case.student()
    first = call(case, student, impl=impl).loss
    (first + 2 * call(case, student, impl=impl).loss).backward()
    torch.testing.assert_close(student[1].grad, 3 * grads[1])


@pytest.mark.parametrize("impl", FUSED)
def test_report_32_frozen_head_builds_its_gradient(impl):
    """A [V, D] gradient of a head that does not learn. https://github.com/PrimeIntellect-ai/prime-rl/pull/3011
    https://github.com/linkedin/Liger-Kernel/pull/1441 https://github.com/huggingface/trl/pull/7076

    No .grad, nothing of a tenth of the head's size; frozen hidden states with a learning head; no gradient work under no_grad.
    """
    case = made(n=32, v=5000, d=256, k=5, bias=False, dtype=F32)
    hidden_ND, lm_head_VD, _ = case.student()
    with LargestTensor(lm_head_VD) as seen:
        call(case, (hidden_ND, lm_head_VD.detach(), None), impl=impl, chunk_tokens=2).loss.backward()
    assert lm_head_VD.grad is None
    assert seen.nbytes < 0.1 * lm_head_VD.nbytes
    _, (_, expected_VD) = run(case, impl)
    call(case, (hidden_ND.detach(), lm_head_VD, None), impl=impl).loss.backward()
    torch.testing.assert_close(lm_head_VD.grad, expected_VD)
    with torch.no_grad(), CountProducts() as products:
        assert not call(case, (hidden_ND, lm_head_VD, None), impl=impl, chunk_tokens=32).loss.requires_grad
    assert products.count == (5 if impl == "tiled" else 1)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_33_tied_embeddings(impl):
    """A tied head's weight came as None. https://github.com/NVIDIA-NeMo/RL/pull/2363 https://github.com/paiml/entrenar/issues/314"""
    case = made(bias=False, dtype=F32)
    totals = {}
    for name in ("reference", impl):
        weight_VD = case.lm_head_VD.clone().requires_grad_()
        call(case, (weight_VD[torch.arange(7)].tanh(), weight_VD, None), impl=name).loss.backward()
        totals[name] = weight_VD.grad
    torch.testing.assert_close(totals[impl], totals["reference"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_34_adapter_on_the_head(impl):
    """LoRA on lm_head dropped without a word. https://github.com/huggingface/trl/issues/4612

    A head that carries an adapter is refused by name, as a module and in a model; base + B A as the weight trains A and B rightly.
    """
    case = made(bias=False, dtype=F32)

    class Lora(torch.nn.Module):
        base_layer = torch.nn.Linear(4, 13)
        weight = base_layer.weight

    class Model(torch.nn.Module):
        def get_output_embeddings(self):
            return Lora()

    with pytest.raises(ModelError, match=r"carries an adapter \(Lora\)"):
        head_module(Model())
    with pytest.raises(LossInputError, match=r"lm_head_VD is a module \(Lora\), not a tensor"):
        call(case, (case.hidden_ND, Lora(), None), impl=impl)
    grads = {}
    for name in ("reference", impl):
        torch.manual_seed(0)
        a_RD, b_VR = torch.randn(2, 4, requires_grad=True), torch.randn(13, 2, requires_grad=True)
        loss = call(case, (case.hidden_ND, case.lm_head_VD + 0.5 * b_VR @ a_RD, None), impl=name).loss
        grads[name] = torch.autograd.grad(loss, [a_RD, b_VR])
    for found, true in zip(grads[impl], grads["reference"], strict=True):
        torch.testing.assert_close(found, true, atol=1e-5, rtol=1e-5)


def test_report_35_compiled_with_ignored_rows():
    """61.73 instead of 21.40 under torch.compile. https://github.com/linkedin/Liger-Kernel/pull/1338
    https://github.com/pytorch/pytorch/issues/141639

    The same value, whole graph, at most one more graph for another length (test_compiled.py has the gradients and the rest).
    """
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda case, student: call(case, student, ce_weight=1.0).loss, fullgraph=True, backend=counter)
    for n, ignored in ((8, 3), (13, 6), (21, 1)):
        case = made(n=n, ignored=ignored, dtype=F32)
        student = case.student()
        loss = compiled(case, student)
        loss.backward()
        expected, grads = run(case, "chunked", ce_weight=1.0)
        assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
        torch.testing.assert_close(student[1].grad, grads[1])
    assert counter.frame_count <= 2
    torch._dynamo.reset()


@pytest.mark.parametrize("impl", ["reference", "chunked", "tiled"])
def test_report_37_offsets_beyond_31_bits(impl):
    """Illegal access where N x V or a stride passes 2^31. https://github.com/fla-org/flash-linear-attention/issues/1080
    https://github.com/databricks/megablocks/pull/186 https://github.com/apple/ml-cross-entropy/issues/37
    https://github.com/linkedin/Liger-Kernel/issues/916

    Inputs whose rows lie 2^28 elements apart, in memory that is never touched between them; kernels add 64-bit row offsets (the
    GPU's own test has 16,384 x 151,936 logits).
    """
    case = made(n=3, d=4, dtype=F32)
    expected, expected_grads = run(case, impl)
    stride = 2**28 + 1
    storage = torch.empty(2 * stride + 4)
    hidden_ND = storage.as_strided((3, 4), (stride, 1))
    hidden_ND.copy_(case.hidden_ND)
    found, grads = run(case.changed(hidden_ND=hidden_ND), impl)
    assert found.loss.item() == expected.loss.item()
    torch.testing.assert_close(grads[1], expected_grads[1])


@pytest.mark.gpu
def test_report_37_more_than_two_billion_logits():
    """16,384 x 151,936 in one chunk on a GPU: the last row is what it is alone. https://github.com/linkedin/Liger-Kernel/issues/916"""
    torch.manual_seed(0)
    hidden_ND, head_VD = torch.randn(16384, 8, device="cuda"), torch.randn(151936, 8, device="cuda")
    logprobs_NK, ids_NK = torch.randn(16384, 40, device="cuda").log_softmax(-1).topk(10)
    tail_N = torch.full((16384,), -1.0, device="cuda")
    for impl in ("triton", "chunked"):
        leaf = hidden_ND.clone().requires_grad_()
        topk_kl(leaf, head_VD, ids_NK, logprobs_NK, teacher_tail_N=tail_N, impl=impl, chunk_tokens=16384).loss.backward()
        last = hidden_ND[-1:].clone().requires_grad_()
        topk_kl(last, head_VD, ids_NK[-1:], logprobs_NK[-1:], teacher_tail_N=tail_N[-1:], impl=impl).loss.backward()
        torch.testing.assert_close(leaf.grad[-1:], last.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("is_training", [True, False])
def test_report_38_sharded_or_empty_head(is_training):
    """Size mismatch, division by zero. https://github.com/linkedin/Liger-Kernel/issues/332
    https://github.com/huggingface/trl/issues/3368 https://github.com/huggingface/trl/pull/6384
    https://github.com/linkedin/Liger-Kernel/pull/1289

    ZeRO-3's empty weight and FSDP's flat shard: one clear error, in training and evaluation. FSDP2's shard: the test below.
    """
    case = made(dtype=F32, bias=False)
    with torch.set_grad_enabled(is_training):
        for weight, words in (
            (torch.zeros(0), "is empty, shape .0,.*deepspeed.zero.GatheredParameters"),
            (torch.zeros(0, 4), "is empty, shape .0, 4.*must be gathered first"),
            (torch.zeros(26), "must have 2 dimensions, got shape .26,.*FSDP.summon_full_params"),
        ):
            with pytest.raises(LossInputError, match=words):
                call(case, (case.hidden_ND, torch.nn.Parameter(weight), None))


@pytest.mark.slow
def test_report_38_sharded_head_in_two_processes(tmp_path):
    """FSDP2's shard is gathered, its gradient averaged and sharded again; DDP's is averaged: both are that of one process with both
    batches, and evaluation agrees. https://github.com/linkedin/Liger-Kernel/issues/332"""
    command = [sys.executable, str(HERE / "sharded_worker.py")]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "OMP_NUM_THREADS": "1"}
    pair = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in pair:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said[-3000:]


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(
    "knobs", [{"logit_softcap": 30.0}, {"logit_scale": 1 / 8}, {"logit_scale": 1 / 16, "logit_softcap": 30.0}], ids=str
)
def test_report_39_softcap_and_scale(impl, knobs):
    """7.8986 for 2.0203: caps and scales dropped. https://github.com/apple/ml-cross-entropy/issues/48
    https://github.com/unslothai/unsloth/pull/11277 https://github.com/unslothai/unsloth-zoo/pull/593

    Logits of +-124 under a cap of 30, Cohere's 1/16, Granite's 1/8; finite differences are in test_chunked.py.
    """
    case = made(n=9, v=60, d=8, k=9, bias=False, dtype=F32)
    case = case.changed(hidden_ND=case.hidden_ND * (124 / (case.hidden_ND @ case.lm_head_VD.T).abs().max()))
    assert_no_worse(case, impl, ce_weight=0.5, **knobs)
    plain, capped = (call(case, case.student(), impl=impl, **given).loss.item() for given in ({}, knobs))
    assert abs(plain - capped) > 1.0


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("doubled", ["n", "v"])
def test_report_40_top_k_that_still_builds_logits(impl, doubled, monkeypatch):
    """Out of memory although only K logits count. https://github.com/verl-project/verl/issues/6810

    At a fixed budget of elements, the largest tensor grows by less than a hundredth when tokens or vocabulary double.
    """
    monkeypatch.setattr(tiled, "TILE", 64)
    sizes = []
    for factor in (1, 2):
        n, v = (64 * factor, 640) if doubled == "n" else (64, 640 * factor)
        case = made(n=n, v=v, d=2, k=3, bias=False, dtype=F32)
        student = case.student()
        chunk_tokens = 64 if impl == "tiled" else 64 * 640 // v
        with LargestTensor(*student) as seen:
            call(case, student, impl=impl, chunk_tokens=chunk_tokens, workspace=Workspace()).loss.backward()
        sizes.append(seen.nbytes)
    assert sizes[1] < 1.01 * sizes[0]
    assert sizes[0] <= (64 * 640 if impl != "tiled" else 64 * 64) * 4
