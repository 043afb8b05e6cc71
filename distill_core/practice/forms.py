"""What is a job of its own, as a form: its controls, the fields that a choice asks for, and the one call that starts it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import chain
from ..cache import list_caches
from ..config import DistillConfig, from_dict, with_overrides
from ..errors import ConfigError
from ..language import later
from ..walk.options import Control

Values = Mapping[str, Any]
BUILTIN_SETTINGS = ""
"""Value of 'settings of' that means: the defaults, with the built-in teacher."""


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


def _chain_controls() -> dict[str, tuple[Control, Any]]:
    settings = {later("the built-in teacher's defaults"): BUILTIN_SETTINGS} | {cache.name: cache.name for cache in list_caches()}
    kinds = {words: kind for kind, words in chain.KINDS.items()}
    return {
        "kind": (Control(kind="dropdown", label=later("Kind"), choices=kinds), "progressive"),
        "settings": (Control(kind="dropdown", label=later("Teacher and text of"), choices=settings), BUILTIN_SETTINGS),
        "widths": (Control(kind="text", label=later("Widths of the students, the last one's last"), placeholder="128, 64"), "128, 64"),
        "rounds": (Control(kind="number", label=later("Rounds"), low=1, high=20), 2),
        "max_steps": (Control(kind="number", label=later("Steps of each student"), low=1), DistillConfig().train.max_steps),
        "with_direct": (Control(kind="checkbox", label=later("also the last student straight from the teacher, to compare")), True),
        "name": (Control(kind="text", label=later("Name"), placeholder=later("made of the time")), ""),
    }


def _chain_fields(values: Values) -> tuple[str, ...]:
    shape = "widths" if values["kind"] == "progressive" else "rounds"
    return ("kind", "settings", shape, "max_steps", "with_direct", "name")


def chain_config(values: Values) -> DistillConfig:
    """The config of the chain that the form describes. Raises ConfigError."""
    base = DistillConfig() if values["settings"] == BUILTIN_SETTINGS else _settings_of(values["settings"])
    asked: dict[str, Any] = {"kind": values["kind"], "with_direct": values["with_direct"]}
    if values["kind"] == "progressive":
        asked["links"] = [{"student.hidden_size": width} for width in numbers(values["widths"], "widths")]
    else:
        asked["rounds"] = values["rounds"]
    return with_overrides(base, {"train.max_steps": values["max_steps"], "chain": asked})


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


FORMS: dict[str, Form] = {
    "chain": Form(
        title=later("Chains and rounds of students"),
        words=later("Trains the students one after the other, each taught by the one before; it goes on when you close this page."),
        press=later("Start the chain"),
        controls=_chain_controls,
        fields=_chain_fields,
        start=start_chain,
    ),
}
"""Name, as in the page's anchors (#form-NAME) -> form, in the order of the screen."""
