"""The definition itself, against values worked by hand and against plain Python loops."""

import math

import pytest
import torch
from loss_cases import DIVERGENCES, IMPLS, MODES, call, made, run, with_teacher

from distill_core.losses import topk_kl


def by_hand(impl, **knobs):
    """Three tokens, uniform student; the teacher keeps (3/4, 1/8) of tokens 0 and 1, so that 1/8 is in the tail."""
    teacher = torch.tensor([[0, 1]]), torch.tensor([[0.75, 0.125]]).log()
    return topk_kl(torch.zeros(1, 2), torch.zeros(3, 2), *teacher, teacher_tail_N=torch.tensor([0.125]).log(), impl=impl, **knobs)


LN = math.log


def half_way(q, p):
    """One entry's part of the Jensen-Shannon divergence."""
    m = (q + p) / 2
    return (q * LN(q / m) if q else 0.0) / 2 + (p * LN(p / m) if p else 0.0) / 2


BY_HAND = {
    ("jsd", "bucket"): half_way(0.75, 1 / 3) + 2 * half_way(0.125, 1 / 3),
    ("jsd", "drop"): half_way(0.75, 1 / 3) + half_way(0.125, 1 / 3),
    ("jsd", "renormalize"): half_way(6 / 7, 1 / 3) + half_way(1 / 7, 1 / 3) + half_way(0.0, 1 / 3),
    ("forward_kl", "bucket"): LN(3) + 0.75 * LN(0.75) + 0.25 * LN(0.125),
    ("forward_kl", "drop"): 0.875 * LN(3) + 0.75 * LN(0.75) + 0.125 * LN(0.125),
    ("forward_kl", "renormalize"): LN(3) + 6 / 7 * LN(6 / 7) + 1 / 7 * LN(1 / 7),
    ("reverse_kl", "bucket"): (LN(1 / 3 / 0.75) + 2 * LN(1 / 3 / 0.125)) / 3,
    ("reverse_kl", "drop"): (LN(1 / 3 / 0.75) + LN(1 / 3 / 0.125)) / 3,
    ("reverse_kl", "renormalize"): (LN(0.5 / (6 / 7)) + LN(0.5 / (1 / 7))) / 2,
}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_by_hand(impl, divergence, tail):
    parts = by_hand(impl, divergence=divergence, tail=tail)
    assert parts.loss.item() == pytest.approx(BY_HAND[divergence, tail], rel=1e-6)
    assert parts.kl.item() == pytest.approx(BY_HAND[divergence, tail], rel=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
def test_temperature_by_hand(impl):
    """Two tokens, teacher (0.9, 0.1): at T = 2 it is (3/4, 1/4), not (0.9, 0.1) with halved logarithms (PrimeIntellect-ai/prime-rl#697)."""
    teacher = torch.tensor([[0, 1]]), torch.tensor([[0.9, 0.1]]).log()
    parts = topk_kl(torch.zeros(1, 2), torch.zeros(2, 2), *teacher, tail="renormalize", temperature=2.0, impl=impl)
    value = LN(2) + 0.75 * LN(0.75) + 0.25 * LN(0.25)
    assert parts.kl.item() == pytest.approx(value, rel=1e-6)
    assert parts.loss.item() == pytest.approx(4 * value, rel=1e-6), "T^2 belongs to the loss"


@pytest.mark.parametrize("impl", IMPLS)
def test_cross_entropy_by_hand(impl):
    parts = by_hand(impl, labels_N=torch.tensor([2]), kl_weight=0.0, ce_weight=0.5, temperature=3.0)
    assert parts.ce.item() == pytest.approx(LN(3), rel=1e-6)
    assert parts.loss.item() == pytest.approx(0.5 * LN(3), rel=1e-6)


def kl_by_loops(student_V, teacher_V, ids, divergence, tail, temperature):
    """From two whole distributions (probabilities at T = 1), in plain Python."""

    def tempered(p):
        powers = [x ** (1 / temperature) for x in p]
        return [x / sum(powers) for x in powers]

    p, q = tempered(student_V), tempered(teacher_V)
    pairs = [(p[i], q[i]) for i in ids]
    outside = [i for i in range(len(p)) if i not in ids]
    if tail == "bucket":
        pairs.append((sum(p[i] for i in outside), sum(q[i] for i in outside)))
    if tail == "renormalize":
        kept_p = sum(p for p, _ in pairs) if divergence == "reverse_kl" else 1.0
        kept_q = sum(q for _, q in pairs)
        pairs = [(p / kept_p, q / kept_q) for p, q in pairs]
    if divergence == "jsd":
        return sum(half_way(q, p) for p, q in pairs) + (sum(half_way(0.0, p[i]) for i in outside) if tail == "renormalize" else 0.0)
    return sum(q * LN(q / p) if divergence == "forward_kl" else p * LN(p / q) for p, q in pairs)


@pytest.mark.parametrize("impl", ["reference", "chunked", "tiled"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_by_loops(impl, divergence, tail, temperature):
    case = made(temperature=temperature)
    logits_NV = case.hidden_ND @ case.lm_head_VD.T + case.bias_V
    rows = zip(logits_NV.softmax(-1).tolist(), case.teacher_NV.exp().tolist(), case.ids_NK.tolist(), strict=True)
    expected = sum(kl_by_loops(p, q, ids, divergence, tail, temperature) for p, q, ids in rows)
    parts = call(case, case.student(), impl=impl, divergence=divergence, tail=tail, temperature=temperature, ce_weight=0.3)
    assert parts.kl.item() == pytest.approx(expected, rel=1e-11)
    ce = -logits_NV.log_softmax(-1).gather(-1, case.labels_N[:, None]).sum().item()
    assert parts.ce.item() == pytest.approx(ce, rel=1e-11)
    assert parts.loss.item() == pytest.approx(temperature**2 * expected + 0.3 * ce, rel=1e-11)
    agreement = (logits_NV.argmax(-1) == case.ids_NK[:, 0]).sum().item()
    assert (parts.agreement.item(), parts.num_valid.item()) == (agreement, 7)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_all_entries_stored_is_the_dense_divergence(divergence):
    case = made(k=13)
    logits_NV = case.hidden_ND @ case.lm_head_VD.T + case.bias_V
    student_NV = logits_NV.log_softmax(-1)
    middle_NV = ((student_NV.exp() + case.teacher_NV.exp()) / 2).log()
    pairs = {
        "forward_kl": [(student_NV, case.teacher_NV)],
        "reverse_kl": [(case.teacher_NV, student_NV)],
        "jsd": [(middle_NV, case.teacher_NV), (middle_NV, student_NV)],
    }[divergence]
    terms = [torch.nn.functional.kl_div(*sides, reduction="sum", log_target=True).item() for sides in pairs]
    expected = sum(terms) / len(terms)
    for impl in ("reference", "chunked"):
        parts, grads = run(case, impl, divergence=divergence)
        assert parts.kl.item() == pytest.approx(expected, rel=1e-11)
        assert all(torch.isfinite(grad).all() for grad in grads)


def test_gradients_at_the_optimum_are_those_of_the_table():
    """Student == teacher: what the README's table says of each mode, by formula."""
    case = made(noise=0.0)
    p_NV = case.teacher_NV.exp()
    stored_NV = torch.zeros_like(p_NV).scatter(-1, case.ids_NK, 1.0)
    m_N1 = (p_NV * stored_NV).sum(-1, keepdim=True)
    c_N1, c_tail = -(0.5 / m_N1 + 0.5).log(), LN(2)  # log(p / middle) where the teacher has all its mass inside the K
    mean_N1 = m_N1 * c_N1 + (1 - m_N1) * c_tail
    table = {
        ("jsd", "bucket"): (0.0, torch.zeros_like(p_NV)),
        ("jsd", "drop"): (0.0, torch.zeros_like(p_NV)),
        ("jsd", "renormalize"): (
            (0.5 * (c_N1 - m_N1.log()) + 0.5 * mean_N1).sum().item(),
            0.5 * p_NV * (torch.where(stored_NV > 0, c_N1, c_tail) - mean_N1),
        ),
        ("forward_kl", "bucket"): (0.0, torch.zeros_like(p_NV)),
        ("forward_kl", "drop"): (0.0, m_N1 * p_NV - p_NV * stored_NV),
        ("forward_kl", "renormalize"): (-m_N1.log().sum().item(), p_NV - p_NV * stored_NV / m_N1),
        ("reverse_kl", "bucket"): (0.0, torch.zeros_like(p_NV)),
        ("reverse_kl", "drop"): (0.0, p_NV * (stored_NV - m_N1)),
        ("reverse_kl", "renormalize"): (0.0, torch.zeros_like(p_NV)),
    }
    for (divergence, tail), (value, dz_NV) in table.items():
        for impl in ("reference", "chunked"):
            parts, (hidden_grad_ND, head_grad_VD, bias_grad_V) = run(case, impl, divergence=divergence, tail=tail, labels_N=None)
            assert parts.loss.item() == pytest.approx(value, abs=1e-12), (divergence, tail)
            torch.testing.assert_close(bias_grad_V, dz_NV.sum(0), atol=1e-12, rtol=0)
            torch.testing.assert_close(hidden_grad_ND, dz_NV @ case.lm_head_VD, atol=1e-12, rtol=0)
            torch.testing.assert_close(head_grad_VD, dz_NV.T @ case.hidden_ND, atol=1e-12, rtol=0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_own_teacher_gives_nothing_to_learn(impl, divergence, temperature):
    """In float32 too: loss 0, and a gradient below 1e-4 of cross-entropy's (huggingface/trl#5731)."""
    case = made(n=33, v=1000, d=16, k=100, noise=0.0, temperature=temperature, dtype=torch.float32)
    parts, grads = run(case, impl, divergence=divergence, temperature=temperature)
    _, ce_grads = run(case, impl, kl_weight=0.0, ce_weight=1.0)
    assert abs(parts.loss.item()) < 1e-4
    if impl != "reference":
        assert abs(parts.loss.item()) < 1e-9, "the small maths is float64"
    for grad, ce_grad in zip(grads, ce_grads, strict=True):
        assert grad.norm() <= 1e-4 * ce_grad.norm()


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize(
    ("divergence", "tail"),
    [("forward_kl", "bucket"), ("reverse_kl", "bucket"), ("reverse_kl", "renormalize"), ("jsd", "bucket"), ("jsd", "drop")],
)
def test_never_below_zero(impl, divergence, tail):
    for seed in range(20):
        case = made(seed=seed, noise=3.0)
        assert call(case, case.student(), impl=impl, divergence=divergence, tail=tail).kl.item() >= 0


def test_row_t_pulls_the_hidden_state_of_row_t():
    """The gradient of row t says: more of what the teacher says in row t (areal-project/AReaL#1729)."""
    labels_N = torch.tensor([5, 6, 7])
    teacher_NV = torch.full((3, 9), -20.0, dtype=torch.float64).scatter(-1, labels_N[:, None], 20.0)
    case = with_teacher(torch.zeros(3, 9).double(), torch.eye(9).double(), None, teacher_NV, labels_N, top_k=1)
    _, (hidden_grad_ND, _) = run(case, "chunked")
    assert torch.equal(hidden_grad_ND.argmin(-1), labels_N)
    assert ((hidden_grad_ND < 0).sum(-1) == 1).all()
