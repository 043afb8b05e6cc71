"""Buffers that outlive one call of the loss."""

# C: tokens of one chunk   V: real vocabulary
import math

import torch
from torch import Tensor


class Workspace:
    """Keeps the loss's largest buffers from one step to the next, so that their pages are not asked of the system each time.

    Give the same one to every call on a device: `topk_kl(..., workspace=workspace)`. It holds as much as the largest call needed
    (chunk_tokens * V * 4 bytes) until it is dropped. Nothing that topk_kl returns lies in it. One call at a time: not for threads.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def take(self, name: str, *shape: int, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A contiguous tensor with whatever was in it before."""
        key, size = (name, like.device, dtype), math.prod(shape)
        if key not in self._kept or self._kept[key].numel() < size:
            self._kept.pop(key, None)  # the old one goes before the new one comes
            self._kept[key] = like.new_empty(size, dtype=dtype)
        return self._kept[key][:size].view(shape)

    def rows(self, num_rows: int, width: int, *, like: Tensor, dtype: torch.dtype, align: int = 1) -> Tensor:
        """[num_rows, width] whose rows each start at a multiple of `align` elements."""
        padded = -(-width // align) * align
        return self.take("rows", num_rows, padded, like=like, dtype=dtype)[:, :width]

    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._kept.values())
