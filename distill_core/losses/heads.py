"""Heads as they come: checked, gathered if they are sharded, refused by name where their weight alone is not the head."""

# N: tokens   V: rows of the head   D: hidden size
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import LossInputError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def is_sharded(weight: Any) -> bool:
    """Whether it is a DTensor (FSDP2, tensor parallelism); never imports torch.distributed for a plain tensor."""
    return type(weight).__name__ == "DTensor"


def whole(name: str, weight: Any) -> Any:
    """A sharded weight gathered, its gradient sharded again on the way back; anything else as it is.

    FSDP2 keeps a slice of the head on each process, whose batches differ: the gathered weight's gradient is averaged over them,
    as FSDP averages that of every other parameter. The gathered copy costs V * D elements during the loss.
    """
    if not is_sharded(weight):
        return weight
    from torch.distributed.tensor import Partial, Shard

    if not all(isinstance(placement, Shard) or placement.is_replicate() for placement in weight.placements):
        raise LossInputError(
            f"{name} is a DTensor with placements {weight.placements}, which cannot be gathered as it is. Call redistribute() on it first."
        )
    return weight.full_tensor(grad_placements=[Partial("avg")] * weight.device_mesh.ndim)


def check_head(hidden_ND: Tensor, lm_head_VD: Tensor, bias_V: Tensor | None) -> None:
    """Shapes and types of what the student brings."""
    for name, tensor in (("hidden_ND", hidden_ND), ("lm_head_VD", lm_head_VD)):
        _check_matrix(name, tensor)
    if hidden_ND.shape[1] != lm_head_VD.shape[1]:
        raise LossInputError(
            f"hidden_ND is {hidden_ND.shape[1]} wide, lm_head_VD {lm_head_VD.shape[1]}."
            " Pass the head of the model that made the hidden states, and what enters that head."
        )
    if bias_V is not None and (bias_V.shape != lm_head_VD.shape[:1] or not bias_V.is_floating_point()):
        raise LossInputError(
            f"bias_V must be floating point with one entry for each of the {lm_head_VD.shape[0]:,} head rows,"
            f" got {bias_V.dtype} of shape {tuple(bias_V.shape)}. Pass None if the head has no bias."
        )


def _check_matrix(name: str, tensor: Any) -> None:
    kind = type(tensor).__name__
    if isinstance(tensor, torch.nn.Module):
        raise LossInputError(
            f"{name} is a module ({kind}), not a tensor. Pass module.weight; for a head with an adapter (LoRA) pass the sum"
            " base_weight + scaling * B @ A, through which both get their gradients."
        )
    if is_traceable_wrapper_subclass(tensor) or tensor.dtype not in FLOATS:
        if name == "lm_head_VD":
            raise LossInputError(
                f"lm_head_VD must be floating point, got {tensor.dtype} ({kind}). A quantized head must be dequantized first,"
                " or left out of the quantization."
            )
        raise LossInputError(f"{name} must be floating point, got {tensor.dtype} ({kind}).")
    if name == "lm_head_VD" and tensor.numel() == 0:
        raise LossInputError(
            f"lm_head_VD is empty, shape {tuple(tensor.shape)}: a sharded weight must be gathered first. DeepSpeed ZeRO-3: call the loss"
            " inside deepspeed.zero.GatheredParameters(weight), in evaluation too."
        )
    if tensor.ndim != 2:
        hint = (
            "Flatten batch and sequence into one dimension."
            if name == "hidden_ND"
            else ("Pass the whole, gathered weight of the head: FSDP.summon_full_params gathers flat shards, in evaluation too.")
        )
        raise LossInputError(f"{name} must have 2 dimensions, got shape {tuple(tensor.shape)}. {hint}")


def check_accumulation(lm_head_VD: Tensor, dtype: torch.dtype, impl: str) -> None:
    """Whether the head's gradient can go straight into its .grad."""
    why = None
    if impl == "reference":
        why = "impl='reference' leaves gradients to autograd"
    elif not lm_head_VD.is_leaf:
        why = "lm_head_VD is computed from other tensors, which need its gradient"
    elif lm_head_VD.dtype != dtype:
        why = f"lm_head_VD is {lm_head_VD.dtype}, whose gradient cannot be summed in {dtype}"
    elif lm_head_VD.grad is not None and (lm_head_VD.grad.dtype != dtype or lm_head_VD.grad.is_sparse):
        why = f"lm_head_VD.grad is {lm_head_VD.grad.dtype}"
    elif torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        why = "several processes share the head, and their gradients are averaged in backward"
    if why is not None:
        raise LossInputError(f"accumulate_head_grad=True cannot be: {why}. Use accumulate_head_grad=False.")
