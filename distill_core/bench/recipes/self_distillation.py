"""A student that learns again from an equal one: half of the steps from the teacher, half, from the start, from that student
(Furlanello et al. 2018, arXiv:1805.04770), beside all steps from the teacher."""

from ...config import with_overrides
from ..techniques import Bench, Pair
from .chains import reached_by


def compare(bench: Bench, seed: int) -> Pair:
    plain = bench.plain(seed)
    rounds = {"kind": "iterative", "rounds": 2}
    config = with_overrides(bench.seeded(seed, chain=rounds), {"train.max_steps": bench.base.train.max_steps // 2})
    return Pair(plain.outcome(bench.kl(plain.run_id)), reached_by(bench, f"self-{seed}", config))
