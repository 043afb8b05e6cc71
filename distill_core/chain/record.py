"""What a chain is, in a folder of its own: chains/NAME/ holds chain.json (frozen), log.txt, and stop where it was asked to.

Link i of chain NAME is the run NAME-i, taught by the cache NAME-i-cache; the direct student is NAME-direct.
"""

import time
from dataclasses import dataclass
from typing import Any

from .. import room
from ..config import ChainConfig, DistillConfig, from_dict, with_overrides
from ..errors import ConfigError, RoomError
from ..frozen import Frozen
from ..paths import checked_name
from ..room.visitors import is_same_name
from .checks import check_chain, larger_students, sizes_along

KEPT_STUDENT = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "quantize")
"""On-policy rounds after the first go on from the student's own weights: of the section 'student' only how they learn stays."""


class Chain(Frozen):
    kind = "chain"

    config: dict[str, Any]
    """The one config, with its section 'chain'."""
    sizes: list[dict[str, int]]
    """For each link what its student's sizes came to, 'student.hidden_size' and so on: the direct student has the last one's."""
    owner: str = ""
    """In a room: the visitor who started it."""

    @property
    def last_words(self) -> str:
        """What the process that drove it in the background said last; '' where there was none."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines() if self.log_path.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "")

    @property
    def first_cache(self) -> str:
        """What the first teacher said: every link's student is judged by it."""
        return f"{self.name}-1-cache"

    @property
    def settings(self) -> ChainConfig:
        return from_dict(self.config).chain

    def links(self) -> list["Link"]:
        """In the order in which they are worked on; the direct student, where it is asked for, last."""
        settings = self.settings
        return [Link(self, number) for number in range(1, settings.num_links + 1)] + ([Link(self, 0)] if settings.with_direct else [])

    def run_ids(self) -> list[str]:
        """Names of all its runs, those that are not there yet included, in the order of their making."""
        return [name for link in self.links() for name in link.run_ids]


@dataclass(frozen=True)
class Link:
    """One capture and one training of a chain, or its direct student."""

    chain: Chain
    number: int
    """From 1; 0 is the direct student."""

    @property
    def is_direct(self) -> bool:
        return self.number == 0

    @property
    def name(self) -> str:
        """Of the run."""
        return f"{self.chain.name}-direct" if self.is_direct else f"{self.chain.name}-{self.number}"

    @property
    def cache(self) -> str:
        """What the student learns from; the direct student from the first teacher's."""
        return f"{self.chain.name}-{max(1, self.number)}-cache"

    @property
    def capture_id(self) -> str:
        return f"{self.chain.name}-{max(1, self.number)}-capture"

    @property
    def writes(self) -> bool:
        """On-policy: whether the student before this one writes part of the text."""
        return self.number > 1 and self.chain.settings.kind == "on_policy"

    @property
    def text(self) -> str:
        """What the student before this one wrote, in texts/."""
        return f"{self.chain.name}-{self.number}-text"

    @property
    def write_id(self) -> str:
        return f"{self.chain.name}-{self.number}-write"

    @property
    def run_ids(self) -> list[str]:
        """Names of its runs, in the order of their making; the direct student's capture is the first link's."""
        return ([self.write_id] if self.writes else []) + ([] if self.is_direct else [self.capture_id]) + [self.name, self.judged_id]

    @property
    def judged_id(self) -> str:
        """Of the run that judges the student beside the first teacher."""
        return f"{self.name}-judged"

    @property
    def previous(self) -> str:
        """Name of the student before this one."""
        return f"{self.chain.name}-{self.number - 1}"

    @property
    def teacher(self) -> str:
        """Whom the student learns from, as teacher.model names it."""
        return self.config().teacher.model

    def config(self) -> DistillConfig:
        """Of all its runs. Raises ConfigError where the settings do not go together."""
        base = from_dict(self.chain.config | {"chain": {}})
        if self.is_direct:
            return self._direct_config()
        settings, number = self.chain.settings, self.number
        changes: dict[str, Any] = {"capture.name": self.cache, "train.name": self.name, "train.seed": base.train.seed + number - 1}
        if self.writes:
            changes |= self._going_on(base)
        elif number > 1:
            changes |= {"teacher.model": f"run:{self.previous}", "teacher.revision": None}
        changes |= settings.overrides(number) | ({} if self.writes else self.chain.sizes[number - 1])
        return with_overrides(base, changes)

    def _going_on(self, base: DistillConfig) -> dict[str, Any]:
        """On-policy: the student before this one writes, and goes on from its own weights (Agarwal et al. 2024, arXiv:2306.13649, and
        Lin et al. 2020, ImitKD, arXiv:2009.07253, where a share of the text is the student's own)."""
        before = f"run:{self.previous}"
        return {
            "student": {name: getattr(base.student, name) for name in KEPT_STUDENT} | {"init": "pretrained", "model": before},
            "text.synthetic": f"written:{self.text}",
            "write.by": before,
            "write.name": self.text,
            "write.seed": base.write.seed + self.number - 1,
        }

    def _direct_config(self) -> DistillConfig:
        """The last student from the first teacher, for as many steps as the links together."""
        chain = self.chain
        links = [link for link in chain.links() if not link.is_direct]
        first = links[0].config()
        last = first if chain.settings.kind == "on_policy" else links[-1].config()
        changes = {
            "capture.name": self.cache,
            "teacher": first.teacher.model_dump(),
            "train.name": self.name,
            "train.seed": first.train.seed,
            "train.max_steps": sum(link.config().train.max_steps for link in links),
        }
        if last.student.keep_layers is not None:  # numbers of the middle student's layers
            changes |= {"student.keep_layers": None, "student.num_layers": len(last.student.keep_layers)}
        return with_overrides(last, changes)


def create_chain(name: str, config: DistillConfig, *, owner: str = "") -> Chain:
    """Freeze a chain. The same one again, by name, is opened as it is.

    Raises ConfigError for what is senseless, ModelError for a model that is not there, VocabularyError for students with other tokens,
    RunError for a name taken by another chain, RoomError for what the room does not allow.
    """
    if config.chain.kind is None:
        raise ConfigError("this config describes no chain: set chain.kind to progressive, iterative, born_again or on_policy.")
    if room.policy() is not None and not owner:
        raise RoomError("a chain in a room needs the name of its visitor. Log in, or start it from a terminal outside the room.")
    names = {section: getattr(config, section).changed(name=None) for section in ("train", "capture", "write")}  # the links' own
    kept = config.changed(**names)
    draft = Chain(name=checked_name(name, "chain"), config=kept.model_dump(mode="json"), sizes=[{}] * kept.chain.num_links, created_s=0)
    links = [link for link in draft.links() if not link.is_direct]
    made = draft.model_copy(update={"sizes": sizes_along([link.config() for link in links], kept), "owner": owner})
    configs = [link.config() for link in made.links()]
    for each in configs:
        room.check_config(each)
    check_chain(configs, kept)
    if made.path.exists():
        there = open_chain(name)
        if (from_dict(there.config), there.sizes, there.owner) != (kept, made.sizes, made.owner):  # fields of later versions have defaults
            raise made.name_taken()
        return there
    made = made.model_copy(update={"created_s": time.time()})
    made.freeze()
    return made


def open_chain(name: str) -> Chain:
    """Raises RunError, with the nearest name, when there is none, or it is not one."""
    return Chain.opened(name)


def list_chains() -> list[Chain]:
    """All chains, newest first; folders that hold none are passed over."""
    return Chain.all_there()


def warnings_of(chain: Chain) -> list[str]:
    """What is allowed, but seldom meant, in words."""
    return larger_students([link.config() for link in chain.links() if not link.is_direct], from_dict(chain.config))


def check_may_touch(visitor: room.Visitor, chain: Chain) -> None:
    """Raise RoomError, in a room, unless the chain is the visitor's, or the visitor is the presenter."""
    if room.policy() is None or visitor.is_presenter or is_same_name(chain.owner, visitor.name):
        return
    raise RoomError(f"chain {chain.name} belongs to {chain.owner or 'the room'}: ask {chain.owner or 'the presenter'}.")
