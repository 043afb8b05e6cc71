"""Measure the built-in teacher on stories it has not seen: python data/measure_teacher.py

Loss against the known entropy of the text, and how often it gives the words that the story determines, in all and by kind of story.
"""
# B: documents in one forward pass   L: tokens of the longest   D: hidden size   N: tokens to predict   V: vocabulary   P = L - 1

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import stories
import tokenizers
import torch
import transformers

EOS, PAD = "<eos>", "<pad>"
EOS_ID, PAD_ID = 0, 1
TEACHER = Path(__file__).resolve().parent / "teacher"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One story as the teacher reads it: <eos> story <eos>."""

    token_ids: list[int]
    is_determined: list[bool]
    """Per token: does the story so far leave no choice of what comes here?"""
    nats: float
    """-log probability with which the generator wrote this story."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    tokens: int
    loss: float
    """Nats per token."""
    entropy: float
    """Nats per token that no model can go below, but for the few stories that can be made in two ways."""
    gap: float
    probe_tokens: int
    probe_accuracy: float
    """Share of determined tokens that are the model's first choice: does it remember the story?"""


def example(story: stories.Story, tokenizer: tokenizers.Tokenizer) -> Example:
    """Tokens of one story; a token is determined when its last character is."""
    encoding = tokenizer.encode(story.text)
    determined = [any(start < end <= stop for start, stop in story.determined) for _, end in encoding.offsets]
    return Example(token_ids=[EOS_ID, *encoding.ids, EOS_ID], is_determined=[False, *determined, False], nats=story.nats)


def heldout_examples(count: int, seed: int, tokenizer: tokenizers.Tokenizer) -> tuple[list[Example], frozenset[str]]:
    """The stories that judge the teacher, and their texts, so that none of them is trained on."""
    heldout = list(stories.stories(count, f"heldout-{seed}"))
    return [example(story, tokenizer) for story in heldout], frozenset(story.text for story in heldout)


def groups(examples: list[Example], size: int) -> Iterator[list[Example]]:
    by_length = sorted(examples, key=lambda each: len(each.token_ids))
    for first in range(0, len(by_length), size):
        yield by_length[first : first + size]


def predict(model: transformers.LlamaForCausalLM, group: list[Example]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [N, V], next tokens [N] and whether each was determined [N]; padding takes part in nothing."""
    length = max(len(each.token_ids) for each in group)
    ids_BL = torch.tensor([each.token_ids + [PAD_ID] * (length - len(each.token_ids)) for each in group])
    determined_BL = torch.tensor([each.is_determined + [False] * (length - len(each.token_ids)) for each in group])
    # no attention mask: padding stands at the right, where causal attention cannot see it
    hidden_BLD = model.model(input_ids=ids_BL, use_cache=False).last_hidden_state
    real_BP = ids_BL[:, 1:] != PAD_ID
    return model.lm_head(hidden_BLD[:, :-1][real_BP]), ids_BL[:, 1:][real_BP], determined_BL[:, 1:][real_BP]


@torch.no_grad()
def measure(model: transformers.LlamaForCausalLM, examples: list[Example]) -> Quality:
    """Loss, gap to the entropy and probe accuracy on stories the model has not seen."""
    loss = hits = tokens = probes = 0.0
    for group in groups(examples, 50):
        logits_NV, next_N, determined_N = predict(model, group)
        loss += torch.nn.functional.cross_entropy(logits_NV, next_N, reduction="sum").item()
        hits += (logits_NV.argmax(-1) == next_N)[determined_N].sum().item()
        tokens += len(next_N)
        probes += determined_N.sum().item()
    entropy = math.fsum(each.nats for each in examples) / tokens
    return Quality(
        tokens=int(tokens),
        loss=loss / tokens,
        entropy=entropy,
        gap=loss / tokens - entropy,
        probe_tokens=int(probes),
        probe_accuracy=hits / probes,
    )


def shown(quality: Quality) -> str:
    return f"loss {quality.loss:.4f}   gap to the entropy {quality.gap:.4f}   determined words right {quality.probe_accuracy:.1%}"


def main() -> None:
    figures = json.loads((TEACHER / "training.json").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=int, default=figures["recipe"]["heldout_documents"], help="how many stories (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = tokenizers.Tokenizer.from_file(str(TEACHER / "tokenizer.json"))
    model = transformers.LlamaForCausalLM.from_pretrained(TEACHER, dtype=torch.float32)
    examples, _ = heldout_examples(arguments.docs, figures["recipe"]["seed"], tokenizer)
    print(f"{arguments.docs:,} held-out stories: {shown(measure(model, examples))}")
    kinds = [story.kind for story in stories.stories(arguments.docs, f"heldout-{figures['recipe']['seed']}")]
    for kind in sorted(set(kinds)):
        quality = measure(model, [each for each, its_kind in zip(examples, kinds) if its_kind == kind])
        print(f"   {kind:8} determined words right {quality.probe_accuracy:.1%} of {quality.probe_tokens:,}")


if __name__ == "__main__":
    main()
