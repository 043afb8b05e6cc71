"""Half of each window's positions, those where the teacher is least sure, beside all of them: the same steps, half of the loss's rows."""

from ..techniques import Bench, Pair

SHARE = 0.5


def compare(bench: Bench, seed: int) -> Pair:
    plain = bench.plain(seed)
    config = bench.seeded(seed, loss={"positions": "entropy", "position_share": SHARE})
    some = bench.train(config, bench.plain_cache())
    return Pair(*(trained.outcome(bench.kl(trained.run_id)) for trained in (plain, some)))
