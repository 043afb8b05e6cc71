"""Three of the teacher's four layers, chosen by importance and evenly: as many steps, the same size. Half of them would be the same two
layers by either choice."""

import time

import torch

from ...cache import open_cache
from ...structure import choose
from ..techniques import Bench, Pair

FIGURE = "held-out KL to the teacher, nats a token; plain is cut evenly"
CUT = {"init": "prune_layers", "num_layers": 3}
RATE = {"learning_rate": 5e-4}
"""What suits weights that are there already."""


def compare(bench: Bench, seed: int) -> Pair:
    even = bench.train(bench.seeded(seed, student=CUT, train=bench.base.train.model_dump() | RATE), bench.plain_cache())
    config = bench.seeded(seed, student=CUT | {"layer_choice": "importance"}, train=bench.base.train.model_dump() | RATE)
    chosen = bench.train(config, bench.plain_cache())
    started = time.monotonic()
    choose(config, open_cache(bench.plain_cache()), torch.device("cpu"), bench.say)
    measuring_s = time.monotonic() - started
    return Pair(even.outcome(bench.kl(even.run_id)), chosen.outcome(bench.kl(chosen.run_id), before_s=measuring_s))
