"""Teacher -> middle student -> small one, beside the small one straight from the teacher: as many steps in all, the small one a quarter
as wide as the teacher, where a chain is said to help (Mirzadeh et al. 2020, arXiv:1902.03393)."""

import time

from ... import jobs
from ...chain import create_chain
from ...comparison.rows import folder_bytes
from ...config import DistillConfig
from ...paths import texts_dir
from ...runs import open_run
from ..techniques import Bench, Outcome, Pair, cache_bytes

SMALL = {"num_layers": 2, "hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 128}
MIDDLE = {"student.num_layers": 3, "student.hidden_size": 96, "student.num_attention_heads": 4, "student.intermediate_size": 256}


def compare(bench: Bench, seed: int) -> Pair:
    steps = bench.base.train.max_steps
    plain = bench.train(bench.seeded(seed, student=SMALL), bench.plain_cache())
    links = [{**MIDDLE, "train.max_steps": steps // 2}, {"train.max_steps": steps - steps // 2}]
    config = bench.seeded(seed, student=SMALL, chain={"kind": "progressive", "links": links})
    return Pair(plain.outcome(bench.kl(plain.run_id)), reached_by(bench, f"chain-{seed}", config))


def reached_by(bench: Bench, name: str, config: DistillConfig) -> Outcome:
    """The last student of a chain; its first link learns from the plain cache, and what the other links read and keep is counted."""
    train_s, peak_gib, before_s, more_bytes, last = 0.0, 0.0, 0.0, 0, ""
    for link in create_chain(name, config).links():
        cache = bench.plain_cache()
        if link.writes:
            started = time.monotonic()
            bench.work(jobs.new_writing(link.config(), name=link.write_id))
            before_s, more_bytes = before_s + time.monotonic() - started, more_bytes + folder_bytes(texts_dir() / link.text)
        if link.number > 1:
            more_bytes += folder_bytes(open_run(last).model_folder)  # the teacher of this link
            cache, seconds = bench.capture(link.config())
            before_s, more_bytes = before_s + seconds, more_bytes + cache_bytes(cache)
        trained = bench.train(link.config(), cache)
        train_s, peak_gib, last = train_s + trained.train_s, max(peak_gib, trained.peak_gib), trained.run_id
    return Outcome(bench.kl(last), train_s, peak_gib, before_s, more_bytes)
