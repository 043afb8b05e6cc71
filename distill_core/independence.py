"""What a position may depend on: nothing after it, and nothing of another document in its window."""
# B: windows tried   L: tokens in a window   D: hidden size

import inspect
import itertools

import torch
from torch import nn

from .errors import ModelError
from .heads import head_inputs, head_module, in_eval_mode, sample_ids, unwrapped

CUTS, LENGTH = (5, 9), 14
"""Where the first document ends in each of the windows tried, and how long they are."""
_WAY_OUT = "Set text.packing to false (one document per window), or pick another model."


def check_independence(model: nn.Module, vocab_size: int | None = None, *, packing: bool, trained: bool) -> None:
    """Raise ModelError unless every position depends on its own past alone.

    `packing`: several documents share a window, and must not see each other either. `trained`: follow gradients too, which show the
    faintest dependence: one that a student could learn to use. `vocab_size`: ids below it are used (none: every row of the head).
    """
    check_reads_forward_only(model, vocab_size)
    if packing:
        check_documents_kept_apart(model, vocab_size)
    if trained:
        check_gradient_paths(model, vocab_size, packing=packing)


def check_reads_forward_only(model: nn.Module, vocab_size: int | None = None) -> None:
    """Raise ModelError if hidden states change with the tokens after them, as in encoders (BERT) without `is_decoder`.

    Such a model would learn the next token by looking at it. Compared in eval mode.
    """
    ids_BL = _trial_ids(model, vocab_size)
    half = LENGTH // 2
    other_BL = torch.cat([ids_BL[:, :half], ids_BL[:, :half]], 1)
    with in_eval_mode(model), torch.no_grad():
        error, allowed = _difference(*(head_inputs(model, input_ids=ids)[:, :half] for ids in (ids_BL, other_BL)))
    if not error <= allowed:
        raise _reads_ahead(model, f"hidden states change by {error:.3g} (allowed {allowed:.3g}) with the tokens after them")


def check_documents_kept_apart(model: nn.Module, vocab_size: int | None = None) -> None:
    """Raise ModelError unless two documents in one window, told apart by `position_ids` that restart, are read as if each were alone.

    Hidden states are compared in eval mode for windows cut at different places. Recurrent models and models without position ids fail:
    they carry the first document into the second.
    """
    parameters = inspect.signature(unwrapped(model).forward).parameters
    if "position_ids" not in parameters and not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        raise ModelError(f"model {_name(model)} takes no position_ids, so documents that share a window would see each other. {_WAY_OUT}")
    ids_BL = _trial_ids(model, vocab_size)
    with in_eval_mode(model), torch.no_grad():
        shared_BLD = head_inputs(model, input_ids=ids_BL, position_ids=_positions(ids_BL.device))
        for row, cut in enumerate(CUTS):
            for start, end in itertools.pairwise((0, cut, LENGTH)):
                alone_LD = head_inputs(model, input_ids=ids_BL[row : row + 1, start:end])[0]
                error, allowed = _difference(alone_LD, shared_BLD[row, start:end])
                if not error <= allowed:
                    raise _mixes(model, f"hidden states of tokens {start} to {end - 1} change by {error:.3g} (allowed {allowed:.3g})")


def check_gradient_paths(model: nn.Module, vocab_size: int | None = None, *, packing: bool) -> None:
    """Raise ModelError if any gradient leads from a hidden state to a token that it must not see, however faint.

    In exact terms: 0 is what a mask leaves, in every floating-point type, while a short convolution at its initialisation changes
    hidden states by less than rounding may.
    """
    ids_BL = _trial_ids(model, vocab_size)
    half = LENGTH // 2
    ahead_BLD = _token_gradients(model, {"input_ids": ids_BL}, [slice(0, half)] * len(CUTS))
    if ahead_BLD[:, half:].any():
        raise _reads_ahead(model, "gradients lead from hidden states to the tokens after them")
    if not packing:
        return
    packed = {"input_ids": ids_BL, "position_ids": _positions(ids_BL.device)}
    across_BLD = _token_gradients(model, packed, [slice(cut, LENGTH) for cut in CUTS])
    if any(across_BLD[row, :cut].any() for row, cut in enumerate(CUTS)):
        raise _mixes(model, "gradients lead from the second to the first")


def _token_gradients(model: nn.Module, inputs: dict[str, torch.Tensor], kept: list[slice]) -> torch.Tensor:
    """Gradient of the sum of the kept hidden states, weighted at random, with respect to the embedded tokens, [B, L, D]."""
    embedded: list[torch.Tensor] = []

    def follow(_module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1].clone()  # some models scale it in place

    hook = unwrapped(model).get_input_embeddings().register_forward_hook(follow)
    try:
        with in_eval_mode(model), torch.enable_grad():
            hidden_BLD = head_inputs(model, **inputs).float()
            weights_BLD = torch.randn(hidden_BLD.shape, generator=torch.Generator().manual_seed(0)).to(hidden_BLD)
            total = torch.stack([(hidden_BLD[row, span] * weights_BLD[row, span]).sum() for row, span in enumerate(kept)]).sum()
            (gradient_BLD,) = torch.autograd.grad(total, embedded)
    finally:
        hook.remove()
    return gradient_BLD if gradient_BLD.shape[:2] == inputs["input_ids"].shape else gradient_BLD.transpose(0, 1)  # XLNet: [L, B, D]


def _positions(device: torch.device) -> torch.Tensor:
    """position_ids of two documents a window, [B, L]."""
    return torch.tensor([[*range(cut), *range(LENGTH - cut)] for cut in CUTS], device=device)


def _reads_ahead(model: nn.Module, how: str) -> ModelError:
    return ModelError(
        f"model {_name(model)} reads what comes after a position: {how}, so it would see what it shall predict. "
        "Set is_decoder to true in its config.json if it has that switch, or pick a causal model."
    )


def _mixes(model: nn.Module, how: str) -> ModelError:
    return ModelError(f"model {_name(model)} does not keep documents that share a window apart: {how} when another is there. {_WAY_OUT}")


def _difference(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, float]:
    """(largest difference, what rounding may do: a thousandth of the largest value in float32, a twentieth in narrower types)."""
    share = 1e-3 if expected.dtype == torch.float32 else 5e-2
    error = (expected.float() - found.float()).abs().max().item()
    return error, share * expected.float().abs().max().clamp_min(1e-6).item()


def _trial_ids(model: nn.Module, vocab_size: int | None) -> torch.Tensor:
    rows = head_module(model).weight.shape[0]
    return sample_ids(model, min(vocab_size or rows, rows), len(CUTS) * LENGTH).view(len(CUTS), LENGTH)


def _name(model: nn.Module) -> str:
    return type(unwrapped(model)).__name__
