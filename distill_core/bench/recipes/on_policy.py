"""Half of the steps on real text, half on text of which half is the student's own (Agarwal et al. 2024, arXiv:2306.13649; Lin et al.
2020, arXiv:2009.07253), beside all steps on real text. Compared where it is meant to help: on what each student writes in the end."""

from typing import Any

from ... import jobs
from ...cache import open_cache
from ...config import with_overrides
from ...heads import probe_head
from ...models import load_model
from ...scoring import score
from ..techniques import Bench, Pair
from .chains import reached_by

FIGURE = "KL to the teacher on text that the student itself writes, nats a token"
ENOUGH = {"num_texts": 160, "max_new_tokens": 192}
"""About half of the training windows, and some to spare."""
JUDGED = {"write.num_texts": 40, "text.num_windows": 32, "text.num_heldout_windows": 8, "text.synthetic_share": 1.0}
"""What each student writes to be judged by: never learned from, with random numbers of its own."""
OTHER_DRAWS = 1_000
UNLEARNED_STEPS = 50
LIKELIEST = {"temperature": 0.1, "max_repeated": 1.0}
"""How students of fewer steps (--quick) write: drawn at temperature 1 their texts are broken characters, and none can be kept."""


def compare(bench: Bench, seed: int) -> Pair:
    plain = bench.plain(seed)
    values = bench.seeded(seed, chain={"kind": "on_policy", "rounds": 2}, write=ENOUGH | manner(bench))
    config = with_overrides(values, {"train.max_steps": bench.base.train.max_steps // 2})
    reached = reached_by(bench, f"own-{seed}", config)
    return Pair(
        plain.outcome(kl_on_its_own(bench, seed, plain.run_id, f"judged-plain-{seed}")),
        reached._replace(figure=kl_on_its_own(bench, seed, f"own-{seed}-2", f"judged-own-{seed}")),
    )


def manner(bench: Bench) -> dict[str, float]:
    """Settings of write other than the defaults: none for students that have learned."""
    return LIKELIEST if bench.base.train.max_steps < UNLEARNED_STEPS else {}


def kl_on_its_own(bench: Bench, seed: int, run_id: str, name: str) -> float:
    """The student writes, the teacher reads it: KL of the student there, nats a token."""
    written: dict[str, Any] = {
        "write.by": f"run:{run_id}",
        "write.name": name,
        "write.seed": OTHER_DRAWS + seed,
        "write.max_new_tokens": 192,
    }
    written |= {f"write.{setting}": value for setting, value in manner(bench).items()}
    config = with_overrides(bench.base, {**JUDGED, **written, "text.synthetic": f"written:{name}", "capture.name": name})
    bench.work(jobs.new_writing(config, name=f"{name}-write"))
    cache = open_cache(bench.capture(config)[0])
    model = load_model(f"run:{run_id}", dtype="float32")
    return float(score(model, probe_head(model, cache.plan.vocab_size), cache, split="train").kl_to_teacher)
