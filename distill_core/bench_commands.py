"""What `python -m distill_core bench` measures: the loss, a training step, the cache, and every technique beside plain KL."""

import argparse
import json
import sys
from typing import Any

from .parsers import Options, add_command, add_settings, settings


def add_parser(commands_of: Any) -> None:
    """The command and its options."""
    parser = add_command(
        commands_of, "bench", "measure: the loss against bare matrix products, a training step, the cache, the techniques", bench
    )
    parser.add_argument(
        "what",
        choices=["loss", "train", "cache", "techniques"],
        help="cache: a teacher's distributions stored; temperature, bytes, speed; techniques: each beside plain KL, at an equal budget",
    )
    parser.add_argument("--full", action="store_true", help="loss: real vocabularies, minutes instead of a minute, several GiB")
    parser.add_argument("--shape", type=_shape, action="append", default=[], metavar="N,V,D", help="loss: tokens, vocabulary, hidden size")
    parser.add_argument("--quick", action="store_true", help="train, techniques: a small example, seconds")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--windows", type=int, default=8, help="cache: windows that the teacher reads; train: in a step (8)")
    add_settings(parser, "teacher", "text")
    parser.add_argument("--only", metavar="NAME,NAME", help="techniques: those alone")
    parser.add_argument("--seeds", type=int, default=3, help="techniques: pairs of trainings for each (3)")


def bench(options: Options) -> None:
    from . import bench as benchmarks
    from .bench import cache as cache_benchmark

    def say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    if options.what == "cache":
        config = settings(options)
        config = config.changed(text=config.text.changed(num_windows=options.windows, num_heldout_windows=1))
        found = cache_benchmark.bench_cache(config, threads=options.threads, progress=say)
        print(json.dumps(found) if options.json else cache_benchmark.cache_table(found))
        return
    if options.what == "train":
        from .bench import steps

        size = steps.QUICK if options.quick else steps.FULL._replace(num_windows=options.windows)
        result = steps.bench_train(size, threads=options.threads, progress=say)
        print(json.dumps(result) if options.json else steps.train_table(result))
        return
    if options.what == "techniques":
        from .bench import techniques

        names = [name.strip() for name in options.only.split(",")] if options.only else None
        compared = techniques.bench_techniques(names, num_seeds=options.seeds, is_quick=options.quick, say=say)
        if options.json:
            for row in compared:
                print(json.dumps(row), flush=True)
        else:
            print(techniques.techniques_table(list(compared)))
        return
    shapes = tuple(options.shape) or (benchmarks.FULL_SHAPES if options.full else None)
    rows = benchmarks.bench_loss(shapes, device=settings(options).device, threads=options.threads, progress=say)
    print(benchmarks.json_lines(rows) if options.json else benchmarks.bench_table(rows))


def _shape(words: str) -> tuple[int, ...]:
    """'2048,32000,512' -> (2048, 32000, 512)."""
    numbers = tuple(int(word) for word in words.split(",") if word.strip().isdecimal())
    if len(numbers) != words.count(",") + 1 or len(numbers) != 3 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{words}: give tokens, vocabulary and hidden size, such as 2048,32000,512")
    return numbers
