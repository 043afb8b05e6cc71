"""Made-up students and teachers, the whole teacher known, and two watchers of what a computation does."""

# N: tokens   V: vocabulary   D: hidden size   K: stored teacher entries per token
import itertools
import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distill_core.losses import available_impls, topk_kl

DIVERGENCES = ("forward_kl", "reverse_kl", "jsd")
TAILS = ("bucket", "renormalize", "drop")
MODES = list(itertools.product(DIVERGENCES, TAILS))
IMPLS = [impl for impl in available_impls() if impl != "triton" or os.environ.get("TRITON_INTERPRET") == "1"]
"""On a CPU; a GPU has tests of its own (test_gpu.py)."""
FUSED = [impl for impl in IMPLS if impl != "reference"]


@dataclass(frozen=True)
class Case:
    hidden_ND: Tensor
    lm_head_VD: Tensor
    bias_V: Tensor | None
    teacher_NV: Tensor
    """log-probabilities of the whole vocabulary, T = 1, float64."""
    ids_NK: Tensor
    logprobs_NK: Tensor
    tail_N: Tensor
    labels_N: Tensor

    def changed(self, **values) -> "Case":
        return replace(self, **values)

    def student(self, dtype=None, *, requires_grad=True) -> list[Tensor | None]:
        """Fresh leaves: hidden states, head, bias."""
        tensors = (self.hidden_ND, self.lm_head_VD, self.bias_V)
        return [None if t is None else t.detach().clone().to(dtype or t.dtype).requires_grad_(requires_grad) for t in tensors]


def with_teacher(hidden_ND, lm_head_VD, bias_V, teacher_NV, labels_N, *, top_k, temperature=1.0) -> Case:
    """The K most likely tokens of the teacher, and the rest's log-sum-exp at the temperature."""
    teacher_NV = teacher_NV.log_softmax(-1)
    logprobs_NK, ids_NK = teacher_NV.topk(top_k)
    tail_N = (teacher_NV / temperature).scatter(-1, ids_NK, -torch.inf).logsumexp(-1)
    return Case(hidden_ND, lm_head_VD, bias_V, teacher_NV, ids_NK, logprobs_NK, tail_N, labels_N)


def made(n=7, v=13, d=4, k=5, *, temperature=1.0, noise=1.0, seed=0, bias=True, ignored=0, dtype=torch.float64) -> Case:
    """A student, and a teacher that is the student plus noise. `noise=0`: the student is the teacher. Inputs are exact in `dtype`."""
    torch.manual_seed(seed)
    hidden_ND = torch.randn(n, d, dtype=torch.float64).to(dtype)
    lm_head_VD = torch.randn(v, d, dtype=torch.float64).to(dtype)
    bias_V = torch.randn(v, dtype=torch.float64).to(dtype) if bias else None
    logits_NV = hidden_ND.double() @ lm_head_VD.double().T + (bias_V.double() if bias else 0.0)
    labels_N = torch.randint(0, v, (n,))
    labels_N[torch.randperm(n)[:ignored]] = -100
    teacher_NV = logits_NV + noise * torch.randn(n, v, dtype=torch.float64)
    return with_teacher(hidden_ND, lm_head_VD, bias_V, teacher_NV, labels_N, top_k=k, temperature=temperature)


def call(case: Case, student, **knobs):
    """topk_kl on the student's leaves; targets come in the student's type."""
    hidden_ND, lm_head_VD, bias_V = student
    dtype = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
    knobs = {"teacher_tail_N": case.tail_N.to(dtype), "labels_N": case.labels_N, **knobs}
    return topk_kl(hidden_ND, lm_head_VD, case.ids_NK, case.logprobs_NK.to(dtype), bias_V=bias_V, **knobs)


def run(case: Case, impl: str, dtype=None, **knobs):
    """(parts, gradients of hidden states, head and bias)."""
    student = case.student(dtype)
    parts = call(case, student, impl=impl, **knobs)
    return parts, torch.autograd.grad(parts.loss, [leaf for leaf in student if leaf is not None])


def distance(found, truth) -> float:
    """Norm of the difference over norm of the truth."""
    found, truth = found.detach().double(), truth.detach().double()
    return float((found - truth).norm() / truth.norm().clamp(min=1e-12))


def assert_no_worse(case: Case, impl: str, *, dtype=torch.float32, tolerance=2e-6, **knobs) -> None:
    """Error against float64, of the loss and each gradient: at most that of dense code in the same type, plus a tolerance."""
    truth, truth_grads = run(case, "reference", torch.float64, **knobs)
    dense, dense_grads = run(case, "reference", dtype, **knobs)
    ours, our_grads = run(case, impl, dtype, **knobs)
    assert abs(ours.loss - truth.loss) <= abs(dense.loss - truth.loss) + tolerance * (1 + abs(truth.loss)), "loss"
    for name, our, plain, true in zip(("d hidden", "d head", "d bias"), our_grads, dense_grads, truth_grads, strict=False):
        assert torch.isfinite(our).all(), name
        assert distance(our, true) <= distance(plain, true) + tolerance, (
            f"{name}: {distance(our, true):.1e} against {distance(plain, true):.1e}"
        )


class LargestTensor(TorchDispatchMode):
    """Keeps the size in bytes of the largest tensor that any operation made; views of the tensors given at the start do not count."""

    def __init__(self, *known: Tensor | None):
        super().__init__()
        self.nbytes = 0
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known if tensor is not None}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.nbytes = max(self.nbytes, tensor.nbytes)
        return out


def peak_of_all_memory(call) -> int:
    """The most bytes that torch's CPU allocator had given out at once during the call, beyond what it had before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    changes = [event.nbytes() for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert changes, "the profiler saw no memory"
    return max(itertools.accumulate(changes))


class CountProducts(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
        return func(*args, **(kwargs or {}))
