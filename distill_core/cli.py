"""The command line: one command per step of the walk. Errors are one plain message and exit code 2; --debug shows the traceback."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence

from . import bench_commands, cache_commands, chain_commands, commands, student_commands, sweep_commands, write_commands
from .errors import ConfigError, DistillError
from .foreground import is_launched
from .parsers import EPILOG, Parser, add_command, add_settings

DESCRIPTION = """Distil a large language model into a small one on the hardware you have.

The teacher reads the text once (capture); its top next-token probabilities go into a cache on disk; the student learns from the cache
(train) without the teacher in memory; then it is judged on text it never saw (evaluate) and taken home (export).
Start with: python -m distill_core demo
"""


def build_parser() -> Parser:
    parser = Parser(prog="distill", description=DESCRIPTION, epilog=EPILOG)
    commands_of = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")

    demo = add_command(commands_of, "demo", "the whole path on the built-in teacher, in a few minutes, without network", commands.demo)
    demo.add_argument("--print-config", action="store_true", help="print the config that would be used, and end")
    add_settings(demo, "teacher", "text", "capture", "student", "loss", "train")

    data = add_command(commands_of, "data", "look at the text as it will be fed: windows, tokens, which of them are learned", commands.data)
    data.add_argument("what", choices=["preview", "info"], help="preview: the first tokens with their loss mask; info: counts")
    data.add_argument("--cache", metavar="NAME", help="preview: the first windows that training on this cache will feed, with their masks")
    data.add_argument("--json", action="store_true", help="for programs")
    add_settings(data, "teacher", "text", "train")

    capture = add_command(
        commands_of, "capture", "let the teacher read the text once, and keep what it thinks in a cache", commands.capture
    )
    capture.add_argument("--resume", metavar="CACHE", help="go on with an unfinished or damaged cache, with the settings kept in it")
    capture.add_argument("--background", action="store_true", help="start it and return; follow it with: distill runs show")
    add_settings(capture, "teacher", "text", "capture")

    write_commands.add_parsers(commands_of)

    cache = add_command(
        commands_of, "cache", "list caches, look into one, check every byte of it, merge several, delete one", commands.cache
    )
    cache.add_argument(
        "what",
        choices=["list", "info", "verify", "estimate", "browse", "compare", "merge", "translate", "delete"],
        help="estimate: bytes, time and break-even of a capture that is not there yet; browse: a window token by token, with the teacher's "
        "choices; compare: run the teacher again on a sample; merge: several caches made one; "
        "translate: for a student with another tokenizer",
    )
    cache.add_argument("name", nargs="?", help="the cache (all commands but list and estimate)")
    cache_commands.add_merge_options(cache)
    cache.add_argument("--yes", action="store_true", help="delete: even though runs learned from it")
    cache.add_argument("--split", choices=["train", "heldout"], default="train", help="browse: which windows (train)")
    cache.add_argument("--window", type=int, default=0, help="browse: number of the window (0)")
    cache.add_argument("--choices", type=int, default=5, help="browse: how many of the teacher's choices (5)")
    cache.add_argument("--json", action="store_true", help="browse: for programs")
    cache.add_argument("--windows", type=int, default=8, help="compare: windows in the sample (8)")
    cache.add_argument("--students", type=int, default=1, help="estimate: students that will learn from it (1)")
    add_settings(cache, "teacher", "text", "capture", "loss", "train")

    train = add_command(commands_of, "train", "train a student against a cache", commands.train)
    train.add_argument("--cache", metavar="NAME", help="the cache to learn from")
    train.add_argument("--resume", metavar="RUN", help="go on with a stopped or failed run from its last checkpoint")
    train.add_argument("--twin", action="store_true", help="train the equal-budget hard-label twin too, for an honest comparison")
    train.add_argument("--background", action="store_true", help="start it and return; follow it with: distill runs show")
    add_settings(train, "student", "loss", "train")

    sweep = add_command(commands_of, "sweep", "try several settings with several seeds, all from one cache", sweep_commands.sweep)
    sweep.add_argument(
        "what",
        nargs="?",
        choices=["run", "advice", "list", "show", "resume", "stop"],
        default="run",
        help="run (default): settings with several values, such as --loss.temperature 1,2, make the grid; advice: where to start, from the "
        "cache alone",
    )
    sweep.add_argument("name", nargs="?", help="the sweep (show, resume, stop; run: what to call it)")
    sweep.add_argument("--cache", metavar="NAME", help="the cache that all runs learn from (run, advice)")
    sweep.add_argument("--seeds", type=int, default=3, help="runs of each setting, with seeds that count up from train.seed (3)")
    sweep.add_argument("--at-once", type=int, default=1, help="runs queued at a time; more than one is for clusters (1)")
    sweep.add_argument("--stop-losers", action="store_true", help="give up runs that fall behind the median of the finished ones (Optuna)")
    sweep.add_argument("--chart", metavar="FILE", help="write the result as a chart too: .html, .svg, .png or .json")
    sweep.add_argument("--background", action="store_true", help="start it and return; follow it with: distill sweep show")
    add_settings(sweep, "student", "loss", "train")

    chain_commands.add_parser(commands_of)
    student_commands.add_parser(commands_of)

    evaluate = add_command(commands_of, "evaluate", "judge a student on held-out text, beside the teacher and its twin", commands.evaluate)
    evaluate.add_argument("run", help="the training run to judge")
    evaluate.add_argument("--baseline", metavar="RUN", help="its hard-label twin (train --twin makes one)")
    evaluate.add_argument("--against", metavar="CACHE", help="judge by another cache's teacher and held-out text than the run's own")
    evaluate.add_argument("--robustness", action="store_true", help="noise, worst-case changes and typos too")
    evaluate.add_argument("--radius", type=float, help="robustness: how far, in mean embedding norms (the run's loss.adversarial_radius)")
    evaluate.add_argument("--lm-eval", metavar="TASKS", help="public benchmarks too, such as arc_easy,hellaswag (pip install lm-eval)")
    evaluate.add_argument("--lm-eval-include", metavar="FOLDER", help="a folder with lm-eval task files of your own")
    evaluate.add_argument("--lm-eval-limit", metavar="N", type=int, help="examples of each task (all)")

    plan = add_command(commands_of, "plan", "facts about teacher and student, and memory before it is spent", commands.plan)
    plan.add_argument("--json", action="store_true", help="for programs")
    add_settings(plan, "teacher", "text", "capture", "student", "loss", "train")

    bench_commands.add_parser(commands_of)

    runs = add_command(commands_of, "runs", "list runs, show one, stop it, resume it, delete it", commands.runs)
    runs.add_argument(
        "what", choices=["list", "show", "stop", "resume", "delete", "work"], help="work: carry out a queued run in this process"
    )
    runs.add_argument("run", nargs="?", help="the run (all commands but list)")
    runs.add_argument("--yes", action="store_true", help="delete: even though judgements, a twin, a sweep or a chain name it")
    runs.add_argument("--now", action="store_true", help="stop: end it at once, through its engine; it can go on from its last checkpoint")

    serve = add_command(
        commands_of, "serve", "the apps in a browser: for you on this machine, or for a room behind a password", commands.serve
    )
    serve.add_argument("--room", action="store_true", help="several people: login, owners, a queue cap, disk quotas, allowed folders")
    serve.add_argument("--policy", metavar="FILE", help="the room's rules, a .json file; means --room")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only); 0.0.0.0 for a network")
    serve.add_argument("--port", type=int, default=2718, help="port to listen on (2718)")
    serve.add_argument(
        "--password-file", metavar="FILE", help="its first line is the room's password; -: standard input; or $DISTILL_PASSWORD"
    )
    serve.add_argument("--presenter-password-file", metavar="FILE", help="the presenter's, another one; or $DISTILL_PRESENTER_PASSWORD")
    serve.add_argument("--proxy", metavar="ADDRESS", default="127.0.0.1", help="the proxy in front, if it is not on this machine")
    serve.add_argument("--https", action="store_true", help="visitors come by https through a proxy that does not say so")
    serve.add_argument("--no-browser", action="store_true", help="do not open a browser")

    export = add_command(commands_of, "export", "write a student as a safetensors folder that plain from_pretrained loads", commands.export)
    export.add_argument("run", help="the training run")
    export.add_argument("--to", required=True, metavar="FOLDER", help="a new folder")
    export.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="type of the weights (float32)")

    push = add_command(
        commands_of, "push", "send an exported folder to the Hugging Face Hub, private unless asked otherwise", commands.push
    )
    push.add_argument("folder", help="what export wrote")
    push.add_argument("repo", metavar="OWNER/NAME", help="the repository; it is made if it is not there")
    push.add_argument("--public", action="store_true", help="everyone may read it")
    return parser


def run_command_line(arguments: Sequence[str]) -> int:
    """Parse and carry out; returns the exit code: 0 done, 2 an error that was explained, 130 interrupted."""
    # torch's threads must not spin for long while they wait for one another. Tokens/s of the built-in student on two cores, 60 steps:
    # quiet 30-33 k spinning for ever (the default), 17-23 k never, 28-30 k for 10,000 rounds; among three busy processes 5.2 k for
    # 10,000 rounds, 4.8 k never; on a machine full of tests 1.0-2.4 k for ever, 7.4-8.7 k never
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries to the programs that call them
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("distill_core").setLevel(logging.INFO)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # PEFT and transformers import it where it is installed, used or not
    options = build_parser().parse_args(arguments)
    try:
        if is_launched() and options.handler not in (commands.capture, commands.train, commands.runs):
            raise ConfigError("only capture, train and runs resume are for several processes. Start this one without a launcher.")
        options.handler(options)
    except DistillError as error:
        if getattr(options, "debug", False):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
