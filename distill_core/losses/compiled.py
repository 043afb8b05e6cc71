"""The loss as one operator that torch.compile sees whole: no graph break, whatever happens inside.

Used only while a graph is traced. The operator returns the gradients beside the loss; its own backward multiplies them.
"""

# N: tokens   M: those that are learned from   V: rows of the head   D: hidden size   K: stored teacher entries per token
from typing import Any

import torch
from torch import Tensor

from ..errors import LossInputError
from .contract import LossParts, compute_dtype
from .fused import run, total_loss

NUM_PARTS = len(LossParts._fields)
COUNTS = ("agreement", "num_valid")


def topk_kl_compiled(
    tensors: dict[str, Any], knobs: dict[str, Any], *, impl: str, is_grad_enabled: bool, accumulate_head_grad: bool
) -> LossParts:
    """topk_kl inside a compiled function; a workspace is not used there. Raises LossInputError for what no operator can do."""
    if impl == "reference":
        raise LossInputError("impl='reference' is not for torch.compile. Use 'chunked', 'triton', 'tiled' or 'auto' inside it.")
    if accumulate_head_grad:
        raise LossInputError("accumulate_head_grad=True is not for torch.compile, which may run backward when it likes. Use False.")
    if isinstance(tensors["divisor"], float | int):
        tensors = {**tensors, "divisor": torch.tensor(float(tensors["divisor"]))}
    student = (tensors["hidden_ND"], tensors["lm_head_VD"], tensors["bias_V"])
    needs = [tensor is not None and tensor.requires_grad and is_grad_enabled for tensor in student]
    outputs = _operator(*tensors.values(), **knobs, impl=impl, needs=needs)
    return LossParts(outputs[0], *(part.detach() for part in outputs[1:NUM_PARTS]))


@torch.library.custom_op("distill_core::topk_kl", mutates_args=())
def _operator(
    hidden_ND: Tensor,
    lm_head_VD: Tensor,
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    teacher_tail_N: Tensor | None,
    labels_N: Tensor | None,
    weights_N: Tensor | None,
    valid_rows: Tensor | None,
    bias_V: Tensor | None,
    divisor: Tensor | None,
    temperature: float,
    kl_weight: float,
    ce_weight: float,
    z_loss_weight: float,
    divergence: str,
    jsd_weight: float,
    tail: str,
    chunk_tokens: int | None,
    logit_scale: float,
    logit_softcap: float | None,
    vocab_size: int | None,
    impl: str,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from .prepare import prepare

    given = dict(locals())
    del given["prepare"], given["needs"]
    prepared = prepare(**given, workspace=None, accumulate_head_grad=False)
    job, rows_M = prepared.job, prepared.rows_M
    sums, grads = run(prepared.hidden_MD, lm_head_VD, bias_V, prepared.compute, job, needs)
    hidden_grad_ND = grads.hidden_ND
    if hidden_grad_ND is not None and rows_M is not None:
        hidden_grad_ND = torch.zeros_like(hidden_ND, dtype=job.dtype).index_copy_(0, rows_M, hidden_grad_ND)
    values = {"loss": total_loss(sums, job), "num_valid": torch.full_like(sums.agreement, prepared.hidden_MD.shape[0]), **sums._asdict()}
    parts = (values[name].to(torch.int64 if name in COUNTS else job.dtype) for name in LossParts._fields)
    all_grads = (hidden_grad_ND, grads.head_RD, grads.bias_R)
    nothing = hidden_ND.new_empty(0, dtype=job.dtype)
    return (*parts, *(nothing.clone() if grad is None else grad.to(job.dtype) for grad in all_grads))


@_operator.register_fake
def _shapes(hidden_ND, lm_head_VD, *rest: Any, **named: Any):
    bias_V, needs = rest[6], named["needs"] if "needs" in named else rest[-1]
    dtype = compute_dtype(hidden_ND, lm_head_VD)
    parts = [hidden_ND.new_empty((), dtype=torch.int64 if name in COUNTS else dtype) for name in LossParts._fields]
    student = (hidden_ND, lm_head_VD, bias_V)
    grads = [
        tensor.new_empty(tensor.shape if needed else 0, dtype=dtype) if tensor is not None else hidden_ND.new_empty(0, dtype=dtype)
        for tensor, needed in zip(student, needs, strict=True)
    ]
    return (*parts, *grads)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output[NUM_PARTS:])
    ctx.input_dtypes = [inputs[0].dtype, inputs[1].dtype, None if inputs[8] is None else inputs[8].dtype]
    ctx.needs = inputs[-1]
    ctx.num_inputs = len(inputs)


def _backward(ctx, upstream, *_):
    hidden, head, bias = (
        (grad * upstream).to(dtype) if needed else None
        for grad, dtype, needed in zip(ctx.saved_tensors, ctx.input_dtypes, ctx.needs, strict=True)
    )
    grads: list[Tensor | None] = [None] * ctx.num_inputs
    grads[0], grads[1], grads[8] = hidden, head, bias
    return tuple(grads)


_operator.register_autograd(_backward, setup_context=_save)
