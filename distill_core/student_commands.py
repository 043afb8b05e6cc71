"""What `python -m distill_core students` does: say which of a teacher's layers a student can spare."""

import json
import sys
from pathlib import Path
from typing import Any

from .cache import open_cache
from .errors import ConfigError
from .parsers import Options, add_command, add_settings, settings


def add_parser(commands_of: Any) -> None:
    """The command and its options."""
    parser = add_command(commands_of, "students", "which of a teacher's layers a student that is cut out of it can spare", students)
    parser.add_argument(
        "what",
        choices=["importance"],
        help="importance: the KL to the cached teacher without each layer, and without one after the other; train with "
        "--student.init prune_layers --student.layer_choice importance does the same by itself",
    )
    parser.add_argument("--cache", metavar="NAME", help="the cache of the teacher that is cut")
    parser.add_argument("--windows", type=int, default=8, help="windows in the sample (8)")
    parser.add_argument("--split", choices=["heldout", "train"], default="heldout", help="which windows (heldout)")
    parser.add_argument("--chart", metavar="FILE", help="write how many layers can go as a chart: .html, .svg, .png or .json")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_settings(parser)


def students(options: Options) -> None:
    if not options.cache:
        raise ConfigError("students importance needs --cache NAME: the teacher's own words are in it. See: distill cache list")
    cache, device = open_cache(options.cache), settings(options).device
    from transformers.utils import logging

    from .charts.save import save_chart
    from .charts.structure import layers_chart
    from .device import pick_device
    from .structure import report

    logging.disable_progress_bar()  # of loading weights
    found = report.importance(
        cache,
        pick_device(device),
        num_windows=options.windows,
        split=options.split,
        say=lambda words: print(words, file=sys.stderr, flush=True),
    )
    print(json.dumps(found) if options.json else report.table(found))
    if options.chart:
        save_chart(layers_chart(found), Path(options.chart))
        if not options.json:
            print(f"\nthe chart is in {options.chart}")
