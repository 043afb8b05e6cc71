"""From what the door was given to what an implementation works on: checked, in one form, ignored rows gone."""

# N: tokens (batch x sequence, flattened)   M: those that are learned from   V: rows of the head   D: hidden size   K: stored entries
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from . import checks, heads, targets
from .choice import default_chunk_tokens, name_of
from .chunked import compute_chunked
from .contract import Knobs, LossParts, compute_dtype
from .fused import Compute, Job, apply, make_job
from .reference import topk_kl_reference
from .row_step import torch_row_step
from .tiled import compute_tiled
from .triton_loss import ROW_ALIGN, check_triton, triton_row_step
from .workspace import Workspace

ENTRIES = ("teacher_ids_NK", "teacher_logprobs_NK", "teacher_tail_N", "labels_N", "weights_N")
"""What comes with one row for each token."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One call, ready to be computed."""

    impl: str
    hidden_MD: Tensor
    rows_M: Tensor | None
    """Which rows these are; None: all."""
    job: Job
    compute: Compute

    def differentiable(self, lm_head_VD: Tensor, bias_V: Tensor | None) -> LossParts:
        """The loss with its graph."""
        if self.impl == "reference":
            return topk_kl_reference(self.hidden_MD, lm_head_VD, bias_V, self.job.targets, self.job.knobs)
        return apply(self.hidden_MD, lm_head_VD, bias_V, self.compute, self.job)


def prepare(
    *,
    hidden_ND: Tensor,
    lm_head_VD: Tensor,
    bias_V: Tensor | None,
    valid_rows: Tensor | None,
    divisor: Tensor | float | None,
    impl: str,
    accumulate_head_grad: bool,
    **rest: Any,
) -> Prepared:
    """Raises LossInputError for all that topk_kl refuses; the rest are its other arguments."""
    entries: dict[str, Any] = {name: rest.pop(name) for name in ENTRIES}
    heads.check_head(hidden_ND, lm_head_VD, bias_V)
    checks.check_shapes(hidden_ND.shape[0], **entries, valid_rows=valid_rows)
    device, dtype = hidden_ND.device, compute_dtype(hidden_ND, lm_head_VD)
    impl = name_of(impl, device, dtype)
    knobs = _knobs(impl, hidden_ND, lm_head_VD, accumulate_head_grad=accumulate_head_grad, **rest)
    checks.check_knobs(knobs, head_rows=lm_head_VD.shape[0])
    checks.check_combination(knobs, entries["teacher_tail_N"], entries["labels_N"])
    checks.check_divisor(divisor)
    checks.check_devices(hidden_ND=hidden_ND, lm_head_VD=lm_head_VD, bias_V=bias_V, **entries)
    if accumulate_head_grad and lm_head_VD.requires_grad:
        heads.check_accumulation(lm_head_VD, dtype, impl)
    if impl == "triton":
        check_triton(device, dtype)
    rows_M = targets.valid_rows(entries["labels_N"], None if valid_rows is None else valid_rows.to(device, non_blocking=True))
    built = targets.build_targets(**entries, rows_M=rows_M, dtype=dtype, divisor=divisor)
    if device.type == "cpu":
        targets.check_values(built, vocab_size=knobs.vocab_size)
    row_step, align = (triton_row_step, ROW_ALIGN) if impl == "triton" else (torch_row_step, 1)
    return Prepared(
        impl=impl,
        hidden_MD=hidden_ND if rows_M is None else hidden_ND.index_select(0, rows_M),
        rows_M=rows_M,
        job=make_job(hidden_ND, lm_head_VD, built, knobs, row_step, row_align=align),
        compute=compute_tiled if impl == "tiled" else compute_chunked,
    )


def _knobs(impl: str, hidden_ND: Tensor, lm_head_VD: Tensor, **given: Any) -> Knobs:
    vocab_size = lm_head_VD.shape[0] if given["vocab_size"] is None else given["vocab_size"]
    softcap, chunk, workspace = given["logit_softcap"], given["chunk_tokens"], given["workspace"]
    names = ("temperature", "kl_weight", "ce_weight", "z_loss_weight", "jsd_weight", "logit_scale")
    return Knobs(
        **{name: float(given[name]) for name in names},
        divergence=given["divergence"],
        tail=given["tail"],
        logit_softcap=None if softcap is None else float(softcap),
        vocab_size=vocab_size,
        chunk_tokens=default_chunk_tokens(vocab_size, hidden_ND.device, impl) if chunk is None else chunk,
        workspace=Workspace() if workspace is None else workspace,
        accumulate_head_grad=given["accumulate_head_grad"],
    )
