"""Continuations of given beginnings: the most likely tokens, so that they can be reproduced and read side by side."""

import time
from typing import Any

import torch

PROMPT_TOKENS = 24


@torch.no_grad()
def continuations(model: Any, tokenizer: Any, prompts: list[list[int]], *, num_tokens: int) -> tuple[list[str], float | None]:
    """(texts, generated tokens per second): greedy, one prompt at a time, up to num_tokens or the text's own end.

    The speed is that of one reader waiting for one answer, reading the prompt included; None without prompts.
    """
    model.eval()
    device = next(model.parameters()).device
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    texts, num_generated, started = [], 0, time.perf_counter()
    for prompt in prompts:
        ids_1L = torch.tensor([prompt], device=device)
        made = model.generate(
            ids_1L, attention_mask=torch.ones_like(ids_1L), do_sample=False, max_new_tokens=num_tokens, pad_token_id=padding, use_cache=True
        )[0, len(prompt) :]
        num_generated += len(made)
        texts.append(tokenizer.decode(made, skip_special_tokens=True))
    elapsed_s = time.perf_counter() - started
    return texts, num_generated / elapsed_s if prompts else None


def beginnings(input_ids: list[list[int]], first_lengths: list[int], *, num_prompts: int) -> list[list[int]]:
    """Prompts from evenly spaced windows: at most 24 tokens, and at most half, of each one's first document."""
    total = len(input_ids)
    count = min(num_prompts, total)
    picked = [i * total // count for i in range(count)]
    return [input_ids[i][: max(1, min(PROMPT_TOKENS, first_lengths[i] // 2))] for i in picked]
