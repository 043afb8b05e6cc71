"""What `python -m distill_core sweep` does: run a sweep, go on with it, show it, stop it, or say where to start."""

import argparse
import time
from pathlib import Path
from typing import Any

from . import sweep as sweeps
from .cache import open_cache
from .charts.save import save_chart
from .config import DistillConfig, read_config, with_overrides
from .errors import ConfigError
from .foreground import sigterm_interrupts
from .sweep import Sweep

Options = argparse.Namespace


def sweep(options: Options) -> None:
    if options.what in ("list", "run", "advice"):
        {"list": _list, "run": _run, "advice": _advice}[options.what](options)
        return
    if not options.name:
        raise ConfigError(f"sweep {options.what} needs a sweep. See them: python -m distill_core sweep list")
    found = sweeps.open_sweep(options.name)
    if options.what == "resume":
        _carry_on(found, options)
    elif options.what == "stop":
        found.ask_to_stop()
        print(f"sweep {found.name} ends once the runs at work have saved; go on with it: python -m distill_core sweep resume {found.name}")
    else:
        _show(found, options)


def _list(_: Options) -> None:
    for each in sweeps.list_sweeps():
        grid = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in each.grid.items())
        print(f"{each.name:<24} cache {each.cache:<20} {len(each.trials()):>3} runs  {grid}")


def _settings(options: Options) -> tuple[DistillConfig, dict[str, list[str]]]:
    """The config that all runs share, and the grid: settings that were given several values."""
    if not options.cache:
        raise ConfigError("sweep needs --cache NAME: all of its runs learn from one cache. See: python -m distill_core cache list")
    given = {name.removeprefix("set:"): text for name, text in vars(options).items() if name.startswith("set:")}
    grid, fixed = sweeps.grid_of(given)
    base = read_config(options.config) if options.config else DistillConfig(**open_cache(options.cache).manifest.config)
    return with_overrides(base, {name: _plain(text) for name, text in fixed.items()}), grid


def _plain(text: str) -> Any:
    return None if text == "null" else [int(part) for part in text.strip("[] ").split(",")] if text.startswith("[") else text


def _run(options: Options) -> None:
    config, grid = _settings(options)
    name = options.name or f"sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    made = sweeps.create_sweep(name, options.cache, config, grid, num_seeds=options.seeds, stop_losers=options.stop_losers)
    print(f"sweep {made.name}: {len(made.trials())} runs of {config.train.max_steps:,} steps", flush=True)
    if options.background:
        sweeps.start_in_background(made, at_once=options.at_once)
        print(f"It goes on by itself. Look at it: python -m distill_core sweep show {made.name}")
        return
    _carry_on(made, options)


def _carry_on(made: Sweep, options: Options) -> None:
    with sigterm_interrupts():
        ended = sweeps.carry_on(made, lambda words: print(words, flush=True), at_once=options.at_once)
    if ended:
        _show(made, options)
    else:
        print(f"stopped. Go on with it: python -m distill_core sweep resume {made.name}")


def _show(made: Sweep, options: Options) -> None:
    found = sweeps.settings(made)
    print(f"\nsweep {made.name}: cache {made.cache}, seeds {', '.join(map(str, made.seeds))}\n\n{sweeps.table(found)}\n")
    print(sweeps.from_results(made))
    if options.chart:
        from .charts.share import share_chart
        from .charts.sweep import sweep_chart

        by_share = sweeps.rows_by_share(found, made.config["loss"]["positions"])
        save_chart(share_chart(by_share) if by_share else sweep_chart(sweeps.rows(found)), Path(options.chart))
        print(f"\nthe chart is in {options.chart}")


def _advice(options: Options) -> None:
    config, _ = _settings(options)
    print(sweeps.in_text(sweeps.from_cache(open_cache(options.cache), config), options.cache))
