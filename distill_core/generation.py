"""Continuations of given beginnings: the most likely tokens, so that they can be reproduced and read side by side."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import BaseStreamer

PROMPT_TOKENS = 24


@dataclass(frozen=True)
class Continuations:
    """What a model wrote, and how fast, for one reader waiting for one answer."""

    texts: list[str]
    tokens_per_s: float | None
    """Generated tokens per second, reading the prompt included; None without prompts."""
    first_token_s: float | None
    """Median time from the prompt to its first token, seconds; None without prompts."""


class FirstToken(BaseStreamer):
    """Notes when the first token after the prompt arrived."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.waited_s: float | None = None
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._is_prompt and self.waited_s is None:
            self.waited_s = time.perf_counter() - self.started
        self._is_prompt = False

    def end(self) -> None:
        """Nothing is held back."""


@torch.no_grad()
def continuations(
    model: Any, tokenizer: Any, prompts: list[list[int]], *, num_tokens: int, others: list[dict[str, Any]] | None = None
) -> Continuations:
    """Greedy, one prompt at a time, up to num_tokens or the text's own end; `others`: what the model is called with besides each prompt."""
    model.eval()
    device = next(model.parameters()).device
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    texts, waits, num_generated, started = [], [], 0, time.perf_counter()
    for prompt, other in zip(prompts, others or [{}] * len(prompts), strict=True):
        ids_1L = torch.tensor([prompt], device=device)
        first = FirstToken()
        made = model.generate(
            ids_1L,
            attention_mask=torch.ones_like(ids_1L),
            do_sample=False,
            max_new_tokens=num_tokens,
            pad_token_id=padding,
            use_cache=True,
            streamer=first,
            **{name: tensor.to(device) for name, tensor in other.items()},
        )[0, len(prompt) :]
        num_generated += len(made)
        waits += [first.waited_s] if first.waited_s is not None else []
        texts.append(tokenizer.decode(made, skip_special_tokens=True))
    elapsed_s = time.perf_counter() - started
    return Continuations(texts, num_generated / elapsed_s if prompts else None, statistics.median(waits) if waits else None)


def beginnings(input_ids: list[list[int]], first_lengths: list[int], *, num_prompts: int) -> list[list[int]]:
    """Prompts from evenly spaced windows: at most 24 tokens, and at most half, of each one's first document."""
    total = len(input_ids)
    count = min(num_prompts, total)
    picked = [i * total // count for i in range(count)]
    return [input_ids[i][: max(1, min(PROMPT_TOKENS, first_lengths[i] // 2))] for i in picked]
