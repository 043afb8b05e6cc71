"""Small changes of a model's input embeddings: random ones, and the worst that a few steps of gradient ascent find.

The change is added to what the embedding layer gives, by a hook, so wrappers, adapters, autocast and gradient checkpointing work as ever.
"""
# B: windows   L: tokens in a window   D: hidden size   V: vocabulary

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from .batches import Tensors, model_inputs
from .cache import Cache
from .config import LossConfig
from .errors import ModelError
from .heads import HeadOps, head_inputs, read_head, unwrapped
from .losses import LossParts, Workspace, topk_kl

SAMPLED_IDS = 1024
"""Tokens, evenly spread over the vocabulary, whose embeddings say how long an embedding is."""
START = 0.1
"""Where the ascent begins, as a share of the radius: not at 0, where a student that has reached its teacher has no gradient
(Miyato et al. 2017, arXiv:1704.03976, section 3.3)."""


def mean_embedding_norm(model: nn.Module, vocab_size: int) -> torch.Tensor:
    """0-d: mean L2 norm of what the embedding layer gives, over up to SAMPLED_IDS ids spread over the vocabulary. No gradient."""
    embed = unwrapped(model).get_input_embeddings()
    ids = torch.linspace(0, vocab_size - 1, min(SAMPLED_IDS, vocab_size), device=embed.weight.device).long()
    with torch.no_grad():
        return embed(ids).float().norm(dim=-1).mean()


@contextmanager
def added_to_embeddings(model: nn.Module, change_BLD: torch.Tensor) -> Iterator[None]:
    """Inside, every forward pass reads its input embeddings with this added. Raises ModelError where they are read more than once."""
    calls = 0

    def add(module: nn.Module, args: Any, output_BLD: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return output_BLD + change_BLD.to(output_BLD.dtype)

    hook = unwrapped(model).get_input_embeddings().register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()
    if calls != 1:
        raise ModelError(
            f"model {type(unwrapped(model)).__name__} read its input embeddings {calls} times in one pass, not once, so they cannot be "
            "perturbed. Leave loss.adversarial_weight at 0, or pick another model."
        )


def projected(change_BLD: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Every token's change, shortened to L2 norm `radius` where it is longer."""
    norm_BL1 = change_BLD.norm(dim=-1, keepdim=True)
    return change_BLD * (radius / norm_BL1.clamp_min(torch.finfo(change_BLD.dtype).tiny)).clamp(max=1.0)


def directions(change_BLD: torch.Tensor) -> torch.Tensor:
    """Every token's change at length 1; 0 stays 0."""
    norm_BL1 = change_BLD.norm(dim=-1, keepdim=True)
    return torch.where(norm_BL1 > 0, change_BLD / norm_BL1.clamp_min(torch.finfo(change_BLD.dtype).tiny), 0.0)


def random_directions(shape: Sequence[int], seed: Sequence[int], device: torch.device) -> torch.Tensor:
    """float32, of length 1 in each token, uniform over directions; the same for the same seed on the same kind of device."""
    entropy = int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return directions(torch.randn(*shape, generator=torch.Generator(device).manual_seed(entropy), device=device))


def worst_change(
    value: Callable[[torch.Tensor], torch.Tensor], start_BLD: torch.Tensor, radius: torch.Tensor, *, num_steps: int
) -> torch.Tensor:
    """Projected gradient ascent: change <- P(change + radius * g / |g|), g the gradient of `value` (0-d) at each token.

    Each token's gradient is brought to length 1 and its change kept within the ball of that radius (FreeLB: Zhu et al. 2020,
    arXiv:1909.11764, algorithm 1, with the norm taken per token). The start is projected first. No graph is left, and no parameter
    gets a gradient.
    """
    change_BLD = projected(start_BLD, radius)
    for _ in range(num_steps):
        change_BLD = change_BLD.detach().requires_grad_()
        with torch.enable_grad():
            (gradient_BLD,) = torch.autograd.grad(value(change_BLD), change_BLD)
        change_BLD = projected(change_BLD.detach() + radius * directions(gradient_BLD), radius)
    return change_BLD.detach()


class PerturbedLoss:
    """T² x the divergence of loss.* from the cached targets, where the student reads changed embeddings."""

    def __init__(self, cache: Cache, loss: LossConfig, ops: HeadOps) -> None:
        self.packing, self.vocab_size, self.loss, self.ops = cache.packing, cache.plan.vocab_size, loss, ops
        self.workspace = Workspace()

    def parts(self, model: Any, inputs: Tensors, change_BLD: torch.Tensor, *, is_head_fixed: bool = False) -> LossParts:
        """Sums over the learned tokens. `is_head_fixed`: no gradient for the head, which the ascent does not need."""
        loss = self.loss
        with added_to_embeddings(model, change_BLD):
            hidden_BLD = head_inputs(model, **model_inputs(inputs, packing=self.packing))
        head = read_head(model, self.ops)
        bias_V = head.bias_V.detach() if is_head_fixed and head.bias_V is not None else head.bias_V
        return topk_kl(
            hidden_BLD[:, :-1].flatten(0, 1),
            head.weight_VD.detach() if is_head_fixed else head.weight_VD,
            inputs["teacher_ids"].flatten(0, 1),
            inputs["teacher_logprobs"].flatten(0, 1),
            teacher_tail_N=inputs["teacher_tail"].flatten(0, 1),
            labels_N=inputs["labels"].flatten(0, 1),
            valid_rows=inputs["valid_rows"],
            bias_V=bias_V,
            logit_scale=head.logit_scale,
            logit_softcap=head.logit_softcap,
            vocab_size=self.vocab_size,
            temperature=loss.temperature,
            divergence=loss.divergence,
            jsd_weight=loss.jsd_weight,
            tail=loss.tail,
            impl=loss.impl,
            chunk_tokens=loss.chunk_tokens,
            workspace=self.workspace,
        )

    def worst(self, model: Any, inputs: Tensors, radius: torch.Tensor, *, num_steps: int, seed: Sequence[int]) -> torch.Tensor:
        """The worst change that the ascent finds from a random start, [B, L, D]."""
        width = unwrapped(model).get_input_embeddings().weight.shape[1]
        device = inputs["input_ids"].device
        start_BLD = START * radius * random_directions((*inputs["input_ids"].shape, width), seed, device)
        return worst_change(
            lambda change_BLD: self.parts(model, inputs, change_BLD, is_head_fixed=True).loss, start_BLD, radius, num_steps=num_steps
        )
