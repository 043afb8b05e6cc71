"""What can be asked of the loss besides a divergence: weights, a divisor, z-loss, known rows, kept buffers, kept gradients."""

import pytest
import torch
from loss_cases import FUSED, IMPLS, CountProducts, call, made, run
from torch.autograd import gradcheck

from distill_core.errors import LossInputError
from distill_core.losses import IGNORE_INDEX, Workspace, check_targets, loss_floor, tiled, topk_kl

F32 = torch.float32
EXACT = [impl for impl in IMPLS if impl != "triton"]


@pytest.mark.parametrize("impl", [impl for impl in FUSED if impl != "triton"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("divergence", ["forward_kl", "jsd"])
def test_everything_at_once_by_finite_differences(impl, temperature, divergence, monkeypatch):
    """Weights, divisor, z-loss, cross-entropy, softcap, padding rows and several tiles, in float64."""
    monkeypatch.setattr(tiled, "TILE", 3)
    case = made(n=4, v=8, d=2, k=3, temperature=temperature)
    case = case.changed(ids_NK=torch.tensor([[0, 2, 6]]).expand(4, 3), labels_N=torch.tensor([1, 6, IGNORE_INDEX, 2]))
    knobs = {
        "weights_N": torch.tensor([0.5, 2.0, 1.0, 0.0]),
        "divisor": torch.tensor(3),
        "z_loss_weight": 0.1,
        "ce_weight": 0.3,
        "kl_weight": 0.8,
        "jsd_weight": 0.3,
        "temperature": temperature,
        "logit_softcap": 2.0,
        "vocab_size": 7,
    }
    assert gradcheck(lambda *student: call(case, student, impl=impl, divergence=divergence, chunk_tokens=2, **knobs).loss, case.student())
    parts, grads = run(case, impl, divergence=divergence, chunk_tokens=2, **knobs)
    truth, truth_grads = run(case, "reference", divergence=divergence, **knobs)
    assert [part.item() for part in parts] == pytest.approx([part.item() for part in truth], rel=1e-11)
    for grad, true in zip(grads, truth_grads, strict=True):
        torch.testing.assert_close(grad, true, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_z_loss_by_hand(impl, temperature):
    """A uniform student over three tokens: L = ln 3, whose square's gradient is 2 L / 3 for each logit."""
    teacher = torch.tensor([[0, 1]]), torch.tensor([[0.75, 0.125]]).log()
    bias_V = torch.zeros(3, requires_grad=True)
    knobs = {"teacher_tail_N": torch.tensor([0.125]).log(), "temperature": temperature, "kl_weight": 0.0, "z_loss_weight": 0.5}
    parts = topk_kl(torch.zeros(1, 2), torch.zeros(3, 2), *teacher, bias_V=bias_V, impl=impl, **knobs)
    parts.loss.backward()
    ln_3 = torch.tensor(3.0).log().item()
    assert parts.z_loss.item() == pytest.approx(ln_3**2, rel=1e-6)
    assert parts.loss.item() == pytest.approx(0.5 * ln_3**2, rel=1e-6)
    torch.testing.assert_close(bias_V.grad, torch.full((3,), ln_3 / 3))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_weight_of_two_is_the_token_twice(impl):
    case = made(n=3, dtype=F32)
    rows = [0, 1, 1]
    fields = ("hidden_ND", "ids_NK", "logprobs_NK", "tail_N", "labels_N")
    twice = case.changed(**{name: getattr(case, name)[rows] for name in fields})
    knobs = {"ce_weight": 0.5, "z_loss_weight": 0.1}
    parts, grads = run(case, impl, weights_N=torch.tensor([1.0, 2.0, 0.0]), **knobs)
    other, other_grads = run(twice, impl, **knobs)
    for name in ("loss", "kl", "ce", "z_loss"):
        assert getattr(parts, name).item() == pytest.approx(getattr(other, name).item(), rel=1e-5)
    assert parts.num_valid == 3
    for grad, other_grad in zip(grads[1:], other_grads[1:], strict=True):
        torch.testing.assert_close(grad, other_grad, atol=1e-6, rtol=1e-5)
    floor = loss_floor(case.logprobs_NK, case.tail_N, case.labels_N, case.ids_NK, ce_weight=0.5, weights_N=torch.tensor([1.0, 2.0, 0.0]))
    other_floor = loss_floor(twice.logprobs_NK, twice.tail_N, twice.labels_N, twice.ids_NK, ce_weight=0.5)
    assert floor.item() == pytest.approx(other_floor.item(), rel=1e-9)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("divisor", [8.0, torch.tensor(8), torch.tensor([8.0])])
def test_divisor_divides_loss_and_gradient_alone(impl, divisor):
    case = made(dtype=F32)
    (parts, grads), (divided, divided_grads) = run(case, impl), run(case, impl, divisor=divisor)
    assert divided.loss.item() == pytest.approx(parts.loss.item() / 8, rel=1e-6)
    assert divided.kl.item() == pytest.approx(parts.kl.item(), rel=1e-6)
    for grad, divided_grad in zip(grads, divided_grads, strict=True):
        torch.testing.assert_close(divided_grad, grad / 8, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_known_rows_are_the_rows_of_the_labels(impl):
    case = made(n=9, ignored=4, dtype=F32)
    rows = (case.labels_N != IGNORE_INDEX).nonzero().squeeze(-1)
    (parts, grads), (known, known_grads) = run(case, impl, ce_weight=0.5), run(case, impl, ce_weight=0.5, valid_rows=rows)
    assert [part.item() for part in parts] == [part.item() for part in known]
    assert all(torch.equal(a, b) for a, b in zip(grads, known_grads, strict=True))
    alone = run(case, impl, labels_N=None, valid_rows=rows)[0]
    assert alone.kl.item() == pytest.approx(parts.kl.item(), rel=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_masses_are_those_of_the_stored_entries(impl, temperature):
    """sum exp(log q) and sum p over the K (verl-project/verl#7855)."""
    case = made(temperature=temperature, dtype=F32)
    parts = call(case, case.student(), impl=impl, temperature=temperature)
    q_NV = (case.teacher_NV / temperature).softmax(-1)
    p_NV = ((case.hidden_ND @ case.lm_head_VD.T + case.bias_V).double() / temperature).softmax(-1)
    assert parts.teacher_mass.item() == pytest.approx(q_NV.gather(-1, case.ids_NK).sum().item(), rel=1e-5)
    assert parts.student_mass.item() == pytest.approx(p_NV.gather(-1, case.ids_NK).sum().item(), rel=1e-5)


@pytest.mark.parametrize("impl", FUSED)
def test_a_kept_workspace_changes_nothing(impl):
    """Also when the next call is smaller, larger, or comes before the last one's backward."""
    workspace = Workspace()
    cases = [made(n=n, v=60, dtype=F32, seed=n) for n in (9, 4, 12)]
    students = [case.student() for case in cases]
    losses = [
        call(case, student, impl=impl, chunk_tokens=5, workspace=workspace).loss for case, student in zip(cases, students, strict=True)
    ]
    assert 0 < workspace.num_bytes() <= 5 * 1024 * 4
    for case, student, loss in zip(cases, students, losses, strict=True):
        loss.backward()
        expected, grads = run(case, impl, chunk_tokens=5)
        assert loss.item() == expected.loss.item()
        assert all(torch.equal(leaf.grad, grad) for leaf, grad in zip(student, grads, strict=True))


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("has_grad", [False, True])
def test_head_gradient_in_place(impl, has_grad):
    """Three micro-batches add up in one tensor, which stays where it was; hidden states and bias as ever."""
    case = made(n=9, v=60, dtype=F32)
    ours, plain = case.student(), case.student()
    if has_grad:
        ours[1].grad, plain[1].grad = torch.ones_like(ours[1]), torch.ones_like(plain[1])
    where = None if ours[1].grad is None else ours[1].grad.data_ptr()
    for _ in range(3):
        call(case, ours, impl=impl, chunk_tokens=4, divisor=9, logit_scale=0.5, accumulate_head_grad=True).loss.backward()
        call(case, plain, impl=impl, chunk_tokens=4, divisor=9, logit_scale=0.5).loss.backward()
    assert where in (None, ours[1].grad.data_ptr())
    for leaf, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(leaf.grad, expected.grad, atol=1e-6, rtol=1e-5)


def test_a_tied_weight_gets_both_gradients_in_place():
    case = made(bias=False, dtype=F32)
    weights = [case.lm_head_VD.clone().requires_grad_() for _ in range(2)]
    for weight_VD, accumulate in zip(weights, (True, False), strict=True):
        call(case, (weight_VD[torch.arange(7)].tanh(), weight_VD, None), accumulate_head_grad=accumulate).loss.backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


def test_head_gradient_in_place_cannot_be_scaled_or_taken_twice():
    case = made(dtype=F32)
    loss = call(case, case.student(), accumulate_head_grad=True).loss
    with pytest.raises(LossInputError, match=r"scaled by 3 after it was computed.*Pass divisor="):
        (3 * loss).backward()
    loss = call(case, case.student(), accumulate_head_grad=True).loss
    loss.backward(retain_graph=True)
    with pytest.raises(LossInputError, match="backward came a second time"):
        loss.backward()


def test_where_no_gradient_can_be_kept():
    case = made(dtype=F32)
    hidden_ND, lm_head_VD, bias_V = case.student()
    with pytest.raises(LossInputError, match="computed from other tensors"):
        call(case, (hidden_ND, lm_head_VD * 2, bias_V), accumulate_head_grad=True)
    with pytest.raises(LossInputError, match="is torch.bfloat16, whose gradient"):
        call(case, case.student(torch.bfloat16), accumulate_head_grad=True)
    with pytest.raises(LossInputError, match="impl='reference' leaves gradients to autograd"):
        call(case, case.student(), impl="reference", accumulate_head_grad=True)
    with torch.no_grad():
        call(case, (hidden_ND, lm_head_VD, bias_V), accumulate_head_grad=True)
    assert lm_head_VD.grad is None
    call(case, (hidden_ND, lm_head_VD.detach(), bias_V), accumulate_head_grad=True).loss.backward()


@pytest.mark.parametrize("impl", ["chunked", "tiled"])
def test_a_kept_gradient_and_workspace_save_their_products_nothing(impl):
    case = made(n=10, bias=False, dtype=F32)
    with CountProducts() as seen:
        call(case, case.student(), impl=impl, chunk_tokens=5, workspace=Workspace(), accumulate_head_grad=True).loss.backward()
    assert seen.count == (6 if impl == "chunked" else 8)


def test_targets_are_looked_at_when_they_are_loaded():
    case = made(dtype=F32)
    good = (case.ids_NK, case.logprobs_NK.half(), case.tail_N.float(), case.labels_N)
    check_targets(*good, vocab_size=13)
    double = case.ids_NK.clone()
    double[4, 3] = double[4, 1]
    with pytest.raises(LossInputError, match=rf"holds id {int(double[4, 1])} twice in row 4"):
        check_targets(double, *good[1:], vocab_size=13)
    ignored = torch.where(torch.arange(7) == 4, IGNORE_INDEX, case.labels_N)
    check_targets(double, case.logprobs_NK, case.tail_N, ignored, vocab_size=13)
    empty = case.logprobs_NK.clone()
    empty[4, 3] = -torch.inf  # an empty entry may repeat any id
    check_targets(double, empty, case.tail_N, case.labels_N, vocab_size=13)
    heavy = case.logprobs_NK.clone()
    heavy[2] = -1.0
    with pytest.raises(LossInputError, match="valid row 2 sum to 1.839"):
        check_targets(case.ids_NK, heavy, case.tail_N, case.labels_N, vocab_size=13)


def test_rounding_to_float16_is_no_error():
    """Probabilities whose float16 logarithms sum to 1.0005 have no negative tail here (arcee-ai/DistillKit#45)."""
    logprobs_NK = torch.tensor([[0.5005, 0.25, 0.25]]).log()
    check_targets(torch.tensor([[0, 1, 2]]), logprobs_NK, torch.tensor([-20.0]), vocab_size=5)
    parts = topk_kl(torch.zeros(1, 2), torch.zeros(5, 2), torch.tensor([[0, 1, 2]]), logprobs_NK, teacher_tail_N=torch.tensor([-20.0]))
    assert torch.isfinite(parts.loss)
    assert parts.teacher_mass.item() <= 1.0


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"z_loss_weight": -1.0}, "z_loss_weight must be 0 or more, got -1.0"),
        ({"jsd_weight": 0.0}, r"jsd_weight must lie between 0 and 1, got 0.0. Near 0 the loss is jsd_weight \* forward KL"),
        ({"divisor": 0.0}, "divisor must be above 0, got 0.0"),
        ({"divisor": torch.ones(2)}, r"divisor must be one number, got shape \(2,\)"),
        ({"weights_N": torch.ones(3)}, r"weights_N must have shape \(7,\), got \(3,\)"),
        ({"weights_N": -torch.ones(7)}, "weights_N runs from -1 to -1"),
        ({"weights_N": torch.ones(7, dtype=torch.int64)}, "weights_N must be floating point"),
        ({"valid_rows": torch.ones(7)}, "valid_rows must be whole numbers"),
        ({"valid_rows": torch.ones(1, 7, dtype=torch.int64)}, "valid_rows must have 1 dimension"),
    ],
)
def test_settings_that_cannot_be(knobs, words):
    case = made(dtype=F32)
    with pytest.raises(LossInputError, match=words):
        call(case, case.student(), **knobs)
