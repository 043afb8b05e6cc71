"""Intermediate layers beside plain KL: a second capture that keeps layers 2 and 4 of the teacher, in int8."""

from ..techniques import Bench, Pair, cache_bytes

CAPTURE = {"name": "with-states", "hidden_layers": (2, 4), "hidden_codec": "int8"}


def compare(bench: Bench, seed: int) -> Pair:
    plain = bench.plain(seed)
    config = bench.seeded(seed, capture=CAPTURE, loss={"hidden_weight": 1.0})
    name, seconds = bench.capture(config.changed(train=bench.base.train))
    trained = bench.train(config, name)
    more = cache_bytes(name) - cache_bytes(bench.plain_cache())
    return Pair(plain.outcome(bench.kl(plain.run_id)), trained.outcome(bench.kl(trained.run_id), before_s=seconds, more_bytes=more))
