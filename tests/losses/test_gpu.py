"""The loss on a GPU, for a machine that has one: `pytest -m gpu tests/losses`, then `python -m distill_core bench loss`.

Nothing here has run yet: no GPU was at hand. What a CPU can say of the kernels is in test_triton_loss.py and test_aot.py.
"""

import dataclasses

import pytest
import torch
from loss_cases import MODES, call, distance, made, run

from distill_core.losses import IGNORE_INDEX, Workspace

pytestmark = pytest.mark.gpu
GPU_IMPLS = ("triton", "chunked", "tiled")
F32, BF16 = torch.float32, torch.bfloat16


def moved(case):
    """The case with every tensor on the GPU."""
    values = {field.name: getattr(case, field.name) for field in dataclasses.fields(case)}
    return case.changed(**{name: value.cuda() for name, value in values.items() if value is not None})


@pytest.mark.parametrize("impl", GPU_IMPLS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_against_float64(impl, dtype, divergence, tail):
    """V = 50,257, several chunks, ignored rows, softcap, both temperatures, near the optimum and not."""
    for noise in (0.03, 1.0):
        case = made(n=300, v=50257, d=64, k=100, noise=noise, ignored=40, bias=False, temperature=2.0, dtype=dtype)
        case = moved(case.changed(lm_head_VD=case.lm_head_VD / 4))
        knobs = {"divergence": divergence, "tail": tail, "temperature": 2.0, "ce_weight": 0.1, "logit_softcap": 30.0}
        truth, truth_grads = run(case, "reference", torch.float64, **knobs)
        parts, grads = run(case, impl, chunk_tokens=128, **knobs)
        assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=1e-4)
        assert all(distance(grad, true) <= (3e-3 if dtype == BF16 else 1e-4) for grad, true in zip(grads, truth_grads, strict=True))


@pytest.mark.parametrize("impl", ["triton", "chunked"])
def test_the_host_never_waits(impl):
    """With the valid rows known, forward and backward only queue work."""
    case = moved(made(n=64, v=1000, d=32, k=20, bias=False, ignored=9, dtype=F32))
    student = case.student()
    rows = (case.labels_N != IGNORE_INDEX).nonzero().squeeze(-1)
    knobs = {"impl": impl, "valid_rows": rows, "divisor": torch.tensor(55.0, device="cuda"), "ce_weight": 0.5, "workspace": Workspace()}
    call(case, student, **knobs).loss.backward()  # the kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(case, student, **knobs).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("impl", GPU_IMPLS)
def test_peak_is_the_chunk(impl):
    """Beyond inputs and gradients: one chunk of logits, and next to nothing more for twice the tokens."""
    peaks = []
    for n in (2048, 4096):
        case = moved(made(n=64, v=32000, d=64, k=20, bias=False, dtype=F32))
        case = case.changed(**{name: getattr(case, name).repeat(n // 64, *[1] * (getattr(case, name).ndim - 1)) for name in (
            "hidden_ND", "ids_NK", "logprobs_NK", "tail_N", "labels_N")})  # fmt: skip
        student = case.student()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(case, student, impl=impl, chunk_tokens=512).loss.backward()
        peaks.append(torch.cuda.max_memory_allocated() - before - student[0].nbytes - n * 20 * 16)
    assert peaks[1] < 1.05 * peaks[0]
    assert peaks[0] < student[1].nbytes * 2 + 512 * 32000 * 4 * 1.3
