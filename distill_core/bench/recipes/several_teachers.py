"""The built-in teacher mixed half and half with a second one, beside it alone: which student is nearer to the text itself?

The second teacher is the first less one layer, healed by distilling from the first on stories that the student never reads: about as good,
and not the same. The distance to the first teacher would speak for it alone, so the held-out text's own next tokens are compared.
"""

import time

from ... import jobs
from ...cache import open_cache
from ...catalog import facts
from ...heads import probe_head
from ...merging import Merge
from ...models import load_model
from ...scoring import score
from ..techniques import Bench, Pair, cache_bytes

FIGURE = "held-out loss on the text, nats a token"
TEXT_SEED = 1


def compare(bench: Bench, seed: int) -> Pair:
    plain, first = bench.plain(seed), bench.plain_cache()
    read, _ = bench.capture(bench.seeded(seed, text={"seed": TEXT_SEED}, capture={"name": "other-stories"}))
    less = {"init": "prune_layers", "num_layers": (facts("builtin").num_layers or 2) - 1}
    second = bench.train(bench.seeded(seed, student=less, train={"learning_rate": 5e-4, "name": f"second-{seed}"}), read)
    other, captured_s = bench.capture(bench.seeded(seed, teacher={"model": f"run:{second.run_id}"}, capture={"name": f"second-{seed}"}))
    started = time.monotonic()
    both = f"both-{seed}"
    bench.work(jobs.new_merge(Merge(caches=(first, other), name=both)))
    merged_s = time.monotonic() - started
    bench.say(f"  the teachers themselves: {_teacher_loss(first):.4f} and {_teacher_loss(other):.4f}, mixed {_teacher_loss(both):.4f} nats")
    taught = bench.train(bench.seeded(seed), both)
    before_s, more_bytes = second.train_s + captured_s + merged_s, cache_bytes(other) + cache_bytes(both)
    return Pair(
        plain.outcome(_loss(bench, plain.run_id)), taught.outcome(_loss(bench, taught.run_id), before_s=before_s, more_bytes=more_bytes)
    )


def _teacher_loss(cache: str) -> float:
    return -open_cache(cache).manifest.mean("gold_logprob", "heldout")


def _loss(bench: Bench, run_id: str) -> float:
    """Held-out loss of a run's best weights on the plain cache's text."""
    opened = open_cache(bench.plain_cache())
    model = load_model(f"run:{run_id}", dtype="float32")
    return float(score(model, probe_head(model, opened.plan.vocab_size), opened).nll)
