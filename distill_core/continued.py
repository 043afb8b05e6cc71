"""Continuations drawn at random, many at once, each from random numbers of its own: they do not depend on who is in the same batch."""
# B: texts written at once   S: new tokens at most   V: vocabulary

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList


@dataclass(frozen=True)
class Sampled:
    token_ids: list[int]
    """New tokens, the end token left out."""
    is_finished: bool
    """Whether an end token came."""


class Pick(LogitsProcessor):
    """Leaves each text one token, the one its own random number falls on, so that a greedy decoder samples.

    Inverse transform sampling: tokens stand side by side, the most likely first, each as wide as its probability; top_p keeps the fewest
    that together reach it (Holtzman et al. 2020, arXiv:1904.09751, section 3.1), and the number, times what was kept, points at one.
    """

    def __init__(self, uniforms_BS: torch.Tensor, *, prompt_length: int, temperature: float, top_p: float, vocab_size: int) -> None:
        self._uniforms_BS = uniforms_BS
        self._prompt_length = prompt_length
        self._temperature, self._top_p, self._vocab_size = temperature, top_p, vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.shape[1] - self._prompt_length
        logits_BV = scores[:, : self._vocab_size].double() / self._temperature  # float64: a vocabulary's sum must not drift
        probs_BV, order_BV = logits_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before_BV = probs_BV.cumsum(-1) - probs_BV
        kept_BV = torch.where(before_BV < self._top_p, probs_BV, 0.0)
        ends_BV = kept_BV.cumsum(-1)
        points_B1 = self._uniforms_BS[:, step, None] * ends_BV[:, -1:]
        place_B1 = (ends_BV <= points_B1).sum(-1, keepdim=True)
        last_B1 = (kept_BV > 0).sum(-1, keepdim=True) - 1
        picked_B1 = order_BV.gather(-1, torch.minimum(place_B1, last_B1))
        return torch.full_like(scores, -torch.inf).scatter(-1, picked_B1, 0.0)


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a text: the tokenizer's, and those of the model's own generation config; [] where there is none."""
    named = getattr(model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})


@torch.no_grad()
def sample(
    model: Any,
    prompts: list[list[int]],
    *,
    numbers: Iterable[int],
    seed: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    vocab_size: int,
    end_ids: list[int],
) -> list[Sampled]:
    """One continuation for each prompt, padded at the left and written together.

    `numbers`: which draw each is; with the seed it fixes its random numbers. The same for any batch, but for rounding: a model's
    logits differ in their last bits between batches of other shapes, so a number close to a border may fall on the other side.
    """
    device = next(model.parameters()).device
    length = max(len(prompt) for prompt in prompts)
    padding = end_ids[0] if end_ids else 0
    ids_BL = torch.tensor([[padding] * (length - len(prompt)) + prompt for prompt in prompts], device=device)
    mask_BL = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    uniforms_BS = torch.from_numpy(np.stack([np.random.default_rng([seed, number]).random(max_new_tokens) for number in numbers]))
    pick = Pick(uniforms_BS.to(device), prompt_length=length, temperature=temperature, top_p=top_p, vocab_size=vocab_size)
    made_BS = model.generate(
        ids_BL,
        attention_mask=mask_BL,
        do_sample=False,
        repetition_penalty=1.0,  # a model's own generation config may ask for more, and would change what it believes
        max_new_tokens=max_new_tokens,
        eos_token_id=end_ids or None,
        pad_token_id=padding,
        logits_processor=LogitsProcessorList([pick]),
        use_cache=True,
    )[:, length:]
    return [_until_the_end(row, set(end_ids)) for row in made_BS.tolist()]


def _until_the_end(made: list[int], ends: set[int]) -> Sampled:
    end = next((place for place, token in enumerate(made) if token in ends), None)
    return Sampled(made[:end], end is not None)
