"""The processes that train one student together: which of them this is, and what they tell each other. One process alone needs none of it.

A launcher (`accelerate launch`, `torchrun`) numbers them in RANK and WORLD_SIZE. The first writes everything that is written: status,
metrics, model, and it alone holds the device's queue; the others compute, and learn from it what they cannot see by themselves.
"""

import datetime
import os
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from .errors import ConfigError

PATIENCE = datetime.timedelta(hours=2)
"""How long one process waits for another inside a step: the first writes models and checkpoints meanwhile."""


@dataclass(frozen=True)
class Group:
    number: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """As the launcher says. Raises ConfigError for numbers that cannot be."""
        given = {name: os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
        if not all(value.isdecimal() for value in given.values()) or int(given["RANK"]) >= int(given["WORLD_SIZE"]):
            raise ConfigError(f"no such place among processes: {given}. Unset RANK and WORLD_SIZE, or let accelerate launch set them.")
        return cls(int(given["RANK"]), int(given["WORLD_SIZE"]))

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def device_name(self, device: str) -> str:
        """The device of the config; where it leaves open which GPU, this process's own."""
        is_open = self.count > 1 and torch.cuda.is_available() and device in ("auto", "cuda")
        return f"cuda:{os.environ.get('LOCAL_RANK', self.number)}" if is_open else device

    @property
    def device(self) -> torch.device:
        """Where tensors for the others must be: NCCL carries those of the GPU only."""
        return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")

    def agreed(self, value: Any) -> Any:
        """The first process's value, for all."""
        if self.count == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0, device=self.device)
        return held[0]

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - the flag is what is asked about
        """Whether it is so in any process; the same answer for all."""
        return flag if self.count == 1 else bool(self.sum(torch.tensor([float(flag)])).item())

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Element by element over all processes, on the device of `values`."""
        if self.count == 1:
            return values
        total = values.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def gathered(self, items: list[Any]) -> list[Any]:
        """The lists of all processes, one after the other, for all."""
        if self.count == 1:
            return items
        lists: list[Any] = [None] * self.count
        dist.all_gather_object(lists, items)
        return [item for each in lists for item in each]


ALONE = Group()


def meet(group: Group, *, use_cpu: bool) -> None:
    """Connect the processes of the launch, before the first word between them. Does nothing for one process alone."""
    if group.count > 1:
        from accelerate import PartialState

        PartialState(cpu=use_cpu, timeout=PATIENCE)


def whole_weights(model: torch.nn.Module) -> dict[str, Any] | None:
    """All weights of a model that is in pieces (FSDP2), on the CPU of the first process; {} for the others. None: it is in one piece.

    All processes must call it.
    """
    if not any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    for name in getattr(model, "all_tied_weights_keys", {}):  # two names of one weight: it is stored once
        weights.pop(name, None)
    return weights
