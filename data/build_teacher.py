"""Rebuild the built-in tokenizer and teacher from nothing: python data/build_teacher.py

1. train the tokenizer on generated stories    2. train the teacher on stories that are made as it goes
3. save it as float16 and load it again        4. measure what was saved, against the known entropy of the text

The work lies in <out>.partial until all is measured, so a killed build goes on from its last checkpoint, and <out> is
always a whole teacher. Figures go into training.json beside the weights.
"""
# B: documents in one forward pass   L: tokens of the longest of them   D: hidden size   N: tokens to predict

import argparse
import json
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
from measure_teacher import EOS, EOS_ID, PAD, PAD_ID, TEACHER, Example, Quality, example, groups, heldout_examples, measure, predict, shown
from tokenizers import decoders, models, pre_tokenizers, trainers

WARMUP_STEPS = 100
CHECKPOINT_S = 180
MAX_TOKENS = 512
"""Longest text the files declare; stories have up to about 170 tokens (165 among 30,000), so every one is learned whole."""
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
            max_position_embeddings=MAX_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=EOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        )
    )


def optimizers(model: transformers.LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the body, AdamW for the rest.

    Held-out loss 1.06 after 300 steps (0.6M tokens); AdamW alone at 3e-3, its best of those tried, needed 2M tokens for 1.07.
    """
    body, rest = [], []
    for name, weight in model.named_parameters():
        (body if weight.ndim == 2 and "embed_tokens" not in name else rest).append(weight)
    return [
        torch.optim.Muon(body, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0),
    ]


# ---------------------------------------------------------------- training
def set_learning_rates(optimizer_pair: list[torch.optim.Optimizer], recipe: Recipe, step: int) -> None:
    """Linear up over WARMUP_STEPS, linear down to nothing."""
    factor = min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / recipe.steps)
    for optimizer, peak in zip(optimizer_pair, (recipe.muon_learning_rate, recipe.adamw_learning_rate), strict=True):
        for weights in optimizer.param_groups:
            weights["lr"] = peak * factor


def train_step(model: transformers.LlamaForCausalLM, optimizer_pair: list[torch.optim.Optimizer], batch: list[Example]) -> float:
    """One step on one batch; its mean loss in nats per token."""
    tokens = sum(len(each.token_ids) - 1 for each in batch)
    total = 0.0
    for group in groups(batch, GROUP_DOCUMENTS):
        logits_NV, next_N, _ = predict(model, group)
        loss = torch.nn.functional.cross_entropy(logits_NV, next_N, reduction="sum") / tokens
        loss.backward()
        total += loss.item()
    for optimizer in optimizer_pair:
        optimizer.step()
        optimizer.zero_grad()
    return total


def save_checkpoint(
    folder: Path, recipe: Recipe, model: torch.nn.Module, optimizer_pair: list[torch.optim.Optimizer], progress: dict
) -> None:
    states = {"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizer_pair]}
    partial = folder / "checkpoint.pt.partial"
    torch.save({"recipe": asdict(recipe), "progress": progress, **states}, partial)
    os.replace(partial, folder / "checkpoint.pt")


def load_checkpoint(folder: Path, recipe: Recipe, model: torch.nn.Module, optimizer_pair: list[torch.optim.Optimizer]) -> dict:
    """How far an unfinished build of the same recipe came: {step, tokens, cpu_s, history}; from nothing if there is none."""
    nothing = {"step": 0, "tokens": 0, "cpu_s": 0.0, "history": []}
    if not (folder / "checkpoint.pt").exists():
        return nothing
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    if saved["recipe"] != asdict(recipe):
        print("   the unfinished build there has another recipe: starting from nothing")
        return nothing
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizer_pair, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    print(f"   going on from step {saved['progress']['step']:,}")
    return saved["progress"]


def train(recipe: Recipe, tokenizer: tokenizers.Tokenizer, folder: Path) -> tuple[transformers.LlamaForCausalLM, dict]:
    """The trained teacher and its progress; goes on from a checkpoint in the folder if there is one."""
    heldout, unseen = heldout_examples(recipe.heldout_documents, recipe.seed, tokenizer)
    model = fresh_teacher(recipe)
    optimizer_pair = optimizers(model, recipe)
    progress = load_checkpoint(folder, recipe, model, optimizer_pair)
    first_step, began, last_save, last_cpu = progress["step"], time.monotonic(), time.monotonic(), time.process_time()
    for step, batch in enumerate(batches(recipe, tokenizer, unseen, first_step), first_step):
        set_learning_rates(optimizer_pair, recipe, step)
        loss = train_step(model, optimizer_pair, batch)
        done = progress["step"] = step + 1
        progress["tokens"] += sum(len(each.token_ids) - 1 for each in batch)
        if done % 50 == 0:
            left_s = (time.monotonic() - began) / (done - first_step) * (recipe.steps - done)
            print(f"   step {done:,} of {recipe.steps:,}   loss {loss:.3f}   {left_s / 60:.0f} min left", flush=True)
        if done % 500 == 0:
            quality = measure(model, heldout[:300])
            progress["history"].append({"step": done, "loss": quality.loss, "gap": quality.gap, "probe_accuracy": quality.probe_accuracy})
            print(f"   300 held-out stories: {shown(quality)}", flush=True)
        progress["cpu_s"] += time.process_time() - last_cpu
        last_cpu = time.process_time()
        if time.monotonic() - last_save > CHECKPOINT_S or done == recipe.steps:
            save_checkpoint(folder, recipe, model, optimizer_pair, progress)
            last_save = time.monotonic()
    return model, progress


# ---------------------------------------------------------------- files
def save_teacher(folder: Path, model: transformers.LlamaForCausalLM, tokenizer: tokenizers.Tokenizer) -> None:
    """A folder that plain from_pretrained loads: float16 safetensors and a fast tokenizer."""
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=EOS, eos_token=EOS, pad_token=PAD, model_max_length=MAX_TOKENS
    ).save_pretrained(folder)
    model.to(torch.float16).save_pretrained(folder)


def record(recipe: Recipe, quality: Quality, progress: dict) -> dict:
    return {
        "command": "python data/build_teacher.py",
        "recipe": asdict(recipe),
        "heldout": asdict(quality),
        "tokens_trained": progress["tokens"],
        "cpu_seconds": round(progress["cpu_s"]),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {
            "python": platform.python_version(),
            **{each.__name__: each.__version__ for each in (torch, transformers, tokenizers)},
        },
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
    heldout, _ = heldout_examples(recipe.heldout_documents, recipe.seed, tokenizer)
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
    parser.add_argument("--out", type=Path, default=TEACHER, help="folder of the teacher")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="optimizer steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="another tokenizer, another teacher (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    build(Recipe(steps=arguments.steps, seed=arguments.seed), arguments.out)


if __name__ == "__main__":
    main()
