"""The section 'chain': students one after the other, each taught by the one before it, or rounds of one student."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from .section import Section

ChainKind = Literal["progressive", "iterative", "born_again", "on_policy"]
LINK_SECTIONS = ("student", "loss", "train")
"""Sections whose settings may differ between links: text and capture are the same for all, or they could not be compared."""
SET_BY_CHAIN = ("train.name", "train.seed")
HARD_LABELS = {"loss.kl_weight": 0.0, "loss.ce_weight": 1.0}


class ChainConfig(Section):
    kind: ChainKind | None = None
    """'progressive': smaller and smaller students, each taught by the one before; 'iterative': the student teaches the next one of its
    size; 'born_again': the same, from a student that learned hard labels only; 'on_policy': the student
    writes, the teacher reads what it wrote, and the student goes on."""
    links: tuple[dict[str, Any], ...] = ()
    """What is other in each link, such as [{"student.hidden_size": 128}, {"student.hidden_size": 64}]; all else is as this config says."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """All kinds but 'progressive': how many times; 'born_again': after the student that learned hard labels."""
    with_direct: bool = False
    """Train the last student straight from the first teacher too, for as many steps as all links together: the honest baseline."""

    @field_validator("links")
    @classmethod
    def _may_differ(cls, links: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for number, name in ((number, name) for number, link in enumerate(links, start=1) for name in link):
            if name.partition(".")[0] not in LINK_SECTIONS:
                what = f"Settings of {', '.join(LINK_SECTIONS)} may; all links read the same text, or they could not be compared"
                raise ValueError(f"chain.links: {name} of link {number} cannot differ between links. {what}")
            if name in SET_BY_CHAIN:
                raise ValueError(f"chain.links: {name} of link {number} is the same for all links, or set by the chain. Leave it out")
        return links

    @model_validator(mode="after")
    def _has_links(self) -> Self:
        if self.kind is None:
            asked = [name for name in ("links", "rounds", "with_direct") if getattr(self, name)]
            if asked:
                raise ValueError(
                    f"chain.{asked[0]} is only read with chain.kind. Say which: progressive, iterative, born_again or on_policy"
                )
            return self
        if self.kind == "progressive":
            if not self.links:
                raise ValueError(
                    "chain.links is empty: a progressive chain needs a student for each link, such as student.hidden_size 128, 64"
                )
            if self.rounds not in (None, len(self.links)):
                raise ValueError(
                    f"chain.rounds {self.rounds} contradicts the {len(self.links)} chain.links of a progressive chain; drop it"
                )
            return self
        if self.rounds is None and not self.links:
            raise ValueError(f"chain.kind '{self.kind}' needs chain.rounds: how many times, 2 or 3 are usual")
        if self.links and self.rounds not in (None, len(self.links)):
            raise ValueError(f"chain.rounds {self.rounds} contradicts the {len(self.links)} chain.links; give one of them")
        shaped = [name for link in self.links for name in link if name.startswith("student.")]
        if shaped:
            hint = "Only a progressive chain has other students"
            raise ValueError(f"chain.links: {shaped[0]} differs between links, but chain.kind '{self.kind}' keeps its student. {hint}")
        return self

    @property
    def has_hard_start(self) -> bool:
        """Whether the first link learns hard labels only."""
        return self.kind == "born_again"

    @property
    def num_links(self) -> int:
        """Trainings one after the other, without the direct one."""
        return (len(self.links) or self.rounds or 0) + self.has_hard_start

    def overrides(self, number: int) -> dict[str, Any]:
        """What link `number`, from 1, sets otherwise than the config."""
        place = number - 1 - self.has_hard_start
        if place < 0:
            return dict(HARD_LABELS)
        return dict(self.links[place]) if self.links else {}
