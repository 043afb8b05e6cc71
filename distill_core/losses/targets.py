"""The teacher's side of the loss: brought into one form, and looked at for values that no arithmetic can use."""

# N: tokens (batch x sequence, flattened)   M: those that are learned from   K: stored teacher entries per token
import math

import numpy as np
import torch
from torch import Tensor

from ..errors import LossInputError
from .closure import small_dtype
from .contract import IGNORE_INDEX, Targets

MOST_MASS = 1.01
"""A row's probabilities may sum to this: float16 log-probabilities of one row are off by up to half a percent."""


def check_targets(
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    teacher_tail_N: Tensor | None = None,
    labels_N: Tensor | None = None,
    *,
    vocab_size: int,
) -> None:
    """All that can be wrong with a batch of targets, duplicate ids included, for when it is loaded; [N, K] and [N], on any device.

    Rows whose label is IGNORE_INDEX are not looked at. On an accelerator it waits for the values, so call it where they still are
    on the CPU. topk_kl itself does not look for duplicates, and on an accelerator looks at no value.
    Raises LossInputError that says which value, and in which row.
    """
    rows_M = valid_rows(labels_N)
    targets = build_targets(teacher_ids_NK, teacher_logprobs_NK, teacher_tail_N, labels_N, None, rows_M, dtype=torch.float32)
    check_values(targets, vocab_size=vocab_size)
    check_unique(targets, rows_M)


def check_unique(targets: Targets, rows_M: Tensor | None) -> None:
    """An id twice in a row would count twice in the head's sum."""
    # NumPy sorts short rows twenty times faster than torch: 0.2 ms for 2,040 rows of 100. Empty entries get numbers of their own, below 0
    own_K = -1 - np.arange(targets.ids_NK.shape[1], dtype=np.int32)
    is_stored_NK = (targets.logprobs_NK > -math.inf).numpy(force=True)
    ids_NK = np.sort(np.where(is_stored_NK, targets.ids_NK.numpy(force=True).astype(np.int32), own_K), axis=-1)
    is_double_NK = ids_NK[:, 1:] == ids_NK[:, :-1]
    if is_double_NK.any():
        row, place = (int(at) for at in np.argwhere(is_double_NK)[0])
        raise LossInputError(
            f"teacher_ids_NK holds id {ids_NK[row, place]:,} twice in row {row if rows_M is None else int(rows_M[row])}."
            " Merge the entries (add their probabilities), or capture again."
        )


def check_values(targets: Targets, *, vocab_size: int) -> None:
    """Values that no arithmetic can use: ids and labels outside the vocabulary, numbers that are no log-probabilities, empty rows.

    It reads the tensors, so on an accelerator it would wait for them.
    """
    if targets.ids_NK.shape[0] == 0:
        return
    lowest, highest = (int(bound) for bound in targets.ids_NK.aminmax())
    if lowest < 0 or highest >= vocab_size:
        raise LossInputError(
            f"teacher_ids_NK holds id {lowest if lowest < 0 else highest:,}, outside the student's vocabulary of {vocab_size:,}."
            " Teacher and student must share one tokenizer."
        )
    if targets.labels_N is not None:
        lowest, highest = (int(bound) for bound in targets.labels_N.aminmax())
        if lowest < 0 or highest >= vocab_size:
            raise LossInputError(
                f"labels_N holds {lowest if lowest < 0 else highest:,}, outside the student's vocabulary of {vocab_size:,}."
                f" Use {IGNORE_INDEX} for tokens that are not learned from."
            )
    most_N = targets.logprobs_NK.amax(dim=-1)
    largest, smallest = float(most_N.max()), float(most_N.min())
    if math.isnan(largest) or largest > 0.01:
        raise LossInputError(f"teacher_logprobs_NK holds {largest:g}: a natural-log probability is never above 0. Are these logits?")
    _check_mass(targets)
    _check_weights(targets)
    if smallest == -math.inf:
        row = int(most_N.argmin())
        raise LossInputError(f"teacher_logprobs_NK: valid row {row} has no entry, all are -inf. Set its label to {IGNORE_INDEX}.")
    if targets.tail_N is not None and not float(targets.tail_N.max()) < math.inf:
        raise LossInputError(
            "teacher_tail_N holds NaN or +inf. It is a log-sum-exp: -inf where nothing is outside the K, finite elsewhere."
        )


def _check_mass(targets: Targets) -> None:
    mass_N = targets.logprobs_NK.exp().sum(dim=-1)
    if float(mass_N.max()) > MOST_MASS:
        raise LossInputError(
            f"teacher_logprobs_NK: the probabilities of valid row {int(mass_N.argmax())} sum to {float(mass_N.max()):.4g}."
            " They must be log-probabilities at temperature 1 over the whole vocabulary, each id once."
        )


def _check_weights(targets: Targets) -> None:
    if targets.weights_N is not None and not 0 <= float(targets.weights_N.min()) <= float(targets.weights_N.max()) < math.inf:
        raise LossInputError(
            f"weights_N runs from {float(targets.weights_N.min()):g} to {float(targets.weights_N.max()):g}."
            " A weight is finite and 0 or more: use 0 for a token that counts nothing."
        )


def valid_rows(labels_N: Tensor | None, known_M: Tensor | None = None) -> Tensor | None:
    """Indices of the rows that are learned from; None if that is every row. Those that are known already cost no look at the labels."""
    if known_M is not None:
        return known_M
    if labels_N is None:
        return None
    rows_M = (labels_N != IGNORE_INDEX).nonzero().squeeze(-1)
    return None if rows_M.shape[0] == labels_N.shape[0] else rows_M


def build_targets(
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    teacher_tail_N: Tensor | None,
    labels_N: Tensor | None,
    weights_N: Tensor | None,
    rows_M: Tensor | None,
    *,
    dtype: torch.dtype,
    divisor: Tensor | float | None = None,
) -> Targets:
    """The teacher's side of the valid rows, in one form. Targets are constants: no gradient flows into them."""

    def kept(tensor: Tensor) -> Tensor:
        return tensor.detach() if rows_M is None else tensor.detach().index_select(0, rows_M)

    ids_NK, logprobs_NK = kept(teacher_ids_NK).long(), kept(teacher_logprobs_NK).to(dtype)
    is_empty_NK = logprobs_NK == -math.inf
    # elsewhere than on a CPU a look would make the host wait
    if ids_NK.shape[0] and (ids_NK.device.type != "cpu" or bool(is_empty_NK.any())):
        # an empty entry may carry any id: give it one that is really stored, so that it is harmless in gather and scatter
        first_N1 = ids_NK.gather(-1, logprobs_NK.argmax(dim=-1, keepdim=True))
        ids_NK = torch.where(is_empty_NK, first_N1, ids_NK)
    return Targets(
        ids_NK=ids_NK,
        logprobs_NK=logprobs_NK,
        tail_N=None if teacher_tail_N is None else kept(teacher_tail_N).to(dtype),
        labels_N=None if labels_N is None else kept(labels_N).long(),
        weights_N=None if weights_N is None else kept(weights_N).to(small_dtype(weights_N.device)),
        divisor=None if divisor is None else _as_scalar(divisor, ids_NK),
    )


def _as_scalar(divisor: Tensor | float, like: Tensor) -> Tensor:
    """0-d, beside the other tensors; a number is written by the device itself, since copying one there would wait for it."""
    dtype = small_dtype(like.device)
    if isinstance(divisor, Tensor):
        return divisor.detach().reshape(()).to(like.device, dtype, non_blocking=True)
    return torch.full((), divisor, dtype=dtype, device=like.device)
