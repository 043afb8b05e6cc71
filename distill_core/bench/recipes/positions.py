"""Half of each window's positions, those where the student is furthest from the teacher now, beside all of them, over the same steps.

By the teacher's entropy a fresh student never learns what the teacher is sure of: README, "Positions", has both, by share.
"""

from ..techniques import Bench, Pair

SHARE = 0.5


def compare(bench: Bench, seed: int) -> Pair:
    plain = bench.plain(seed)
    config = bench.seeded(seed, loss={"positions": "gap", "position_share": SHARE})
    some = bench.train(config, bench.plain_cache())
    return Pair(*(trained.outcome(bench.kl(trained.run_id)) for trained in (plain, some)))
