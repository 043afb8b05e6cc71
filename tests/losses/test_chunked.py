"""The fused gradient: right by finite differences, exact where it should be, and small in memory."""

import itertools

import pytest
import torch
from loss_cases import FUSED, MODES, CountProducts, LargestTensor, assert_no_worse, call, made, peak_of_all_memory, run
from torch.autograd import gradcheck

GRADCHECKS = [(*mode, ce_weight, temperature) for mode, ce_weight, temperature in itertools.product(MODES, (0.0, 0.6), (0.7, 1.0, 2.0))]


@pytest.mark.parametrize(("divergence", "tail", "ce_weight", "temperature"), GRADCHECKS)
def test_gradient_by_finite_differences(divergence, tail, ce_weight, temperature):
    """Every element of hidden states, head and bias, in float64; two chunks, the last one short."""
    case = made(n=3, v=7, d=2, k=3, temperature=temperature)
    knobs = {"divergence": divergence, "tail": tail, "ce_weight": ce_weight, "temperature": temperature}
    assert gradcheck(lambda *student: call(case, student, impl="chunked", chunk_tokens=2, kl_weight=0.8, **knobs).loss, case.student())


@pytest.mark.parametrize("ce_weight", [0.0, 0.6])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_gradient_with_softcap_and_scale(divergence, tail, temperature, ce_weight):
    case = made(n=3, v=7, d=2, k=3, temperature=temperature)
    knobs = {"divergence": divergence, "tail": tail, "ce_weight": ce_weight, "temperature": temperature, "logit_softcap": 1.5}
    assert gradcheck(lambda *student: call(case, student, impl="chunked", logit_scale=0.6, **knobs).loss, case.student())


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_t_squared_is_in_the_gradient_too(impl, divergence, tail):
    """Central difference of the reported loss along a random direction at T = 2 (axolotl and others scale the value alone)."""
    dtype = torch.float32 if impl == "triton" else torch.float64
    case = made(n=9, v=127, d=8, k=7, temperature=2.0, dtype=dtype)
    knobs = {"impl": impl, "divergence": divergence, "tail": tail, "temperature": 2.0}
    _, (hidden_grad_ND, *_) = run(case, **knobs)
    direction_ND = torch.randn(9, 8, dtype=dtype)
    step = 1e-2 if impl == "triton" else 1e-5
    up, down = (
        call(moved, moved.student(), **knobs)
        for moved in (case.changed(hidden_ND=case.hidden_ND + sign * step * direction_ND) for sign in (1, -1))
    )
    slope = (up.loss.double() - down.loss.double()).item() / (2 * step)
    rounding = 1e-4 * float(hidden_grad_ND.norm() * direction_ND.norm()) if impl == "triton" else 0.0  # the value is float32
    expected = (hidden_grad_ND * direction_ND).sum().item()
    assert slope == pytest.approx(expected, rel=2e-3 if impl == "triton" else 1e-6, abs=rounding)


SHAPES = [(n, v, k) for n, v, k in itertools.product((1, 31, 33), (127, 1000), (1, 7, 100))]


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(("n", "v", "k"), SHAPES)
def test_odd_shapes(impl, n, v, k):
    """Chunks of every kind: one token, a short last one, more than there are; no dimension is a power of two (verl#2899)."""
    mode = MODES[(n + v + k) % len(MODES)]
    case = made(n=n, v=v, d=7, k=k, temperature=2.0, ignored=n // 3, dtype=torch.float32)
    for chunk_tokens in (1, 10, None) if impl == "chunked" else (10,):
        knobs = {"divergence": mode[0], "tail": mode[1], "chunk_tokens": chunk_tokens, "temperature": 2.0, "ce_weight": 0.4}
        assert_no_worse(case, impl, **knobs)


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("noise", [0.03, 2.0])
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_no_worse_than_dense_code(impl, divergence, tail, noise):
    """Near the optimum (KL about 5e-4), where the gradient is a small difference, and far from it."""
    case = made(n=31, v=1000, d=32, k=100, noise=noise, dtype=torch.float32)
    assert_no_worse(case, impl, divergence=divergence, tail=tail, chunk_tokens=12)


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize(
    "knobs", [{}, {"temperature": 2.0, "ce_weight": 0.5}, {"logit_softcap": 5.0}], ids=["plain", "two temperatures", "softcap"]
)
def test_never_builds_tokens_times_vocabulary(impl, knobs):
    case = made(n=96, v=304, d=8, k=5, dtype=torch.float32)
    with LargestTensor() as seen:
        call(case, case.student(), impl=impl, chunk_tokens=16, **knobs).loss.backward()
    assert seen.nbytes <= 16 * 304 * 4, f"built {seen.nbytes:,} bytes at once"


@pytest.mark.parametrize("impl", FUSED)
def test_memory_does_not_grow_with_the_tokens(impl):
    sizes = []
    for n in (32, 64):
        case = made(n=n, v=704, d=4, k=5, dtype=torch.float32)
        with LargestTensor() as seen:
            call(case, case.student(), impl=impl, chunk_tokens=8).loss.backward()
        sizes.append(seen.nbytes)
    assert sizes[0] == sizes[1] == 8 * 704 * 4


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("knobs", [{}, {"temperature": 2.0, "ce_weight": 0.5}, {"logit_softcap": 5.0}], ids=str)
def test_all_memory_in_use_does_not_grow_with_the_tokens(impl, knobs):
    """The sum of what is alive, beyond inputs and gradients, grows by less than 1 % when N doubles; the reference's doubles."""

    def peak(n, impl):
        case = made(n=n, v=5000, d=4, k=2, bias=False, dtype=torch.float32)
        student = case.student()
        seen = peak_of_all_memory(lambda: call(case, student, impl=impl, chunk_tokens=32, **knobs).loss.backward())
        return seen - sum(leaf.grad.nbytes for leaf in student if leaf is not None)

    ours = [peak(n, impl) for n in (64, 128)]
    assert ours[0] >= 32 * 1024 * 4, "at least a chunk of one tile of logits"
    assert ours[1] <= 1.01 * ours[0], f"{ours[0]:,} bytes, then {ours[1]:,}"
    if impl == "chunked" and not knobs:
        assert peak(256, "reference") > 1.9 * peak(128, "reference")


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_head_costs_no_room(impl, dtype):
    """No gradient, and nothing as large as the head, not even a wider copy of it (huggingface/trl#7076)."""
    case = made(n=32, v=5008, d=64, k=5, bias=False, dtype=dtype)
    hidden_ND, lm_head_VD, _ = case.student()
    lm_head_VD.requires_grad_(False)
    with LargestTensor(lm_head_VD) as seen:
        call(case, (hidden_ND, lm_head_VD, None), impl=impl, chunk_tokens=4).loss.backward()
    assert lm_head_VD.grad is None
    assert seen.nbytes <= 4 * (4 * 5008 if dtype == torch.float32 else 2048 * 64), f"built {seen.nbytes:,} bytes at once"


def products_of(case, student, **knobs):
    with CountProducts() as seen:
        loss = call(case, student, impl="chunked", chunk_tokens=5, **knobs).loss
        if loss.requires_grad:
            loss.backward()
    return seen.count


def test_only_the_products_that_someone_needs():
    """Two chunks: three products each, two with a frozen head or frozen hidden states, one without gradients, half for half the rows."""
    case = made(n=10, dtype=torch.float32, bias=False)
    hidden_ND, lm_head_VD, _ = case.student()
    assert products_of(case, (hidden_ND, lm_head_VD, None)) == 6
    assert products_of(case, (hidden_ND, lm_head_VD.detach(), None)) == 4
    assert products_of(case, (hidden_ND.detach(), lm_head_VD, None)) == 4
    half_N = torch.where(torch.arange(10) % 2 == 0, case.labels_N, -100)
    assert products_of(case.changed(labels_N=half_N), (hidden_ND, lm_head_VD, None)) == 3
    with torch.no_grad():
        assert products_of(case, (hidden_ND, lm_head_VD, None)) == 2


def test_no_grad_gives_the_same_values():
    case = made(n=10)
    with_graph = call(case, case.student(), impl="chunked", ce_weight=0.5)
    with torch.no_grad():
        without = call(case, case.student(), impl="chunked", ce_weight=0.5)
    assert not without.loss.requires_grad
    assert [part.item() for part in with_graph] == [part.item() for part in without]
