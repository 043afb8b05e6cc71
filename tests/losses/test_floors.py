"""The floor of the loss, against the best that an optimizer can find."""

import itertools
import math

import pytest
import torch
from loss_cases import MODES, call, made

from distill_core.losses import IGNORE_INDEX, loss_floor


def floor_of(case, **knobs):
    knobs = {"labels_N": case.labels_N, **knobs}
    return loss_floor(case.logprobs_NK, case.tail_N, teacher_ids_NK=case.ids_NK, **knobs).item()


def best_found(case, **knobs):
    """Free logits for every row, from a few starts, by L-BFGS."""
    best = math.inf
    for seed in range(2):
        torch.manual_seed(seed)
        logits_NV = torch.randn(case.teacher_NV.shape, dtype=torch.float64).requires_grad_()
        identity_VV = torch.eye(logits_NV.shape[1], dtype=torch.float64)
        optimizer = torch.optim.LBFGS(
            [logits_NV], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-10, tolerance_change=1e-14
        )

        def closure(logits_NV=logits_NV, optimizer=optimizer, identity_VV=identity_VV):
            optimizer.zero_grad()
            loss = call(case, (logits_NV, identity_VV, None), impl="reference", **knobs).loss
            loss.backward()
            return loss

        optimizer.step(closure)
        best = min(best, closure().item())
    return best


EXACT = [
    (*mode, ce_weight)
    for mode, ce_weight in itertools.product(MODES, (0.0, 0.4))
    if ce_weight == 0 or (mode != ("reverse_kl", "drop") and mode[0] != "jsd")
]


@pytest.mark.parametrize(("divergence", "tail", "ce_weight"), EXACT)
def test_floor_is_what_the_best_student_reaches(divergence, tail, ce_weight):
    """Labels inside the K and outside it; one token outside, so that the tail's bucket is a token a label can be."""
    case = made(n=6, v=6, k=5)
    assert (case.ids_NK == case.labels_N[:, None]).any(-1).sum() not in (0, 6)
    knobs = {"divergence": divergence, "tail": tail, "ce_weight": ce_weight, "kl_weight": 0.8}
    floor, found = floor_of(case, **knobs), best_found(case, **knobs)
    assert found >= floor - 1e-9
    assert found == pytest.approx(floor, abs=2e-4)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("divergence", "tail"), MODES[:7])
def test_no_student_gets_below(divergence, tail, temperature):
    case = made(n=6, v=9, k=4, temperature=temperature)
    for ce_weight in (0.0, 0.7):
        knobs = {"divergence": divergence, "tail": tail, "ce_weight": ce_weight, "temperature": temperature}
        assert best_found(case, **knobs) >= floor_of(case, **knobs) - 1e-9


def test_by_hand():
    """Teacher (1/2, 1/4 | 1/4), label the first: w = (1, 1/4, 1/4) of 3/2, forward; drop has m = 3/4."""
    teacher = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([0.25]).log(), torch.tensor([0]), torch.tensor([[0, 1]])
    ln = math.log
    mixture = 0.5 * ln(0.5) + 0.5 * ln(0.25) - ln(1 / 1.5) - 0.5 * ln(0.25 / 1.5)
    assert loss_floor(*teacher, ce_weight=0.5).item() == pytest.approx(mixture, rel=1e-6)
    assert loss_floor(*teacher).item() == 0
    assert loss_floor(*teacher, tail="drop").item() == pytest.approx(0.75 * ln(0.75), rel=1e-6)
    assert loss_floor(*teacher, tail="drop", divergence="reverse_kl").item() == pytest.approx(-0.75 / math.e, rel=1e-6)
    assert loss_floor(*teacher, tail="drop", kl_weight=2.0).item() == pytest.approx(1.5 * ln(0.75), rel=1e-6)
    assert loss_floor(*teacher, kl_weight=0.0, ce_weight=1.0).item() == 0


def test_ignored_rows_and_none_at_all():
    case = made(n=6)
    labels_N = case.labels_N.clone()
    labels_N[[1, 4]] = IGNORE_INDEX
    single = [
        loss_floor(
            case.logprobs_NK[i : i + 1], case.tail_N[i : i + 1], case.labels_N[i : i + 1], case.ids_NK[i : i + 1], ce_weight=0.5
        ).item()
        for i in (0, 2, 3, 5)
    ]
    assert floor_of(case, labels_N=labels_N, ce_weight=0.5) == pytest.approx(sum(single), rel=1e-12)
    assert floor_of(case, labels_N=torch.full((6,), IGNORE_INDEX), ce_weight=0.5) == 0


def test_empty_entry_is_not_the_label():
    case = made(n=4, v=9, k=3)
    padded = case.changed(
        ids_NK=torch.cat([case.ids_NK, case.labels_N[:, None]], dim=-1),
        logprobs_NK=torch.cat([case.logprobs_NK, torch.full((4, 1), -math.inf)], dim=-1),
    )
    assert floor_of(padded, ce_weight=0.5) == pytest.approx(floor_of(case, ce_weight=0.5), rel=1e-12)
