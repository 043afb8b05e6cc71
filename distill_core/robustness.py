"""How well a student holds up where its input is not clean: noise and worst-case changes of its embeddings, and typos."""
# B: windows in a batch   L: tokens in a window   P = L - 1: positions

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .batches import Tensors, model_inputs, to_tensors
from .cache import Cache
from .config import LossConfig
from .errors import CacheError
from .heads import HeadOps, head_inputs, in_eval_mode, read_head, unwrapped
from .judgement import Row, bits_per_byte
from .losses import LossParts, topk_kl
from .perturbation import PerturbedLoss, mean_embedding_norm, random_directions

TYPO_SHARE = 0.1
"""Characters of a document's first half that are swapped with the next one, or dropped."""
SHORTEST = 16
"""Tokens of a document that is given typos; shorter ones have no second half to speak of."""
WORST_STEPS = 3


def robustness(
    model: Any, ops: HeadOps, cache: Cache, tokenizer: Any, *, radius: float, seed: int = 0, batch_windows: int = 8
) -> list[Row]:
    """Rows {'input', 'kl_to_teacher', 'bits_per_byte', 'num_tokens'} on the held-out text, always against the cached, clean targets.

    'clean'; 'noise' and 'worst case': each token's embedding changed by `radius` x the mean norm of the model's embeddings, in a random
    direction or as three steps of ascent find it; 'clean halves' and 'typos': second halves of documents alone, after a first half
    as it is, or with a tenth of its characters swapped or dropped. Raises CacheError where no held-out document is long enough.
    """
    with in_eval_mode(model):
        sums = _perturbed_sums(model, ops, cache, radius=radius, seed=seed, batch_windows=batch_windows)
        sums |= _typo_sums(model, ops, cache, tokenizer, seed=seed)
    return [
        {"input": name, "kl_to_teacher": kl / tokens, "bits_per_byte": bits_per_byte(nll, num_bytes), "num_tokens": int(tokens)}
        for name, (kl, nll, tokens, num_bytes) in sums.items()
    ]


def _perturbed_sums(model: Any, ops: HeadOps, cache: Cache, *, radius: float, seed: int, batch_windows: int) -> dict[str, NDArray]:
    """[KL, negative log-likelihood, tokens, bytes] summed over all held-out windows, by input."""
    perturbed = PerturbedLoss(cache, LossConfig(), ops)
    inner = unwrapped(model).get_input_embeddings().weight
    length = radius * mean_embedding_norm(model, cache.plan.vocab_size)
    sums = {name: np.zeros(4) for name in ("clean", "noise", "worst case")}
    total = cache.num_windows("heldout")
    for first in range(0, total, batch_windows):
        stored = cache.rows("heldout", list(range(first, min(first + batch_windows, total))))
        batch = {name: tensor.to(inner.device) for name, tensor in to_tensors(stored).items()}
        shape = (*batch["input_ids"].shape, inner.shape[1])
        changes = {
            "clean": torch.zeros(shape, device=inner.device),
            "noise": length * random_directions(shape, (seed, first, 0), inner.device),
            "worst case": perturbed.worst(model, batch, length, num_steps=WORST_STEPS, seed=(seed, first, 1)),
        }
        num_bytes = float(stored["token_bytes"][:, 1:][stored["targets"]].sum())
        for name, change_BLD in changes.items():
            with torch.no_grad():
                parts = perturbed.parts(model, batch, change_BLD)
            sums[name] += _sums(parts, num_bytes)
    return sums


def _sums(parts: LossParts, num_bytes: float) -> NDArray:
    return np.array([float(parts.kl), float(parts.ce), float(parts.num_valid), num_bytes])


def _typo_sums(model: Any, ops: HeadOps, cache: Cache, tokenizer: Any, *, seed: int) -> dict[str, NDArray]:
    """The same sums over the second halves of the held-out documents, each document read alone."""
    sums = {name: np.zeros(4) for name in ("clean halves", "typos")}
    dice = np.random.default_rng([seed, 2])
    for ids, targets, rows in _halves(cache):
        half = len(ids) // 2
        damaged = retyped(ids[:half], tokenizer, dice)
        # a longer first half would push the last tokens beyond the window that the model was made for: its beginning goes
        damaged = damaged[max(0, len(damaged) + len(ids) - half - cache.plan.window_tokens) :]
        for name, begun in (("clean halves", ids[:half]), ("typos", damaged)):
            parts = _second_half(model, ops, cache, begun, ids[half:], targets, rows)
            sums[name] += _sums(parts, float(rows["token_bytes"][targets].sum()))
    if not sums["typos"][2]:
        raise CacheError(
            f"cache {cache.name}: no held-out document has {SHORTEST} tokens, so typos cannot be tried. Capture longer documents."
        )
    return sums


def _halves(cache: Cache) -> Iterator[tuple[list[int], NDArray, dict[str, NDArray]]]:
    """(a document's ids, which tokens of its second half but the first are judged, what the cache holds of those) for each document."""
    for window in range(cache.num_windows("heldout")):
        stored = {name: values[0] for name, values in cache.rows("heldout", [window]).items()}
        starts = [*np.flatnonzero(stored["position_ids"] == 0).tolist(), cache.plan.window_tokens]
        for start, end in itertools.pairwise(starts):
            place = slice(start + (end - start) // 2, end - 1)  # positions: the token after each is predicted
            targets = stored["targets"][place]
            if end - start < SHORTEST or not targets.any():
                continue
            names = ("teacher_ids", "teacher_logprobs", "teacher_tail")
            rows = {name: stored[name][place] for name in names}
            rows["token_bytes"] = stored["token_bytes"][place.start + 1 : place.stop + 1]
            yield stored["input_ids"][start:end].tolist(), targets, rows


@torch.no_grad()
def _second_half(
    model: Any, ops: HeadOps, cache: Cache, begun: list[int], rest: list[int], targets: NDArray, rows: dict[str, NDArray]
) -> LossParts:
    """The model after a beginning, judged on the tokens of the rest that follow its first one."""
    device = next(model.parameters()).device
    ids_BL = torch.tensor([begun + rest], device=device)
    batch: Tensors = {"input_ids": ids_BL, "position_ids": torch.arange(ids_BL.shape[1], device=device)[None]}
    hidden_PD = head_inputs(model, **model_inputs(batch, packing=cache.packing))[0, len(begun) : -1]
    head, judged = read_head(model, ops), torch.from_numpy(targets).to(device)
    teacher = {name: torch.from_numpy(rows[name]).to(device)[judged] for name in ("teacher_ids", "teacher_logprobs", "teacher_tail")}
    return topk_kl(
        hidden_PD[judged],
        head.weight_VD,
        teacher["teacher_ids"],
        teacher["teacher_logprobs"],
        teacher_tail_N=teacher["teacher_tail"],
        labels_N=torch.tensor(rest[1:], device=device)[judged],
        bias_V=head.bias_V,
        logit_scale=head.logit_scale,
        logit_softcap=head.logit_softcap,
        vocab_size=cache.plan.vocab_size,
    )


def retyped(ids: list[int], tokenizer: Any, dice: np.random.Generator) -> list[int]:
    """The text of these tokens with typos, as tokens; special tokens at its beginning stay as they are."""
    special = set(tokenizer.all_special_ids)
    kept = next((place for place, each in enumerate(ids) if each not in special), len(ids))
    text = tokenizer.decode(ids[kept:], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return ids[:kept] + tokenizer(with_typos(text, dice), add_special_tokens=False)["input_ids"]


def with_typos(text: str, dice: np.random.Generator) -> str:
    """About TYPO_SHARE of the letters swapped with the letter after them, or dropped: as often the one as the other."""
    letters, place = [], 0
    while place < len(text):
        here = text[place]
        is_hit = here.isalpha() and dice.random() < TYPO_SHARE
        if is_hit and dice.random() < 0.5:
            place += 1
        elif is_hit and place + 1 < len(text) and text[place + 1].isalpha():
            letters += [text[place + 1], here]
            place += 2
        else:
            letters.append(here)
            place += 1
    return "".join(letters)


def robustness_table(rows: list[Row]) -> str:
    """Rows of {'who', 'input', …} as plain text, one line each."""
    lines = [f"{'':<14} {'input':<14} {'KL':>7} {'bits/byte':>9}"]
    lines += [f"{row['who']:<14} {row['input']:<14} {row['kl_to_teacher']:>7.3f} {row['bits_per_byte']:>9.3f}" for row in rows]
    return "\n".join(lines)
