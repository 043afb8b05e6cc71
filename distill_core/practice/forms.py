"""What is a job of its own, as a form: its controls, the fields that a choice asks for, and the one call that starts it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import chain, jobs
from ..cache import list_caches
from ..config import DistillConfig, from_dict, with_overrides
from ..errors import ConfigError
from ..language import later
from ..merging import By, Merge
from ..runs import Run, list_runs
from ..walk.options import Control

Values = Mapping[str, Any]
BUILTIN_SETTINGS = ""
"""Value of 'settings of' that means: the defaults, with the built-in teacher."""


NO_CACHE = {later("no cache yet"): ""}
NAME = (Control(kind="text", label=later("Name"), placeholder=later("made of the time")), "")
WAYS: dict[By, str] = {
    "mixture": later("mixed: the weighted mean of what they say"),
    "pick": later("the better one, window by window"),
    "join": later("one after the other"),
}
"""cache merge --by -> what the form calls it."""


@dataclass(frozen=True, kw_only=True)
class Form:
    title: str
    words: str
    """What pressing the button does, in a sentence."""
    press: str
    controls: Callable[[], dict[str, tuple[Control, Any]]]
    """Name -> (control, the value it starts at); asked for when the page opens, for some offer the caches that are there."""
    fields: Callable[[Values], tuple[str, ...]]
    """Names of those that the choices ask for, in the order of the screen."""
    start: Callable[..., Any]
    """start(values, owner=…) -> the Run or Chain. Raises DistillError."""


def _settings_control() -> tuple[Control, Any]:
    choices = {later("the built-in teacher's defaults"): BUILTIN_SETTINGS} | {cache.name: cache.name for cache in list_caches()}
    return Control(kind="dropdown", label=later("Teacher and text of"), choices=choices), BUILTIN_SETTINGS


def _base(values: Values) -> DistillConfig:
    """The config whose teacher and text the form goes by. Raises ConfigError where its cache is gone."""
    return DistillConfig() if values["settings"] == BUILTIN_SETTINGS else _settings_of(values["settings"])


def _cache_control(label: str, place: int = 0) -> tuple[Control, Any]:
    """One of the caches that are there, beginning with number `place`, or the last."""
    names = {cache.name: cache.name for cache in list_caches()} or NO_CACHE
    return Control(kind="dropdown", label=label, choices=names), list(names.values())[min(place, len(names) - 1)]


def _chosen(name: str) -> str:
    if not name:
        raise ConfigError("there is no cache yet: capture one in the walk first, then reload this page.")
    return name


def _chain_controls() -> dict[str, tuple[Control, Any]]:
    kinds = {words: kind for kind, words in chain.KINDS.items()}
    return {
        "kind": (Control(kind="dropdown", label=later("Kind"), choices=kinds), "progressive"),
        "settings": _settings_control(),
        "widths": (Control(kind="text", label=later("Widths of the students, the last one's last"), placeholder="128, 64"), "128, 64"),
        "rounds": (Control(kind="number", label=later("Rounds"), low=1, high=20), 2),
        "max_steps": (Control(kind="number", label=later("Steps of each student"), low=1), DistillConfig().train.max_steps),
        "with_direct": (Control(kind="checkbox", label=later("also the last student straight from the teacher, to compare")), True),
        "name": NAME,
    }


def _chain_fields(values: Values) -> tuple[str, ...]:
    shape = "widths" if values["kind"] == "progressive" else "rounds"
    return ("kind", "settings", shape, "max_steps", "with_direct", "name")


def chain_config(values: Values) -> DistillConfig:
    """The config of the chain that the form describes. Raises ConfigError."""
    asked: dict[str, Any] = {"kind": values["kind"], "with_direct": values["with_direct"]}
    if values["kind"] == "progressive":
        asked["links"] = [{"student.hidden_size": width} for width in numbers(values["widths"], "widths")]
    else:
        asked["rounds"] = values["rounds"]
    return with_overrides(_base(values), {"train.max_steps": values["max_steps"], "chain": asked})


def _settings_of(cache: str) -> DistillConfig:
    found = next((each for each in list_caches() if each.name == cache), None)
    if found is None:
        raise ConfigError(f"cache {cache} is gone. Reload the page and choose another.")
    made = from_dict(found.manifest.config)
    return made.changed(capture=made.capture.changed(name=None))


def numbers(words: str, name: str) -> list[int]:
    """'128, 64' -> [128, 64]. Raises ConfigError for what is no list of whole numbers."""
    parts = [part.strip() for part in words.replace(";", ",").split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"{name} '{words}': give whole numbers with commas between, such as 128, 64.")
    return [int(part) for part in parts]


def named(values: Values, kind: str) -> str:
    """The name that was given, or one made of the time."""
    return str(values["name"]).strip() or f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"


def start_chain(values: Values, *, owner: str = "") -> chain.Chain:
    return chain.submit(named(values, "chain"), chain_config(values), owner=owner)


def _write_controls() -> dict[str, tuple[Control, Any]]:
    write = DistillConfig().write
    students = {run.id: f"run:{run.id}" for run in list_runs("train") if run.stored_status().state == "done"}
    writers = {later("the teacher"): write.by} | students
    return {
        "settings": _settings_control(),
        "by": (Control(kind="dropdown", label=later("Written by"), choices=writers), write.by),
        "num_texts": (Control(kind="number", label=later("Texts"), low=1), write.num_texts),
        "max_new_tokens": (Control(kind="number", label=later("Tokens in a text, at most"), low=8, high=8192), write.max_new_tokens),
        "temperature": (
            Control(kind="slider", label=later("Temperature of writing"), stops=(0.5, 0.7, 0.85, 1, 1.2, 1.5)),
            write.temperature,
        ),
        "name": NAME,
    }


def start_write(values: Values, *, owner: str = "") -> Run:
    asked = {f"write.{name}": values[name] for name in ("by", "num_texts", "max_new_tokens", "temperature")}
    return jobs.submit_write(with_overrides(_base(values), asked | {"write.name": named(values, "texts")}), owner=owner)


def _merge_controls() -> dict[str, tuple[Control, Any]]:
    ways = {words: by for by, words in WAYS.items()}
    return {
        "one": _cache_control(later("One cache")),
        "other": _cache_control(later("the other"), 1),
        "by": (Control(kind="dropdown", label=later("Put together"), choices=ways), "mixture"),
        "share": (Control(kind="slider", label=later("Share of the first"), stops=tuple(tenth / 10 for tenth in range(1, 10))), 0.5),
        "name": NAME,
    }


def _merge_fields(values: Values) -> tuple[str, ...]:
    return ("one", "other", "by", "share", "name") if values["by"] == "mixture" else ("one", "other", "by", "name")


def start_merge(values: Values, *, owner: str = "") -> Run:
    caches, share = (_chosen(values["one"]), _chosen(values["other"])), values["share"]
    weights = (share, round(1 - share, 4)) if values["by"] == "mixture" else ()
    return jobs.submit_merge(Merge(caches=caches, name=named(values, "merged"), by=values["by"], weights=weights), owner=owner)


def _translate_controls() -> dict[str, tuple[Control, Any]]:
    shares = Control(kind="slider", label=later("Refuse it below this share of usable places"), stops=(0.1, 0.25, 0.5, 0.75, 0.9))
    return {
        "cache": _cache_control(later("Cache")),
        "to": (Control(kind="text", label=later("For the tokens of"), placeholder=later("model id or folder"), is_wide=True), ""),
        "min_coverage": (shares, 0.5),
        "name": NAME,
    }


def start_translate(values: Values, *, owner: str = "") -> Run:
    to = str(values["to"]).strip()
    if not to:
        raise ConfigError("name the model whose tokens the cache is wanted in: a Hugging Face id, or a folder.")
    coverage = float(values["min_coverage"])
    return jobs.submit_translate(_chosen(values["cache"]), to, named(values, "translated"), min_coverage=coverage, owner=owner)


FORMS: dict[str, Form] = {
    "write": Form(
        title=later("Text written by a model"),
        words=later("Beginnings come from the text; what is written is kept under its name, to be captured and learned from."),
        press=later("Write"),
        controls=_write_controls,
        fields=tuple,
        start=start_write,
    ),
    "chain": Form(
        title=later("Chains and rounds of students"),
        words=later("Trains the students one after the other, each taught by the one before; it goes on when you close this page."),
        press=later("Start the chain"),
        controls=_chain_controls,
        fields=_chain_fields,
        start=start_chain,
    ),
    "merge": Form(
        title=later("Several caches into one"),
        words=later("Writes a new cache from two; the command line takes more. A mixture wants the same text and tokenizer in both."),
        press=later("Merge"),
        controls=_merge_controls,
        fields=_merge_fields,
        start=start_merge,
    ),
    "translate": Form(
        title=later("A cache for another tokenizer"),
        words=later("Writes the cache anew in the tokens of the model that is to learn; its weights are not loaded for it."),
        press=later("Translate"),
        controls=_translate_controls,
        fields=tuple,
        start=start_translate,
    ),
}
"""Name, as in the page's anchors (#form-NAME) -> form, in the order of the screen."""
