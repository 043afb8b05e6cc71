"""One of two processes that train a sharded and a replicated head: `python sharded_worker.py RANK FILE`. Silent if all is right."""

import copy
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from distill_core.errors import LossInputError
from distill_core.losses import topk_kl


class Student(torch.nn.Module):
    """Hidden states come out, as from head_inputs; the head's weight is read beside them."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 21, bias=False)

    def forward(self, inputs_ND):
        return self.body(inputs_ND).tanh()


def main(rank: int, meeting_point: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    torch.manual_seed(0)
    student = Student()
    inputs = [torch.randn(6, 8) for _ in range(2)]
    logprobs_NK, ids_NK = torch.randn(6, 21).log_softmax(-1).topk(4)
    knobs = {"teacher_tail_N": (1 - logprobs_NK.exp().sum(-1)).log(), "divisor": 6.0}
    alone = copy.deepcopy(student)
    both = sum(topk_kl(alone(x_ND), alone.head.weight, ids_NK, logprobs_NK, **knobs).loss for x_ND in inputs) / 2
    both.backward()

    sharded = fully_shard(copy.deepcopy(student), mesh=init_device_mesh("cpu", (2,)))
    assert type(sharded.head.weight).__name__ == "DTensor"
    replicated = DistributedDataParallel(copy.deepcopy(student), find_unused_parameters=False)
    for model, inner in ((sharded, sharded), (replicated, replicated.module)):
        topk_kl(model(inputs[rank]), inner.head.weight, ids_NK, logprobs_NK, **knobs).loss.backward()
        for mine, theirs in zip(inner.parameters(), alone.parameters(), strict=True):
            grad = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
            torch.testing.assert_close(grad, theirs.grad)
        with torch.no_grad():
            shown = topk_kl(alone(inputs[rank]), inner.head.weight, ids_NK, logprobs_NK, **knobs).loss
            torch.testing.assert_close(shown, topk_kl(alone(inputs[rank]), alone.head.weight, ids_NK, logprobs_NK, **knobs).loss)
    with pytest.raises(LossInputError, match="several processes share the head"):
        topk_kl(inputs[rank], replicated.module.head.weight, ids_NK, logprobs_NK, accumulate_head_grad=True, **knobs)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), sys.argv[2])
