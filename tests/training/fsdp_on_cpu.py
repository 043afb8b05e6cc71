"""`python -m distill_core …` as one process of a launch that asks for FSDP2, on a CPU: torchrun … fsdp_on_cpu.py train …

accelerate shards on accelerators only, and says nothing where there is none. Its own switch is set here, so that its FSDP2 code, torch's
fully_shard over gloo, transformers' Trainer and our loss run as they would on GPUs. At its end it says how often the loss gathered the head
itself, which FSDP2 has put together already.
"""

import sys

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

from distill_core.losses import heads

prepare, is_sharded = AcceleratorState.__init__, heads.is_sharded
gathered = []


def with_fsdp(self, *args, fsdp_plugin=None, **kwargs):
    prepare(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def counted(weight):
    if isinstance(weight, DTensor):
        gathered.append(weight.shape)
    return is_sharded(weight)


if __name__ == "__main__":
    from distill_core.cli import run_command_line

    AcceleratorState.__init__ = with_fsdp
    heads.is_sharded = counted
    code = run_command_line(sys.argv[1:])
    print(f"gathered by the loss: {len(gathered)} times")
    sys.exit(code)
