"""A student with another tokenizer: taught by a translated cache, or, since plain KL cannot reach it, by hard labels alone.

The other tokenizer (1,500 tokens, byte-level) is trained on the plain cache's training text. Both arms are the same student on the same
windows. The hard labels are those of every token: an untrained model that speaks these tokens captured them, and only its text is used.
Both are judged by the next tokens of all held-out text, aligned or not, in the other tokenizer's tokens.
"""

import itertools
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from ... import jobs
from ...cache import open_cache
from ...heads import probe_head
from ...models import load_config, load_model, load_tokenizer
from ...paths import home
from ...scoring import score
from ..techniques import Bench, Pair, cache_bytes

FIGURE = "held-out loss on all of the text, nats a token; plain is hard labels"
VOCAB_SIZE = 1500


def compare(bench: Bench, seed: int) -> Pair:
    folder, plain_cache = _other_model(bench), bench.plain_cache()
    capture = bench.base.capture.model_dump() | {"name": "other-tokens", "top_k": 1}
    labels = bench.seeded(seed, teacher={"model": str(folder)}, capture=capture, loss={"kl_weight": 0.0, "ce_weight": 1.0})
    all_tokens, _ = bench.capture(labels)
    started, name = time.monotonic(), f"translated-{seed}"
    bench.work(jobs.new_translation(plain_cache, str(folder), name))
    before_s = time.monotonic() - started
    bench.say(f"  {open_cache(name).manifest.text['notes'][0]}")
    plain, taught = bench.train(labels, all_tokens), bench.train(bench.seeded(seed), name)
    return Pair(
        plain.outcome(_loss(plain.run_id, all_tokens)),
        taught.outcome(_loss(taught.run_id, all_tokens), before_s=before_s, more_bytes=cache_bytes(name)),
    )


def _loss(run_id: str, cache: str) -> float:
    opened, model = open_cache(cache), load_model(f"run:{run_id}", dtype="float32")
    return float(score(model, probe_head(model, opened.plan.vocab_size), opened).nll)


def _other_model(bench: Bench) -> Path:
    """A folder with the other tokenizer and an untrained model of the built-in teacher's shape that has its tokens."""
    folder = home() / "other-tokens"
    if not folder.exists():
        tokenizer = _other_tokenizer(bench)
        config: Any = load_config("builtin")
        config.vocab_size = len(tokenizer)
        config.bos_token_id = config.pad_token_id = None
        config.eos_token_id = tokenizer.eos_token_id
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def _other_tokenizer(bench: Bench) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    cache = open_cache(bench.plain_cache())
    ours = load_tokenizer(str(cache.tokenizer_folder))
    texts = []
    for window in range(cache.num_windows("train")):
        row = cache.stored("train", window)
        ends = itertools.accumulate(row["doc_lens"], initial=0)
        texts += [ours.decode(row["input_ids"][start:end], skip_special_tokens=True) for start, end in itertools.pairwise(ends)]
    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    sizes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "special_tokens": ["</s>"], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    made.train_from_iterator(texts, trainers.BpeTrainer(**sizes, show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
