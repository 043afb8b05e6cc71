"""The words of the stories, read from words.txt: persons, things, places, animals, and tables of what belongs together."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, eq=False)
class Noun:
    """Something that can be one or many; in a template it stands for its singular."""

    singular: str
    plural: str

    def __str__(self) -> str:
        return self.singular

    def counted(self, count: int) -> str:
        """'one apple', 'three apples'."""
        return f"{NUMBERS[count]} {self.singular if count == 1 else self.plural}"


@dataclass(frozen=True, eq=False)
class Place:
    name: str
    preposition: str
    is_for_living: bool
    """May a house stand near it?"""
    activities: list[str]

    def __str__(self) -> str:
        return self.name

    @property
    def at(self) -> str:
        """'in the park'."""
        return f"{self.preposition} the {self.name}"


@dataclass(frozen=True, eq=False)
class Thing(Noun):
    kind: str
    adjectives: list[str]
    places: list[Place]
    """Where it is found."""


@dataclass(frozen=True, eq=False)
class Animal(Noun):
    sound: str
    food: str
    bed: str
    adjectives: list[str]


@dataclass(frozen=True, eq=False)
class Person:
    name: str
    is_girl: bool

    def __str__(self) -> str:
        return self.name

    def form(self, word: str) -> str:
        """'he', 'him', 'his' or 'kid' as it is right for this person; 'He' where a sentence begins."""
        hers, his = {"he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his"), "kid": ("girl", "boy")}[word.lower()]
        right = hers if self.is_girl else his
        return right.capitalize() if word[0].isupper() else right


class Job(NamedTuple):
    name: str
    place: str
    tool: str
    material: str
    verb: str
    products: str


class Problem(NamedTuple):
    what: str
    tool: str
    rescue: str


class Trait(NamedTuple):
    name: str
    deed: str
    lesson: str


class Weather(NamedTuple):
    name: str
    needed: str
    without: str
    with_it: str


def _read_tables() -> dict[str, list[list[str]]]:
    """Section -> rows -> columns."""
    tables: dict[str, list[list[str]]] = {}
    for line in (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            rows = tables[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            rows.append(line.split(": "))
    return tables


def _forms(noun: str) -> tuple[str, str]:
    """(singular, plural) of 'box' or, where the plural is irregular, of 'leaf/leaves'."""
    singular, _, plural = noun.partition("/")
    return singular, plural or singular + ("es" if singular.endswith(("s", "x", "ch", "sh")) else "s")


_TABLES = _read_tables()
LISTS = {name: entries.split() for name, entries in _TABLES["lists"]}
NUMBERS = LISTS["numbers"]
RELATIVES = _TABLES["relatives"]
HIDING_PLACES = [(preposition, where) for preposition, where in _TABLES["hiding_places"]]
PLACES = {
    name: Place(name, preposition, is_for_living == "yes", activities.split(", "))
    for name, preposition, is_for_living, activities in _TABLES["places"]
}
THINGS = {
    _forms(noun)[0]: Thing(*_forms(noun), kind, adjectives.split(), [PLACES[place] for place in places.split()])
    for noun, kind, adjectives, places in _TABLES["things"]
}
ANIMALS = [Animal(*_forms(noun), sound, food, bed, adjectives.split()) for noun, sound, food, bed, adjectives in _TABLES["animals"]]
JOBS = [Job(*row) for row in _TABLES["jobs"]]
PROBLEMS = [Problem(*row) for row in _TABLES["problems"]]
TRAITS = [Trait(*row) for row in _TABLES["traits"]]
WEATHERS = [Weather(*row) for row in _TABLES["weather"]]

PORTABLE = [thing for thing in THINGS.values() if thing.singular not in LISTS["large"]]
FOODS = [thing for thing in THINGS.values() if thing.kind == "food"]
CLOTHES = [thing for thing in THINGS.values() if thing.kind == "wear"]
COUNTABLE = [thing for thing in THINGS.values() if thing.kind in ("food", "gem", "plant") or thing.singular in LISTS["also_counted"]]
FOUND_AT = {place: [thing for thing in THINGS.values() if place in thing.places] for place in PLACES.values()}
IN_PAIRS = [THINGS["glove"], THINGS["boot"]]


def with_article(words: object) -> str:
    """'an old map', 'a map'."""
    return f"{'an' if str(words)[0] in 'aeiou' else 'a'} {words}"
