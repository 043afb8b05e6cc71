"""Rows in blocks are rows at once."""

import pytest
import torch
from loss_cases import made, run

from distill_core.losses import row_step

KNOBS = [{"temperature": 2.0, "ce_weight": 0.5}, {"logit_softcap": 3.0}, {"temperature": 0.7, "ce_weight": 0.5, "logit_softcap": 3.0}]


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_blocks_of_an_eighth_of_a_chunk(monkeypatch, knobs):
    """19 tokens in chunks of 10: blocks of 2 rows, the last one short."""
    case = made(n=19, temperature=knobs.get("temperature", 1.0))
    parts, grads = run(case, "chunked", chunk_tokens=10, **knobs)
    monkeypatch.setattr(row_step, "SCRATCH_BYTES", 0)
    block_parts, block_grads = run(case, "chunked", chunk_tokens=10, **knobs)
    for found, expected in zip((*block_parts, *block_grads), (*parts, *grads), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_a_row_with_nothing_outside_the_entries():
    """As many entries as tokens: the tail is empty on both sides, and stays out of it."""
    case = made(n=4, v=6, k=6)
    assert torch.equal(case.tail_N, torch.full((4,), -torch.inf, dtype=torch.float64))
    for knobs in ({}, {"temperature": 2.0, "ce_weight": 0.5}, {"divergence": "reverse_kl"}, {"tail": "drop"}):
        (parts, grads), (expected, expected_grads) = (run(case, impl, **knobs) for impl in ("chunked", "reference"))
        assert parts.loss.item() == pytest.approx(expected.loss.item(), rel=1e-11)
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected_grad, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("knobs", [{}, *KNOBS], ids=str)
def test_the_softmax_of_other_devices(monkeypatch, knobs):
    """The steps that a GPU without triton takes, taken here; rows without a tail among them."""
    temperature = knobs.get("temperature", 1.0)
    for case in (made(n=9, temperature=temperature), made(n=4, v=6, k=6, temperature=temperature)):
        parts, grads = run(case, "chunked", **knobs)
        with monkeypatch.context() as patch:
            patch.setattr(row_step, "has_in_place_softmax", lambda _: False)
            other_parts, other_grads = run(case, "chunked", **knobs)
        for found, expected in zip((*other_parts, *other_grads), (*parts, *grads), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
