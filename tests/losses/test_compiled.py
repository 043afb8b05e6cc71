"""torch.compile sees the loss as one operator: no graph break, the eager values, one recompilation for changing lengths."""

import pytest
import torch
import torch._dynamo.testing
from loss_cases import call, made, run

from distill_core.errors import LossInputError
from distill_core.losses import IGNORE_INDEX, topk_kl


def compiled_run(compiled, case, **knobs):
    student = case.student()
    parts = compiled(case, student, **knobs)
    return parts, torch.autograd.grad(parts.loss, student)


@pytest.fixture
def counted():
    """A fresh compiler, with the number of graphs it has made. `aot_eager` traces forward and backward and generates no code."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    yield counter
    torch._dynamo.reset()


def door(case, student, **knobs):
    return call(case, student, **knobs)


@pytest.mark.parametrize("impl", ["auto", "tiled"])
def test_full_graph_with_ignored_rows_and_changing_lengths(counted, impl):
    """The same loss and gradients, also where rows are ignored, and at most one more graph for lengths that change."""
    compiled = torch.compile(door, fullgraph=True, backend=counted)
    knobs = {"impl": impl, "ce_weight": 0.5, "z_loss_weight": 0.1, "temperature": 2.0, "weights_N": None, "divisor": torch.tensor(5)}
    for n, ignored in ((7, 0), (9, 3), (12, 5), (33, 1)):
        case = made(n=n, ignored=ignored, temperature=2.0, dtype=torch.float32)
        parts, grads = compiled_run(compiled, case, **knobs)
        expected, expected_grads = run(case, impl, **{name: value for name, value in knobs.items() if name != "impl"})
        assert [part.item() for part in parts] == pytest.approx([part.item() for part in expected], rel=1e-6)
        for grad, true in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, true, atol=1e-6, rtol=1e-5)
    assert counted.frame_count <= 2


def test_frozen_head_no_grad_and_upstream_scale(counted):
    case = made(dtype=torch.float32, bias=False)
    hidden_ND, lm_head_VD, _ = case.student()

    def scaled(hidden_ND, lm_head_VD):
        return 3 * call(case, (hidden_ND, lm_head_VD, None), divisor=2.0).loss

    compiled = torch.compile(scaled, fullgraph=True, backend=counted)
    compiled(hidden_ND, lm_head_VD.detach()).backward()
    _, (expected_ND, _) = run(case, "chunked")
    torch.testing.assert_close(hidden_ND.grad, 1.5 * expected_ND)
    with torch.no_grad():
        assert not compiled(hidden_ND, lm_head_VD).requires_grad


def test_operator_keeps_its_contract():
    """Shapes and types announced to the compiler are those that come out."""
    import distill_core.losses.compiled as compiled

    case = made(n=5, ignored=2, dtype=torch.bfloat16)
    for labels_N, bias_V in ((case.labels_N, case.bias_V), (None, None)):
        tensors = (
            case.hidden_ND,
            case.lm_head_VD,
            case.ids_NK,
            case.logprobs_NK.float(),
            case.tail_N.float(),
            labels_N,
            None,
            None,
            bias_V,
            None,
        )
        knobs = (2.0, 1.0, 0.0, 0.0, "jsd", 0.3, "bucket", 3, 1.0, 30.0, None, "chunked", [True, False, bias_V is not None])
        torch.library.opcheck(compiled._operator, (*tensors, *knobs), test_utils=("test_schema", "test_faketensor"))


def test_what_no_compiled_loss_can_do(counted):
    case = made(dtype=torch.float32)
    for knobs, words in (({"impl": "reference"}, "not for torch.compile"), ({"accumulate_head_grad": True}, "not for torch.compile")):
        torch._dynamo.reset()
        with pytest.raises((LossInputError, torch._dynamo.exc.Unsupported), match=words):
            torch.compile(door, fullgraph=True, backend=counted)(case, case.student(), **knobs)


@pytest.mark.slow
def test_with_generated_code():
    """The default backend, in a module of a student's own making (linkedin/Liger-Kernel#1338)."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 16), torch.nn.Tanh())
    head = torch.nn.Linear(16, 50, bias=False)
    ids_N = torch.randint(0, 50, (12,))
    labels_N = torch.where(torch.arange(12) % 3 == 0, IGNORE_INDEX, ids_N.roll(-1))
    logprobs_NK, top_NK = torch.randn(12, 50).log_softmax(-1).topk(5)
    tail_N = (1 - logprobs_NK.exp().sum(-1)).log()

    def loss_of(body, head):
        return topk_kl(body(ids_N), head.weight, top_NK, logprobs_NK, teacher_tail_N=tail_N, labels_N=labels_N, ce_weight=0.5).loss

    plain = torch.autograd.grad(loss_of(body, head), [*body.parameters(), head.weight])
    compiled = torch.autograd.grad(torch.compile(loss_of, fullgraph=True)(body, head), [*body.parameters(), head.weight])
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b)
