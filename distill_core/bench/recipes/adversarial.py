"""Adversarial training beside plain KL, by how near the teacher both stay in their own worst case, at one radius; clean text, noise and
typos are said beside it."""

from ...cache import open_cache
from ...heads import probe_head
from ...models import load_model, load_tokenizer
from ...robustness import robustness
from ..techniques import Bench, Pair

FIGURE = "KL to the teacher with the input changed for the worse, nats a token"


def compare(bench: Bench, seed: int) -> Pair:
    cache = bench.plain_cache()
    plain, other = bench.plain(seed), bench.train(bench.seeded(seed, loss={"adversarial_weight": 1.0}), cache)
    return Pair(*(trained.outcome(_in_the_worst_case(bench, trained.run_id, cache)) for trained in (plain, other)))


def _in_the_worst_case(bench: Bench, run_id: str, name: str) -> float:
    cache, model = open_cache(name), load_model(f"run:{run_id}", dtype="float32")
    tokenizer, radius = load_tokenizer(str(cache.tokenizer_folder)), bench.base.loss.adversarial_radius
    rows = robustness(model, probe_head(model, cache.plan.vocab_size), cache, tokenizer, radius=radius)
    for row in rows:
        bench.say(f"  {run_id}, {row['input']}: KL {row['kl_to_teacher']:.4f}, {row['bits_per_byte']:.4f} bits/byte")
    return float(next(row["kl_to_teacher"] for row in rows if row["input"] == "worst case"))
