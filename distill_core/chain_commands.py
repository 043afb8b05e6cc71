"""What `python -m distill_core chain` does: run a chain of students, go on with it, show it, stop it, delete it."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from . import chain as chains
from .chain import Chain
from .chain_config import LINK_SECTIONS
from .charts.save import save_chart
from .config import DistillConfig
from .errors import ConfigError
from .foreground import sigterm_interrupts
from .parsers import Options, add_command, add_settings, settings
from .units import show_disk


def add_parser(commands_of: Any) -> None:
    """The command and its options."""
    words = "students one after the other, each taught by the one before, or rounds of one student"
    parser = add_command(commands_of, "chain", words, chain)
    parser.add_argument(
        "what",
        choices=["run", "list", "show", "resume", "stop", "delete"],
        help="run: what --config and the options say; a student, loss or train setting with a value for each link, such as "
        "--student.hidden_size 128,64, makes the links",
    )
    parser.add_argument("name", nargs="?", help="the chain (all commands but list; run: what to call it)")
    parser.add_argument(
        "--with-direct", dest="set:chain.with_direct", action="store_const", const="true", default=argparse.SUPPRESS,
        help="the last student straight from the first teacher too, for as many steps as all links together",
    )  # fmt: skip
    parser.add_argument("--chart", metavar="FILE", help="write the result as a chart too: .html, .svg, .png or .json")
    parser.add_argument("--background", action="store_true", help="run: start it and return; follow it with: distill chain show")
    parser.add_argument("--yes", action="store_true", help="delete: even though other runs name what it made")
    add_settings(parser, "teacher", "text", "capture", "student", "loss", "train", "write", "chain")


def chain(options: Options) -> None:
    if options.what in ("list", "run"):
        {"list": _list, "run": _run}[options.what](options)
        return
    if not options.name:
        raise ConfigError(f"chain {options.what} needs a chain. See them: python -m distill_core chain list")
    found = chains.open_chain(options.name)
    if options.what == "resume":
        _carry_on(found, options)
    elif options.what == "stop":
        found.ask_to_stop()
        print(f"chain {found.name} ends once the run at work has saved; go on with it: python -m distill_core chain resume {found.name}")
    elif options.what == "delete":
        print(f"{show_disk(chains.delete_chain(found, is_sure=options.yes))} came back")
    else:
        _show(found, options)


def _list(_: Options) -> None:
    for each in chains.list_chains():
        print(f"{each.name:<24} {each.settings.kind:<12} {each.settings.num_links} links  {chains.state_of(each)}")


def _config(options: Options) -> DistillConfig:
    """The config of --config and the options; settings with several values become the links. Raises ConfigError."""
    several = {
        name.removeprefix("set:"): [_typed(part.strip()) for part in text.split(",")]
        for name, text in vars(options).items()
        if name.startswith("set:") and name[4:].partition(".")[0] in LINK_SECTIONS and "," in text and not text.startswith("[")
    }
    if len({len(values) for values in several.values()}) > 1:
        shown = ", ".join(f"{name} has {len(values)}" for name, values in several.items())
        raise ConfigError(f"every setting that differs needs a value for each link: {shown}. Give all of them equally many.")
    given = {name: value for name, value in vars(options).items() if name.removeprefix("set:") not in several}
    if several:
        given["set:chain.links"] = json.dumps([dict(zip(several, values)) for values in zip(*several.values())])
    return settings(argparse.Namespace(**given))


def _typed(text: str) -> Any:
    """'128', '1e-3', 'true' and 'null' as what they are; all else stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _run(options: Options) -> None:
    config = _config(options)
    made = chains.create_chain(options.name or f"chain-{time.strftime('%Y%m%d-%H%M%S')}", config)
    links = made.links()
    steps = sum(link.config().train.max_steps for link in links)
    print(f"chain {made.name} ({config.chain.kind}): {len(links)} trainings, {steps:,} steps in all", flush=True)
    for warning in chains.warnings_of(made):
        print(f"warning: {warning}", flush=True)
    if options.background:
        chains.start_in_background(made)
        print(f"It goes on by itself. Look at it: python -m distill_core chain show {made.name}")
        return
    _carry_on(made, options)


def _carry_on(made: Chain, options: Options) -> None:
    with sigterm_interrupts():
        ended = chains.carry_on(made, lambda words: print(words, flush=True))
    if ended:
        _show(made, options)
    else:
        print(f"stopped. Go on with it: python -m distill_core chain resume {made.name}")


def _show(made: Chain, options: Options) -> None:
    found = chains.rows(made)
    state = chains.state_of(made)
    print(f"\nchain {made.name} ({made.settings.kind}), {state}\n\n{chains.table(found)}\n\n{chains.verdict(found)}")
    if state in ("failed", "stopped") and made.last_words:
        print(f"\nlast words of the process that drove it: {made.last_words}")
    if options.chart:
        from .charts.chain import chain_chart

        save_chart(chain_chart(found), Path(options.chart))
        print(f"\nthe chart is in {options.chart}")
