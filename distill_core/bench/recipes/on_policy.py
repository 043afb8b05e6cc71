"""Half of the steps on the teacher's view of real text, half on text of which half is the student's own (Agarwal et al. 2024,
arXiv:2306.13649; Lin et al. 2020, arXiv:2009.07253), beside all steps on real text."""

from ...config import with_overrides
from ..techniques import Bench, Pair
from .chains import reached_by

ENOUGH = {"num_texts": 160, "max_new_tokens": 192}
"""About half of the training windows, and some to spare."""


def compare(bench: Bench, seed: int) -> Pair:
    plain = bench.plain(seed)
    values = bench.seeded(seed, chain={"kind": "on_policy", "rounds": 2}, write=ENOUGH)
    config = with_overrides(values, {"train.max_steps": bench.base.train.max_steps // 2})
    return Pair(plain.outcome(bench.kl(plain.run_id)), reached_by(bench, f"own-{seed}", config))
