"""Where to start: temperature, mixture, top K and learning rate, from the cache before any run, and from a sweep's results afterwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..cache import Cache
from ..config import DistillConfig
from .record import Sweep
from .results import Setting, settings, verdict

TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0)
ENOUGH_MASS = 0.8
"""Kept mass below which a temperature is not worth a run: the teacher's order of more than a fifth of its mass is unknown there."""
NEARLY_ALL = 0.99
"""Share of the kept mass that fewer entries must still hold to be worth the saving."""
FOREIGN_NATS = 0.5
"""A teacher that is surprised by the text by so much more than it expects to be does not know that kind of text."""


@dataclass(frozen=True)
class Advice:
    setting: str
    start: str
    """Value to begin with, as on the command line."""
    try_also: str
    """Values for a sweep; '' where one is enough."""
    why: str


def from_cache(cache: Cache, config: DistillConfig) -> list[Advice]:
    """Before any run. What is said of temperature, top K and mixture is read from this cache; the learning rate is a rule of thumb."""
    return [_temperature(cache), _top_k(cache), _mixture(cache), _learning_rate(config)]


def _temperature(cache: Cache) -> Advice:
    kept = {temperature: float(cache.kept_mass(temperature).mean()) for temperature in TEMPERATURES}
    worth = [temperature for temperature in TEMPERATURES if kept[temperature] >= ENOUGH_MASS] or [1.0]
    shown = ", ".join(f"{mass:.1%} at T = {temperature:g}" for temperature, mass in kept.items())
    return Advice(
        "loss.temperature",
        "1",
        ",".join(f"{temperature:g}" for temperature in worth) if len(worth) > 1 else "",
        f"the cache keeps {shown} of the teacher's mass; at T = 1 nearly all that it said is known, and above "
        f"{worth[-1]:g} more than a fifth of it is one number, the tail",
    )


def _top_k(cache: Cache) -> Advice:
    stored = cache.plan.num_ranked
    whole = float(cache.kept_mass(1.0).mean())
    smaller = [k for k in (10, 20, 50, 100, 200) if k < stored and float(cache.kept_mass(1.0, top_k=k).mean()) >= NEARLY_ALL * whole]
    if not smaller:
        return Advice("loss.top_k", "null", "", f"all {stored} stored entries count: fewer lose more than 1 % of what is kept at T = 1")
    share = float(cache.kept_mass(1.0, top_k=smaller[0]).mean())
    why = f"{smaller[0]} entries already hold {share:.2%} at T = 1, all {stored} hold {whole:.2%}; using all costs little"
    return Advice("loss.top_k", "null", f"{smaller[0]},{stored}", why)


def _mixture(cache: Cache) -> Advice:
    split = "heldout" if cache.has_hard_labels else "train"  # hard labels say nothing of the teacher
    nll, entropy = -cache.manifest.mean("gold_logprob", split), cache.manifest.mean("entropy", split)
    read = f"the teacher needs {nll:.2f} nats a token for this text, and expects to need {entropy:.2f}"
    if nll - entropy > FOREIGN_NATS:
        why = f"{read}: it does not know this kind of text. Give the text weight if it is what must be learned; else use other text"
        return Advice("loss.ce_weight", "0.5", "0,0.5,1", why)
    return Advice("loss.ce_weight", "0", "0,0.2", f"{read}: it knows this text, whose own next tokens add little but noise to what it says")


def _learning_rate(config: DistillConfig) -> Advice:
    centre = {"fresh": 5e-3, "prune_layers": 3e-4, "pretrained": 5e-5}[config.student.init]
    around = ",".join(f"{value:.1g}" for value in (centre / 3, centre, centre * 3))
    return Advice(
        "train.learning_rate", f"{centre:g}", around, f"a rule of thumb for student.init '{config.student.init}', not read from the cache"
    )


def in_text(advice: Sequence[Advice], cache: str) -> str:
    """As plain text, with the sweep that would try it."""
    lines = [
        f"{each.setting:<20} start with {each.start:<7} {f'try {each.try_also}' if each.try_also else '':<22} {each.why}" for each in advice
    ]
    swept = " ".join(f"--{each.setting} {each.try_also}" for each in advice if each.try_also and each.setting in SWEEP_FIRST)
    return "\n".join([*lines, "", f"Try it: python -m distill_core sweep --cache {cache} {swept} --seeds 3"])


SWEEP_FIRST = ("loss.temperature", "train.learning_rate")
"""What differs most between students and texts; the others can wait."""


def from_results(sweep: Sweep) -> str:
    """What the results say of each swept setting by itself, and where to go on."""
    found = settings(sweep)
    said = [verdict(found)]
    whole = [setting for setting in found if setting.is_complete]
    if not whole:
        return said[0]
    best = whole[0]
    said += [words for name in sweep.grid if (words := _one_setting(name, sweep.grid[name], whole, best))]
    return "\n".join(said)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _one_setting(name: str, values: list[object], whole: list[Setting], best: Setting) -> str:
    """How much one setting moved the result, and whether its best value stands at the end of what was tried."""
    means = {}
    for value in values:
        kl = [setting.mean for setting in whole if setting.values[name] == value]
        if kl:
            means[value] = math.fsum(kl) / len(kl)
    if len(means) < 2:
        return ""
    moved = max(means.values()) - min(means.values())
    words = f"{name}: start from {_plain(best.values[name])}; between its values the mean KL differs by {moved:.4f} nats"
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == len(values) and best.values[name] in (min(numbers), max(numbers)):
        side = "below" if best.values[name] == min(numbers) else "above"
        words += f", and the best stands at the end of what was tried: look {side} it too"
    return words + "."
