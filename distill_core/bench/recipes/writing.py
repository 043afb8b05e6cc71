"""Little text of one's own: the student learns from it alone, or from as much again and more that the teacher wrote from its beginnings.

A quarter of the plain windows is the own text, the same in both arms, in a file; written text makes it as many windows as the plain ones.
Both are judged on the plain cache's held-out text, from which no document is in the file.
"""

import itertools
import time
from pathlib import Path

import polars as pl

from ... import jobs
from ...cache import open_cache
from ...models import load_tokenizer
from ...paths import home, texts_dir
from ..techniques import Bench, Pair, cache_bytes

FIGURE = "held-out KL to the teacher with a quarter of the text, nats a token"


def compare(bench: Bench, seed: int) -> Pair:
    many = bench.base.text.num_windows
    own = bench.base.text.model_dump() | {"source": str(_own_text(bench, many // 4)), "num_heldout_windows": max(1, many // 32)}
    few = {"text": own | {"num_windows": many // 4}, "capture": bench.base.capture.model_dump() | {"name": "little-text"}}
    cache, _ = bench.capture(bench.seeded(seed, **few))
    plain = bench.train(bench.seeded(seed, **few), cache)

    name, started = f"written-{seed}", time.monotonic()
    texts = {"name": name, "num_texts": 4 * many, "max_new_tokens": bench.base.text.window_tokens - 16, "seed": seed}
    bench.work(jobs.new_writing(bench.seeded(seed, **few, write=texts)))
    mixed = {
        "text": own | {"num_windows": many, "synthetic": f"written:{name}", "synthetic_share": 0.75},
        "capture": bench.base.capture.model_dump() | {"name": name},
    }
    both, _ = bench.capture(bench.seeded(seed, **mixed))
    before_s = time.monotonic() - started
    more = cache_bytes(both) - cache_bytes(cache) + sum(path.stat().st_size for path in (texts_dir() / name).iterdir() if path.is_file())
    taught = bench.train(bench.seeded(seed, **mixed), both)
    return Pair(plain.outcome(bench.kl(plain.run_id)), taught.outcome(bench.kl(taught.run_id), before_s=before_s, more_bytes=more))


def _own_text(bench: Bench, num_windows: int) -> Path:
    """A file with the documents of so many of the plain cache's training windows, and of a few more that are to be held out."""
    path = home() / "own.parquet"
    if not path.exists():
        cache = open_cache(bench.plain_cache())
        tokenizer = load_tokenizer(str(cache.tokenizer_folder))
        texts = []
        for window in range(min(cache.num_windows("train"), num_windows + max(1, num_windows // 4))):
            row = cache.stored("train", window)
            ends = itertools.accumulate(row["doc_lens"], initial=0)
            texts += [tokenizer.decode(row["input_ids"][start:end], skip_special_tokens=True) for start, end in itertools.pairwise(ends)]
        pl.DataFrame({"text": texts}).write_parquet(path)
    return path
