"""The one door to the distillation loss: forward or reverse KL from a stored top-K teacher, and cross-entropy, in one pass."""

# N: tokens (batch x sequence, flattened)   V: vocabulary   D: hidden size   K: stored teacher entries per token
import functools
import importlib.util
import logging
import os

import torch
from torch import Tensor

from ..config import Divergence, Impl, Tail
from . import checks
from .contract import IGNORE_INDEX, Implementation, Knobs, LossParts, compute_dtype
from .floors import loss_floor

__all__ = ["IGNORE_INDEX", "LossParts", "available_impls", "loss_floor", "topk_kl"]

logger = logging.getLogger(__name__)


def topk_kl(
    hidden_ND: Tensor,
    lm_head_VD: Tensor,
    teacher_ids_NK: Tensor,
    teacher_logprobs_NK: Tensor,
    *,
    teacher_tail_N: Tensor | None = None,
    labels_N: Tensor | None = None,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    kl_weight: float = 1.0,
    ce_weight: float = 0.0,
    divergence: Divergence = "forward_kl",
    tail: Tail = "bucket",
    impl: Impl = "auto",
    chunk_tokens: int | None = None,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    vocab_size: int | None = None,
) -> LossParts:
    """kl_weight * T^2 * KL + ce_weight * CE, summed over the valid tokens, in nats; the caller divides once by their number.

    The student's logits are cap * tanh(logit_scale * (hidden_ND lm_head_VD^T + bias_V) / cap), cap = logit_softcap, always held
    in float32 (float64 for float64 inputs). Head rows from `vocab_size` on are padding: no probability, zero gradient.

    teacher_ids_NK, teacher_logprobs_NK: natural-log probabilities at T = 1 over the real vocabulary, the most likely entry first,
        no id twice in a row. -inf marks an empty entry, whose id may be anything.
    teacher_tail_N: log of the sum, over the tokens outside the K, of exp(logprob / temperature), that is, at the temperature asked
        for; -inf where there is none. Needed by tail "bucket" and "drop". The loss normalizes entries and tail together.
    labels_N: next-token ids. Rows with IGNORE_INDEX are taken out before any product, whatever they hold; None: every row is valid.
    temperature: T of both sides of the KL part. T^2 multiplies value *and* gradient, so that the soft gradient keeps its size
        (Hinton et al. 2015, arXiv:1503.02531, section 2). Cross-entropy is always at T = 1.
    divergence: "forward_kl" is KL(teacher || student), "reverse_kl" KL(student || teacher).
    tail: what becomes of the mass outside the K. With q the teacher, p the student, both at T, m = sum of q over the K:
        "bucket"       one more entry holds it, on both sides: 0 with zero gradient where student == teacher, else above 0;
        "drop"         its term is left out: the forward gradient is m p - q, the student's tail is pulled down, the value can be below 0;
        "renormalize"  forward: the teacher is spread over its K, the student over all tokens: biased, -log m where student == teacher.
                       reverse: *both* sides are taken over the K, since a teacher of empty tail would be infinitely far from any student;
                       the student's tail is then free.
    impl: "reference" (dense definition), "chunked" (any device), "triton" (GPU), or "auto": triton on CUDA where it is installed, else
        chunked; which one and why is logged once.
    chunk_tokens: tokens per chunk of the head; None: 512 on a CPU, 256 above 65,536 tokens of vocabulary; on a GPU 2048 within 1 GiB.
        Peak beyond inputs and gradients: about chunk_tokens * V * 4 bytes (an eighth more each for a softcap and for labels at T != 1).

    Raises LossInputError for shapes, types, settings, and (on a CPU, where looking is free) values that the loss cannot be computed from.
    """
    checks.check_head(hidden_ND, lm_head_VD, bias_V)
    checks.check_shapes(hidden_ND, teacher_ids_NK, teacher_logprobs_NK, teacher_tail_N, labels_N)
    real_vocab = lm_head_VD.shape[0] if vocab_size is None else vocab_size
    knobs = Knobs(
        temperature=float(temperature),
        kl_weight=float(kl_weight),
        ce_weight=float(ce_weight),
        divergence=divergence,
        tail=tail,
        logit_scale=float(logit_scale),
        logit_softcap=None if logit_softcap is None else float(logit_softcap),
        vocab_size=real_vocab,
        chunk_tokens=default_chunk_tokens(real_vocab, hidden_ND.device) if chunk_tokens is None else chunk_tokens,
    )
    checks.check_knobs(knobs, head_rows=lm_head_VD.shape[0])
    checks.check_combination(knobs, teacher_tail_N, labels_N)
    checks.check_devices(
        hidden_ND=hidden_ND,
        lm_head_VD=lm_head_VD,
        bias_V=bias_V,
        teacher_ids_NK=teacher_ids_NK,
        teacher_logprobs_NK=teacher_logprobs_NK,
        teacher_tail_N=teacher_tail_N,
        labels_N=labels_N,
    )
    dtype = compute_dtype(hidden_ND, lm_head_VD)
    implementation = _implementation(impl, hidden_ND.device, dtype)
    rows_M = checks.valid_rows(labels_N)
    targets = checks.build_targets(teacher_ids_NK, teacher_logprobs_NK, teacher_tail_N, labels_N, rows_M, dtype=dtype)
    if hidden_ND.device.type == "cpu":
        checks.check_values(targets, vocab_size=real_vocab)
    if rows_M is not None:
        hidden_ND = hidden_ND.index_select(0, rows_M)
    return implementation(hidden_ND, lm_head_VD, bias_V, targets, knobs)


def default_chunk_tokens(vocab_size: int, device: torch.device) -> int:
    """Tokens per chunk. Smaller ones re-read the weight's gradient too often, larger ones only cost memory.

    CPU: 512 and 256 were the fastest of 32 to 2048 at vocabularies of 32,000 and 151,936. GPU: a model, not a measurement.
    """
    if device.type == "cpu":
        return 512 if vocab_size <= 65536 else 256
    within_1_gib = 2**30 // (4 * vocab_size) // 128 * 128
    return max(256, min(2048, within_1_gib))


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def available_impls() -> list[str]:
    """Implementations that can run here: triton needs a GPU, or its own interpreter (TRITON_INTERPRET=1)."""
    can_run = has_triton() and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1")
    return ["reference", "chunked", *(["triton"] if can_run else [])]


def _implementation(impl: str, device: torch.device, dtype: torch.dtype) -> Implementation:
    checks.check_name("impl", impl, ("auto", "reference", "chunked", "triton"))
    if impl == "auto":
        impl, why = _choose(device, dtype)
        _say_once(impl, why)
    if impl == "reference":
        from .reference import topk_kl_reference

        return topk_kl_reference
    if impl == "chunked":
        from .chunked import topk_kl_chunked

        return topk_kl_chunked
    from .triton_loss import topk_kl_triton

    return topk_kl_triton


def _choose(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """(implementation, why)."""
    if device.type != "cuda":
        return "chunked", f"the student is on {device.type}"
    if dtype == torch.float64:
        return "chunked", "the student is float64"
    return ("triton", "the student is on CUDA") if has_triton() else ("chunked", "triton is not installed")


@functools.cache
def _say_once(impl: str, why: str) -> None:
    logger.info("loss: using impl='%s', because %s", impl, why)
