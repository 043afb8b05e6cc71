"""A context learned by heart: both students are judged, without the context, beside the teacher that has it.

The context is the beginning of one story, with a name that the teacher then likes to use: an example of a style, as in few-shot prompts.
The other arm is the plain student: its teacher read the same windows without the context.
"""

from ..techniques import Bench, Pair, cache_bytes

FIGURE = "held-out KL to the teacher with the context, nats a token"
EXAMPLE = "There was an owl. Her name was Otti. She lived in a red house, and she liked to sing about cheese.\n\n"


def compare(bench: Bench, seed: int) -> Pair:
    behind = bench.seeded(seed, capture=bench.base.capture.model_dump() | {"name": "context", "context": EXAMPLE})
    cache, capture_s = bench.capture(behind)
    plain, learned = bench.plain(seed), bench.train(behind, cache)
    more = cache_bytes(cache) - cache_bytes(bench.plain_cache())
    return Pair(
        plain.outcome(bench.kl(plain.run_id, cache)),
        learned.outcome(bench.kl(learned.run_id, cache), before_s=capture_s, more_bytes=more),
    )
