"""The three products: wide heads, heads widened piece by piece, and the GPU's narrow ones with the mixed product replaced."""

import pytest
import torch
from loss_cases import assert_no_worse, distance, made, run

from distill_core.losses import chunked, fused, products
from distill_core.multipliers import by_onednn, is_onednn_faster

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize("pieces", [1, 3, 127])
def test_widening_in_pieces_is_widening_at_once(monkeypatch, pieces):
    monkeypatch.setattr(products, "WIDEN_ROWS", pieces)
    case = made(n=9, v=127, d=8, k=7, dtype=BF16)
    parts, grads = run(case, "chunked", chunk_tokens=4)
    wide = case.changed(hidden_ND=case.hidden_ND.float(), lm_head_VD=case.lm_head_VD.float(), bias_V=case.bias_V.float())
    wide_parts, wide_grads = run(wide, "chunked", chunk_tokens=4)
    assert parts.loss.item() == pytest.approx(wide_parts.loss.item(), rel=1e-6)
    for grad, wide_grad in zip(grads, wide_grads, strict=True):
        assert distance(grad, wide_grad.to(BF16)) < 1e-3


@pytest.mark.parametrize(
    "knobs", [{}, {"temperature": 2.0, "ce_weight": 0.5}, {"logit_scale": 0.25, "logit_softcap": 20.0}, {"vocab_size": 1000}]
)
def test_narrow_products_round_nothing_but_the_gradient(monkeypatch, knobs):
    """The arithmetic that a GPU does with bfloat16 inputs, here with exact products of the same rounded values."""
    monkeypatch.setattr(fused, "narrow_dtype", lambda *_: BF16)
    monkeypatch.setattr(products, "mixed_mm", lambda a, b, out: torch.mm(a.float(), b.float(), out=out))
    monkeypatch.setattr(products, "mixed_addmm", lambda a, b, out: out.addmm_(a.float(), b.float()))
    case = made(n=64, v=1001, d=32, k=100, noise=0.1, temperature=knobs.get("temperature", 1.0), dtype=BF16)
    if "vocab_size" in knobs:  # the row beyond it must not be among the targets
        case = case.changed(ids_NK=torch.arange(100).expand(64, 100), labels_N=case.labels_N.clamp(max=999))
    truth, truth_grads = run(case, "reference", torch.float64, **knobs)
    parts, grads = run(case, "chunked", chunk_tokens=10, **knobs)
    assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=1e-4)
    assert all(distance(grad, true) <= 5e-3 for grad, true in zip(grads, truth_grads, strict=True))


def test_mixed_products_are_what_torch_offers():
    """The two calls that only a GPU can run exist with these names and arguments."""
    assert "out_dtype" in str(torch.ops.aten.mm.dtype_out._schema)
    assert "out_dtype" in str(torch.ops.aten.addmm.dtype_out._schema)


@pytest.mark.parametrize(
    ("device_type", "autocast", "dtypes", "expected"),
    [
        ("cpu", BF16, (BF16, BF16), None),
        ("cuda", None, (F32, F32), None),
        ("cuda", None, (F32, BF16), BF16),
        ("cuda", None, (F16, F32), F16),
        ("cuda", BF16, (F32, F32), BF16),
        ("cuda", BF16, (F64, F32), None),
    ],
)
def test_when_products_are_narrow(device_type, autocast, dtypes, expected):
    assert products.narrow_dtype(device_type, autocast, *dtypes) == expected


@pytest.mark.parametrize(
    ("hidden", "head", "is_faster", "expected"),
    [(BF16, BF16, False, True), (F32, BF16, False, False), (F32, F32, False, False), (F32, F32, True, True), (F64, F64, True, False)],
)
def test_when_products_go_to_onednn(monkeypatch, hidden, head, is_faster, expected):
    """Bfloat16 inputs anywhere, float32 where nothing is lost; never float64, never a handful of tokens."""
    monkeypatch.setattr(products, "is_onednn_faster", lambda: is_faster)
    inputs = torch.zeros(512, 64, dtype=hidden), torch.zeros(2048, 64, dtype=head)
    assert products.goes_to_onednn(*inputs, 512) is expected
    assert not products.goes_to_onednn(*inputs, 16)
    assert not products.goes_to_onednn(inputs[0][:100], inputs[1], 512)


@pytest.mark.parametrize("impl", ["chunked", "tiled"])
@pytest.mark.parametrize("knobs", [{}, {"temperature": 2.0, "ce_weight": 0.5}, {"logit_softcap": 3.0}], ids=str)
def test_chunks_filled_up_and_sums_in_parts_change_nothing(monkeypatch, impl, knobs):
    """A last chunk of 5 rows filled up to 32, logits summed in parts: the same values, also with bias and softcap."""
    case = made(n=69, v=300, d=20, temperature=knobs.get("temperature", 1.0))
    parts, grads = run(case, impl, chunk_tokens=64, **knobs)
    monkeypatch.setattr(products, "PART_ROWS", 128)
    monkeypatch.setattr(products, "PART_WIDTH", 8)
    real = fused.Job
    monkeypatch.setattr(fused, "Job", lambda **given: real(**{**given, "is_by_onednn": True, "in_parts": True}))
    filled, filled_grads = run(case, impl, chunk_tokens=64, **knobs)
    for found, expected in zip((*filled, *filled_grads), (*parts, *grads), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_chunks_are_of_few_sizes():
    """Whatever the number of tokens, products have a multiple of 32 rows, within the chunk asked for."""
    for num_tokens in range(1, 700):
        chunk = chunked.even_chunk(num_tokens, 250, products.ROW_MULTIPLE)
        assert chunk % 32 == 0
        assert chunk <= 224


def test_products_by_onednn_lose_nothing():
    """Logits and gradients of bfloat16 inputs, before their last rounding, at sizes where the fast units are used: float32's digits."""
    torch.manual_seed(0)
    h, w = torch.randn(256, 512).to(BF16), torch.randn(4096, 512).to(BF16)
    dx = torch.randn(256, 4096) * torch.rand(256, 1)
    with by_onednn(is_on=True):
        logits, dh, dw = h.float() @ w.float().T, dx @ w.float(), torch.zeros(4096, 512).addmm_(dx.T, h.float())
    for found, true in zip(
        (logits, dh, dw), (h.double() @ w.double().T, dx.double() @ w.double(), dx.double().T @ h.double()), strict=True
    ):
        assert distance(found, true) < 2e-3
    assert distance(logits, h.double() @ w.double().T) < 1e-6


@pytest.mark.parametrize("noise", [0.03, 2.0])
def test_onednn_is_no_worse_than_dense_code(noise):
    """At a size that goes there where it is faster: float32's own error near the optimum and far from it."""
    case = made(n=70, v=8192, d=256, k=50, noise=noise, bias=False, dtype=F32)
    case = case.changed(lm_head_VD=case.lm_head_VD / 8)
    assert products.goes_to_onednn(case.hidden_ND, case.lm_head_VD, 64) == is_onednn_faster()
    assert_no_worse(case, "chunked", chunk_tokens=64)
