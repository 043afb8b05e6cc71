"""Rebuild the built-in tokenizer and teacher from nothing: python data/build_teacher.py

1. train the tokenizer on generated stories    2. train the teacher on stories that are made as it goes
3. save it as float16 and load it again        4. measure what was saved, against the known entropy of the text

The work lies in <out>.partial until all is measured, so a killed build goes on from its last checkpoint, and <out> is
always a whole teacher. Figures go into training.json beside the weights.
"""
# B: documents in one forward pass   L: tokens of the longest of them   D: hidden size   N: tokens to predict

import argparse
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import stories
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

EOS, PAD = "<eos>", "<pad>"
EOS_ID, PAD_ID = 0, 1
WINDOW_TOKENS = 256  # no story is longer, so every one is learned whole
WARMUP_STEPS = 100
CHECKPOINT_S = 180
GROUP_DOCUMENTS = 10
"""Documents in one forward pass, sorted by length: little padding, and attention only as long as the story.
Measured on one CPU thread: 5,200 tokens/s, against 4,260 for windows of 256 with a block-diagonal mask (same result)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What makes the teacher; with the same versions and threads, the same recipe makes the same teacher."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 4
    num_heads: int = 4
    tokenizer_documents: int = 30_000
    steps: int = 4000
    documents_per_step: int = 30
    muon_learning_rate: float = 0.02
    """Peak for the matrices between embedding and head."""
    adamw_learning_rate: float = 0.006
    """Peak for the tied embedding and the norms."""
    weight_decay: float = 0.05
    heldout_documents: int = 2_000
    seed: int = 0


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


# ---------------------------------------------------------------- text
def train_tokenizer(recipe: Recipe) -> tokenizers.Tokenizer:
    """Byte-level BPE with recipe.vocab_size entries; the same seed gives the same file."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (story.text for story in stories.stories(recipe.tokenizer_documents, f"tokenizer-{recipe.seed}"))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def example(story: stories.Story, tokenizer: tokenizers.Tokenizer) -> Example:
    """Tokens of one story; a token is determined when its last character is."""
    encoding = tokenizer.encode(story.text)
    determined = [any(start < end <= stop for start, stop in story.determined) for _, end in encoding.offsets]
    return Example(token_ids=[EOS_ID, *encoding.ids, EOS_ID], is_determined=[False, *determined, False], nats=story.nats)


def heldout_examples(recipe: Recipe, tokenizer: tokenizers.Tokenizer) -> tuple[list[Example], frozenset[str]]:
    """The stories that judge the teacher, and their texts, so that none of them is trained on."""
    heldout = list(stories.stories(recipe.heldout_documents, f"heldout-{recipe.seed}"))
    return [example(story, tokenizer) for story in heldout], frozenset(story.text for story in heldout)


def batches(recipe: Recipe, tokenizer: tokenizers.Tokenizer, unseen: frozenset[str], first_step: int) -> Iterator[list[Example]]:
    """One batch for each step from first_step on; which one depends on seed and step alone."""
    for step in range(first_step, recipe.steps):
        written = stories.stories(recipe.documents_per_step, f"teacher-{recipe.seed}-{step}")
        yield [example(story, tokenizer) for story in written if story.text not in unseen]


# ---------------------------------------------------------------- model
def fresh_teacher(recipe: Recipe) -> transformers.LlamaForCausalLM:
    torch.manual_seed(recipe.seed)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=recipe.vocab_size,
            hidden_size=recipe.hidden_size,
            intermediate_size=recipe.intermediate_size,
            num_hidden_layers=recipe.num_layers,
            num_attention_heads=recipe.num_heads,
            max_position_embeddings=2 * WINDOW_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=EOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        )
    )


def optimizers(model: transformers.LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the body, AdamW for the rest. Muon took a third fewer tokens to the same loss here."""
    body, rest = [], []
    for name, weight in model.named_parameters():
        (body if weight.ndim == 2 and "embed_tokens" not in name else rest).append(weight)
    return [
        torch.optim.Muon(body, lr=recipe.muon_learning_rate, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(rest, lr=recipe.adamw_learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


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


# ---------------------------------------------------------------- training
def learning_rate_factor(step: int, steps: int) -> float:
    """Linear up over WARMUP_STEPS, linear down to nothing."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / steps)


def train_step(
    model: transformers.LlamaForCausalLM, optimizer_pair: list[torch.optim.Optimizer], batch: list[Example], factor: float
) -> float:
    """One step on one batch, at `factor` of the peak learning rates; the mean loss in nats per token."""
    tokens = sum(len(each.token_ids) - 1 for each in batch)
    total = 0.0
    for group in groups(batch, GROUP_DOCUMENTS):
        logits_NV, next_N, _ = predict(model, group)
        loss = torch.nn.functional.cross_entropy(logits_NV, next_N, reduction="sum") / tokens
        loss.backward()
        total += loss.item()
    for optimizer in optimizer_pair:
        for weights in optimizer.param_groups:
            weights["lr"] = weights.setdefault("peak_lr", weights["lr"]) * factor
        optimizer.step()
        optimizer.zero_grad()
    return total


def save_checkpoint(folder: Path, model: torch.nn.Module, optimizer_pair: list[torch.optim.Optimizer], progress: dict) -> None:
    partial = folder / "checkpoint.pt.partial"
    torch.save({"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizer_pair], "progress": progress}, partial)
    os.replace(partial, folder / "checkpoint.pt")


def train(recipe: Recipe, tokenizer: tokenizers.Tokenizer, folder: Path) -> tuple[transformers.LlamaForCausalLM, dict]:
    """The trained teacher and {step, tokens, cpu_s, history}; goes on from a checkpoint in the folder if there is one."""
    heldout, unseen = heldout_examples(recipe, tokenizer)
    model, progress = fresh_teacher(recipe), {"step": 0, "tokens": 0, "cpu_s": 0.0, "history": []}
    optimizer_pair = optimizers(model, recipe)
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizer_pair, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        progress = saved["progress"]
        print(f"going on from step {progress['step']:,}")
    started_at, began, last_save, last_cpu = progress["step"], time.monotonic(), time.monotonic(), time.process_time()
    for step, batch in enumerate(batches(recipe, tokenizer, unseen, started_at), started_at):
        loss = train_step(model, optimizer_pair, batch, learning_rate_factor(step, recipe.steps))
        done = progress["step"] = step + 1
        progress["tokens"] += sum(len(each.token_ids) - 1 for each in batch)
        progress["cpu_s"] += time.process_time() - last_cpu
        last_cpu = time.process_time()
        if done % 50 == 0:
            left_s = (time.monotonic() - began) / (done - started_at) * (recipe.steps - done)
            print(
                f"step {done:,} of {recipe.steps:,}   loss {loss:.3f}   {progress['cpu_s']:.0f} CPU-s   {left_s / 60:.0f} min left",
                flush=True,
            )
        if done % 500 == 0:
            quality = measure(model, heldout[:300])
            progress["history"].append({"step": done, "loss": quality.loss, "gap": quality.gap, "probe_accuracy": quality.probe_accuracy})
            print(f"   300 held-out stories: {shown(quality)}", flush=True)
        if time.monotonic() - last_save > CHECKPOINT_S or done == recipe.steps:
            save_checkpoint(folder, model, optimizer_pair, progress)
            last_save = time.monotonic()
    return model, progress


# ---------------------------------------------------------------- files
def shown(quality: Quality) -> str:
    return f"loss {quality.loss:.4f}   gap to the entropy {quality.gap:.4f}   determined words right {quality.probe_accuracy:.1%}"


def save_teacher(folder: Path, model: transformers.LlamaForCausalLM, tokenizer: tokenizers.Tokenizer) -> None:
    """A folder that plain from_pretrained loads: float16 safetensors and a fast tokenizer."""
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=EOS, eos_token=EOS, pad_token=PAD, model_max_length=2 * WINDOW_TOKENS
    ).save_pretrained(folder)
    model.to(torch.float16).save_pretrained(folder)


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


def record(recipe: Recipe, quality: Quality, progress: dict) -> dict:
    return {
        "command": "python data/build_teacher.py",
        "recipe": asdict(recipe),
        "heldout": asdict(quality),
        "tokens_trained": progress["tokens"],
        "cpu_seconds": round(progress["cpu_s"]),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": versions(),
        "history": progress["history"],
    }


def build(recipe: Recipe, out: Path) -> dict:
    """Train, save, measure what was saved, and only then put it in the place of what was there. Returns the record."""
    work = out.with_name(out.name + ".partial")
    work.mkdir(parents=True, exist_ok=True)
    print(f"1. tokenizer: {recipe.vocab_size:,} entries from {recipe.tokenizer_documents:,} stories")
    tokenizer = train_tokenizer(recipe)
    print(f"2. teacher: {recipe.steps:,} steps of {recipe.documents_per_step} stories")
    model, progress = train(recipe, tokenizer, work)
    print("3. save and load again")
    save_teacher(work, model, tokenizer)
    saved = transformers.AutoModelForCausalLM.from_pretrained(work, dtype=torch.float32)
    heldout, _ = heldout_examples(recipe, tokenizer)
    quality = measure(saved, heldout)
    print(f"4. measured on {len(heldout):,} held-out stories: {shown(quality)}")
    figures = record(recipe, quality, progress)
    (work / "training.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    (work / "checkpoint.pt").unlink()
    shutil.rmtree(out, ignore_errors=True)
    work.rename(out)
    return figures


def main() -> None:
    defaults = Recipe()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "teacher", help="folder of the teacher")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="optimizer steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="another tokenizer, another teacher (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    build(Recipe(steps=arguments.steps, seed=arguments.seed), arguments.out)


if __name__ == "__main__":
    main()
