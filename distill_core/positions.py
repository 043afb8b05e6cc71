"""Learning from the most informative positions only: loss.positions says by what they are ranked, loss.position_share how many stay.

Each window keeps the same share of its own positions, rounded up, so that what is chosen, and how many, does not depend on how a step
is split into micro-batches or processes. What is not chosen gets IGNORE_INDEX for a label, and costs nothing in the loss; the body of
the model reads the window as ever.
"""
# B: windows in a micro-batch   P: positions of a window   N = B x P: rows of the loss   M: those that may be learned   C: those chosen

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .losses import IGNORE_INDEX


def num_chosen(num_targets: int, share: float) -> int:
    """How many of a window's positions are learned from: the share, rounded up, but for the rounding of the product itself."""
    return math.ceil(round(share * num_targets, 9))


def most_uncertain(targets_BP: NDArray[np.bool_], entropy_BP: NDArray, share: float) -> NDArray[np.bool_]:
    """The targets where the teacher is least sure what comes next, a share of each window's; of equal ones the earlier."""
    chosen_BP = np.zeros_like(targets_BP)
    for chosen_P, targets_P, entropy_P in zip(chosen_BP, targets_BP, entropy_BP, strict=True):
        places = np.flatnonzero(targets_P)
        order = np.argsort(-entropy_P[places].astype(np.float32), kind="stable")
        chosen_P[places[order[: num_chosen(len(places), share)]]] = True
    return chosen_BP


def ranks_to_keep(targets_BP: NDArray[np.bool_], share: float) -> Tensor:
    """[C]: in windows sorted by falling gap, one after the other, the places of those to keep; known before any gap is."""
    num_positions = targets_BP.shape[1]
    counts = [num_chosen(int(targets_P.sum()), share) for targets_P in targets_BP]
    return torch.cat([torch.arange(count) + window * num_positions for window, count in enumerate(counts)])


def with_widest_gaps(inputs: dict[str, Any], gap_M: Tensor) -> dict[str, Any]:
    """The micro-batch with only the positions where the student is furthest from the teacher: labels [B, P] and valid_rows replaced.

    gap_M: of inputs["valid_rows"], in their order. Nothing here makes the host wait for the device.
    """
    labels_BP, ranks_C = inputs["labels"], inputs["gap_ranks"]
    gap_N = torch.full((labels_BP.numel(),), -math.inf, dtype=gap_M.dtype, device=gap_M.device).index_copy_(0, inputs["valid_rows"], gap_M)
    order_BP = gap_N.view_as(labels_BP).argsort(dim=1, descending=True, stable=True)
    starts_B1 = torch.arange(len(labels_BP), device=order_BP.device)[:, None] * labels_BP.shape[1]
    rows_C = (order_BP + starts_B1).flatten().index_select(0, ranks_C).sort().values
    labels_N = torch.full_like(labels_BP, IGNORE_INDEX).flatten().index_copy_(0, rows_C, labels_BP.flatten().index_select(0, rows_C))
    return inputs | {"labels": labels_N.view_as(labels_BP), "valid_rows": rows_C}


def num_learned(batch: dict[str, Any]) -> Tensor:
    """0-d: tokens of a micro-batch that will be learned from."""
    if "gap_ranks" in batch:
        return torch.tensor(len(batch["gap_ranks"]))
    return (batch["labels"] != IGNORE_INDEX).sum()
