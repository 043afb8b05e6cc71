"""How far the student is from the teacher at every single position, before anything is learned: for choosing among positions."""

# N: tokens (batch x sequence, flattened)   M: those that are learned from   C: tokens of one chunk   V: vocabulary   D: hidden size
from typing import Any

import torch
from torch import Tensor

from . import heads
from .chunked import even_chunk, filled_rows, make_products
from .closure import small_dtype
from .fused import bare
from .prepare import prepare
from .row_step import divergence_rows
from .workspace import Workspace


def gap_rows(
    hidden_ND: Tensor,
    lm_head_VD: Tensor,
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    *,
    teacher_tail_N: Tensor | None = None,
    labels_N: Tensor | None = None,
    valid_rows: Tensor | None = None,
    bias_V: Tensor | None = None,
    workspace: Workspace | None = None,
    **knobs: Any,
) -> Tensor:
    """The divergence of each valid token, [M], float64, nats, in the order of valid_rows (none: of the tokens); no graph.

    `knobs` as in topk_kl: temperature, divergence, jsd_weight, tail, chunk_tokens, logit_scale, logit_softcap, vocab_size. It is the loss's
    own first product and softmax, in chunks, so that nothing is tokens x vocabulary: a third of the loss's products, and no gradient.
    Raises LossInputError like topk_kl.
    """
    settings: dict[str, Any] = {"kl_weight": 1.0, "ce_weight": 0.0, "z_loss_weight": 0.0, "divergence": "forward_kl", "jsd_weight": 0.5}
    settings |= {"temperature": 1.0, "tail": "bucket", "chunk_tokens": None, "logit_scale": 1.0, "logit_softcap": None, "vocab_size": None}
    unknown = knobs.keys() - settings.keys()
    if unknown:
        raise TypeError(f"gap_rows has no setting {', '.join(sorted(unknown))}")
    hidden_ND, lm_head_VD = heads.whole("hidden_ND", hidden_ND).detach(), heads.whole("lm_head_VD", lm_head_VD).detach()
    bias_V = None if bias_V is None else heads.whole("bias_V", bias_V).detach()
    ready = prepare(
        hidden_ND=hidden_ND,
        lm_head_VD=lm_head_VD,
        bias_V=bias_V,
        teacher_ids_NK=teacher_ids_NK,
        teacher_logprobs_NK=teacher_logprobs_NK,
        teacher_tail_N=teacher_tail_N,
        labels_N=labels_N,
        weights_N=None,
        valid_rows=valid_rows,
        divisor=None,
        impl="chunked",
        accumulate_head_grad=False,
        workspace=workspace,
        **(settings | knobs),
    )
    job, hidden_MD = ready.job, ready.hidden_MD
    with bare(hidden_MD, job):
        products = make_products(lm_head_VD, bias_V, job)
        chunk = even_chunk(len(hidden_MD), job.knobs.chunk_tokens, job.row_multiple)
        filled_ND = filled_rows(hidden_MD, job.row_multiple)
        buffer_CV = job.knobs.workspace.rows(
            min(chunk, len(filled_ND)), job.knobs.vocab_size, like=hidden_MD, dtype=products.dtype, align=job.row_align
        )
        found = []
        for start in range(0, len(hidden_MD), chunk):
            stop, filled = min(start + chunk, len(hidden_MD)), min(start + chunk, len(filled_ND))
            products.logits(products.rows(filled_ND[start:filled]), buffer_CV[: filled - start])
            found.append(divergence_rows(buffer_CV[: stop - start], job.targets.rows(start, stop), job.knobs))
    return torch.cat(found) if found else hidden_MD.new_zeros(0, dtype=small_dtype(hidden_MD.device))
