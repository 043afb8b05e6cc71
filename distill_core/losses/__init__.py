"""The one door to the distillation loss: a divergence from a stored top-K teacher, cross-entropy and z-loss, in one pass."""

# N: tokens (batch x sequence, flattened)   M: those that are learned from   V: vocabulary   D: hidden size   K: stored teacher entries
from typing import Any

import torch
from torch import Tensor

from ..config import Divergence, Impl, Tail
from . import heads
from .choice import available_impls, default_chunk_tokens
from .compiled import topk_kl_compiled
from .contract import IGNORE_INDEX, LossParts
from .floors import loss_floor
from .gaps import gap_rows
from .prepare import prepare
from .targets import check_targets
from .workspace import Workspace

__all__ = [
    "IGNORE_INDEX",
    "LossParts",
    "Workspace",
    "available_impls",
    "check_targets",
    "default_chunk_tokens",
    "gap_rows",
    "loss_floor",
    "topk_kl",
]


def topk_kl(
    hidden_ND: Tensor,
    lm_head_VD: Tensor,
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    *,
    teacher_tail_N: Tensor | None = None,
    labels_N: Tensor | None = None,
    weights_N: Tensor | None = None,
    valid_rows: Tensor | None = None,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    kl_weight: float = 1.0,
    ce_weight: float = 0.0,
    z_loss_weight: float = 0.0,
    divisor: Tensor | float | None = None,
    divergence: Divergence = "forward_kl",
    jsd_weight: float = 0.5,
    tail: Tail = "bucket",
    impl: Impl = "auto",
    chunk_tokens: int | None = None,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    vocab_size: int | None = None,
    workspace: Workspace | None = None,
    accumulate_head_grad: bool = False,
) -> LossParts:
    """kl_weight * T^2 * KL + ce_weight * CE + z_loss_weight * L^2, summed over the valid tokens, in nats; the caller divides once.

    The student's logits are cap * tanh(logit_scale * (hidden_ND lm_head_VD^T + bias_V) / cap), cap = logit_softcap, always held
    in float32 (float64 for float64 inputs). Head rows from `vocab_size` on are padding: no probability, zero gradient.

    teacher_ids_NK, teacher_logprobs_NK: natural-log probabilities at T = 1 over the real vocabulary, the most likely entry first,
        no id twice in a row (`check_targets` looks). -inf marks an empty entry, whose id may be anything.
    teacher_tail_N: log of the sum, over the tokens outside the K, of exp(logprob / temperature), that is, at the temperature asked
        for; -inf where there is none. Needed by tail "bucket" and "drop". The loss normalizes entries and tail together.
    labels_N: next-token ids. Rows with IGNORE_INDEX are taken out before any product, whatever they hold; None: every row is valid.
    weights_N: what each token counts, in loss and gradient, 0 or more; a constant.
    valid_rows: [M] numbers of the rows that are learned from, where the collator knows them: on a GPU, finding them in the labels
        makes the host wait. No row twice, none whose label is IGNORE_INDEX.
    temperature: T of both sides of the KL part. T^2 multiplies value *and* gradient, so that the soft gradient keeps its size
        (Hinton et al. 2015, arXiv:1503.02531, section 2). Cross-entropy is always at T = 1.
    z_loss_weight: weight of L^2, L = log-sum-exp of the logits at T = 1, which keeps logits small (Chowdhery et al. 2022,
        arXiv:2204.02311, section 5).
    divisor: loss and gradient are divided by it, for instance the valid tokens of the whole step: free here, while dividing the loss
        afterwards costs a pass over every gradient. A tensor is not waited for.
    divergence: "forward_kl" is KL(teacher || student), "reverse_kl" KL(student || teacher), "jsd" with b = jsd_weight and
        m = b teacher + (1 - b) student: b KL(teacher || m) + (1 - b) KL(student || m) (Agarwal et al. 2024, arXiv:2306.13649).
    tail: what becomes of the mass outside the K. With q the teacher, p the student, both at T, m = sum of q over the K:
        "bucket"       one more entry holds it, on both sides: 0 with zero gradient where student == teacher, else above 0;
        "drop"         its term is left out: the forward gradient is m p - q, the student's tail is pulled down, the value can be below 0;
        "renormalize"  forward, jsd: the teacher is spread over its K, the student over all tokens: biased, -log m (forward) where
                       student == teacher. reverse: *both* sides are taken over the K, since a teacher of empty tail would be
                       infinitely far from any student; the student's tail is then free.
    impl: "reference" (dense definition), "chunked" (any device), "triton" (GPU), "tiled" (least memory: tiles of vocabulary, the
        logits computed twice), or "auto": triton on CUDA where it is installed, else chunked; which one and why is logged once.
    chunk_tokens: tokens per chunk of the head; None: 512 on a CPU, 256 above 65,536 tokens of vocabulary; on a GPU 2048 within 1 GiB.
        Peak beyond inputs and gradients: about chunk_tokens * V * 4 bytes (an eighth more each for a softcap and for labels at T != 1).
        impl "tiled": 2048, and chunk_tokens * 1024 * 4 bytes.
    workspace: buffers kept from call to call, see Workspace; None: made for this call.
    accumulate_head_grad: add the head's gradient to lm_head_VD.grad in the forward pass already, which saves a tensor of V * D. Then
        backward must be called once, on the loss as it is (use `divisor`); a GradScaler, DDP and torch.autograd.grad need False.

    Raises LossInputError for shapes, types, settings, and (on a CPU, where looking is free) values that the loss cannot be computed from.
    """
    tensors: dict[str, Any] = {
        "hidden_ND": heads.whole("hidden_ND", hidden_ND),
        "lm_head_VD": heads.whole("lm_head_VD", lm_head_VD),
        "teacher_ids_NK": teacher_ids_NK,
        "teacher_logprobs_NK": teacher_logprobs_NK,
        "teacher_tail_N": teacher_tail_N,
        "labels_N": labels_N,
        "weights_N": weights_N,
        "valid_rows": valid_rows,
        "bias_V": heads.whole("bias_V", bias_V),
        "divisor": divisor,
    }
    knobs: dict[str, Any] = {
        "temperature": temperature,
        "kl_weight": kl_weight,
        "ce_weight": ce_weight,
        "z_loss_weight": z_loss_weight,
        "divergence": divergence,
        "jsd_weight": jsd_weight,
        "tail": tail,
        "chunk_tokens": chunk_tokens,
        "logit_scale": logit_scale,
        "logit_softcap": logit_softcap,
        "vocab_size": vocab_size,
    }
    if torch.compiler.is_compiling():
        return topk_kl_compiled(
            tensors, knobs, impl=impl, is_grad_enabled=torch.is_grad_enabled(), accumulate_head_grad=accumulate_head_grad
        )
    ready = prepare(**tensors, **knobs, impl=impl, workspace=workspace, accumulate_head_grad=accumulate_head_grad)
    return ready.differentiable(tensors["lm_head_VD"], tensors["bias_V"])
