"""Which implementation computes the loss, and in chunks of how many tokens."""

import functools
import importlib.util
import logging
import os

import torch

from . import checks

logger = logging.getLogger(__name__.rpartition(".")[0])

IMPLS = ("reference", "chunked", "triton", "tiled")


def default_chunk_tokens(vocab_size: int, device: torch.device, impl: str = "chunked") -> int:
    """Tokens per chunk. Smaller ones re-read the weight's gradient too often, larger ones only cost memory.

    CPU: 512 and 256 were the fastest of 32 to 2048 at vocabularies of 32,000 and 151,936. GPU: a model, not a measurement.
    """
    if impl == "tiled":
        return 2048
    if device.type == "cpu":
        return 512 if vocab_size <= 65536 else 256
    within_1_gib = 2**30 // (4 * vocab_size) // 128 * 128
    return max(256, min(2048, within_1_gib))


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def available_impls() -> list[str]:
    """Implementations that can run here: triton needs a GPU, or its own interpreter (TRITON_INTERPRET=1)."""
    can_run = has_triton() and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1")
    return ["reference", "chunked", "tiled", *(["triton"] if can_run else [])]


def name_of(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    """The implementation that computes it. Raises LossInputError for a name that does not exist."""
    checks.check_name("impl", impl, ("auto", *IMPLS))
    if impl != "auto":
        return impl
    chosen, why = choose(device, dtype)
    say_once(chosen, why)
    return chosen


def choose(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """(implementation, why)."""
    if device.type != "cuda":
        return "chunked", f"the student is on {device.type}"
    if dtype == torch.float64:
        return "chunked", "the student is float64"
    return ("triton", "the student is on CUDA") if has_triton() else ("chunked", "triton is not installed")


@functools.cache
def say_once(impl: str, why: str) -> None:
    logger.info("loss: using impl='%s', because %s", impl, why)
