"""What a launcher of several processes asks for, and what of it cannot be: said by name, before the first step."""

import os

from ..config import DistillConfig
from ..errors import ConfigError
from ..group import Group


def _asks_for(name: str) -> bool:
    return os.environ.get(name, "false").lower() == "true"


def check_launch(group: Group, config: DistillConfig) -> None:
    """Raises ConfigError for ways to share a student among processes that the fused loss does not serve."""
    if _asks_for("ACCELERATE_USE_DEEPSPEED"):
        raise ConfigError(
            "DeepSpeed is not served: its ZeRO-3 empties the head's weight between layers. FSDP2 shards the same things: "
            "accelerate launch --use_fsdp --fsdp_version 2"
        )
    if _asks_for("ACCELERATE_USE_FSDP") and os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError("FSDP version 1 flattens the head's weight, so the loss cannot read it. Use: accelerate launch --fsdp_version 2")
    if _asks_for("ACCELERATE_USE_FSDP") and config.student.lora_rank:
        raise ConfigError("student.lora_rank under FSDP is not served: adapters are small, so DDP does it. Launch without --use_fsdp.")
    for name in ("adversarial_weight", "hidden_weight"):
        if _asks_for("ACCELERATE_USE_FSDP") and getattr(config.loss, name):
            raise ConfigError(
                f"loss.{name} under FSDP is not served: it reads weights outside a forward pass, where they are in pieces. "
                "Launch without --use_fsdp: DDP works."
            )
    if group.count > 1 and config.train.auto_find_batch_size:
        raise ConfigError(
            "train.auto_find_batch_size is for one process: where one of several runs out of memory, the others wait for it. "
            "Find the size with one process first, or see the plan: python -m distill_core plan"
        )


def check_sharding(group: Group, is_sharded: bool) -> None:  # noqa: FBT001 - the answer of the trainer
    """Raises ConfigError where FSDP was asked for and accelerate did without a word: it shards on accelerators only."""
    if group.count > 1 and _asks_for("ACCELERATE_USE_FSDP") and not is_sharded:
        raise ConfigError("accelerate shards (FSDP) on GPUs only, and this device is none. Launch without --use_fsdp: DDP works on CPUs.")
