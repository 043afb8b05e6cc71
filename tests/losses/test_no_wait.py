"""The host never waits for an accelerator: tensors without values take the path of one, where any look at a value is an error."""

import pytest
import torch

from distill_core.losses import loss_floor, topk_kl


def without_values(n=12, v=60, d=8, k=5):
    """Inputs on torch's "meta" device: shapes and types, no memory."""

    def made(*shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device="meta")

    student = made(n, d).requires_grad_(), made(v, d).requires_grad_()
    teacher = made(n, k, dtype=torch.int64), made(n, k)
    knobs = {"teacher_tail_N": made(n), "labels_N": made(n, dtype=torch.int64), "chunk_tokens": 5}
    return student, teacher, knobs


KNOBS = [
    {},
    {"temperature": 2.0, "ce_weight": 0.5, "z_loss_weight": 0.1},
    {"logit_softcap": 30.0, "divergence": "jsd", "vocab_size": 50},
    {"tail": "drop", "divergence": "reverse_kl", "accumulate_head_grad": True},
]


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_nothing_is_looked_at_when_the_rows_are_known(knobs):
    """Forward, backward and floor, with weights and a divisor that are tensors."""
    student, teacher, shared = without_values()
    rows, divisor, weights_N = (torch.empty(shape, device="meta") for shape in ((7,), (), (12,)))
    parts = topk_kl(*student, *teacher, valid_rows=rows.long(), divisor=divisor, weights_N=weights_N, **shared, **knobs)
    parts.loss.backward()
    assert all(part.device.type == "meta" for part in parts)
    assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in student)
    asked = {name: knobs[name] for name in knobs if name in ("temperature", "ce_weight", "divergence", "tail")}
    floor = loss_floor(
        teacher[1], shared["teacher_tail_N"], shared["labels_N"], teacher[0], valid_rows=rows.long(), weights_N=weights_N, **asked
    )
    assert floor.shape == ()


def test_this_test_would_see_a_wait():
    """Rows that must be found in the labels are such a look."""
    student, teacher, shared = without_values()
    with pytest.raises(NotImplementedError, match="nonzero"):
        topk_kl(*student, *teacher, **shared)
