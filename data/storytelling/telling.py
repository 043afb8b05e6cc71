"""The writing machine: dice that know how improbable their choices were, templates, and sentences that many stories share.

A template holds {this|that} for a choice, [x] for a value, [A.he] for a form of a person, and <<...>> around what the story so far
determines. Choices may lie inside one another; every one of them goes through the dice.
"""
# in templates and code: A, B, C persons   t thing   p place   a animal

import math
import random
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from .words import (
    ANIMALS,
    CLOTHES,
    FOODS,
    FOUND_AT,
    LISTS,
    PLACES,
    Person,
    Place,
    Thing,
    with_article,
)

Entry = TypeVar("Entry")
SLOT = re.compile(r"\[(\w+)(?:\.(\w+))?\]")
MARK = re.compile("<<|>>")

UNEVEN = 0.7
"""Zipf exponent of names, things and places."""
SLIGHTLY_UNEVEN = 0.4
"""Zipf exponent of colors and moods."""


class Dice:
    """A random source that adds up -log p of all its choices in `nats`."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.nats = 0.0

    def pick(self, entries: Iterable[Entry], zipf: float = 0.0) -> Entry:
        """One entry; with zipf > 0 the first ones come more often than the last. Equal entries share their probability."""
        entries = list(entries)
        weights = [(rank + 4) ** -zipf for rank in range(len(entries))]
        chosen = entries[self._random.choices(range(len(entries)), weights)[0]]
        self.nats -= math.log(sum(weight for entry, weight in zip(entries, weights) if entry == chosen) / sum(weights))
        return chosen

    def flip(self, probability: float) -> bool:
        is_yes = self._random.random() < probability
        self.nats -= math.log(probability if is_yes else 1 - probability)
        return is_yes

    def number(self, low: int, high: int) -> int:
        """low and high can both come."""
        return self.pick(range(low, high + 1))

    def sample(self, entries: Iterable[Entry], count: int, zipf: float = 0.0) -> list[Entry]:
        """`count` different entries, one after the other."""
        left, chosen = list(entries), []
        for _ in range(count):
            chosen.append(self.pick(left, zipf))
            left.remove(chosen[-1])
        return chosen


def split_choice(template: str) -> tuple[str, list[str], str] | None:
    """(before, options, after) of the first {choice} in a template, None if there is none."""
    start = template.find("{")
    if start < 0:
        return None
    depth, cuts = 0, [start]
    for at in range(start, len(template)):
        depth += (template[at] == "{") - (template[at] == "}")
        if depth == 0 or (depth == 1 and template[at] == "|"):
            cuts.append(at)
        if depth == 0:
            break
    options = [template[left + 1 : right] for left, right in pairwise(cuts)]
    return template[:start], options, template[at + 1 :]


def read_marks(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its <<marks>>, and the (start, end) characters that were marked."""
    text, spans, open_at, position = "", [], [], 0
    for mark in MARK.finditer(marked):
        text += marked[position : mark.start()]
        position = mark.end()
        if mark[0] == "<<":
            open_at.append(len(text))
        else:
            spans.append((open_at.pop(), len(text)))
    return text + marked[position:], spans


class Teller:
    """One story in the making."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.sentences: list[str] = []
        self._names: list[str] = []

    # ---- words
    def expand(self, template: str) -> str:
        """The template with all its choices made, from left to right."""
        while parts := split_choice(template):
            before, options, after = parts
            template = before + self.dice.pick(options) + after
        return template

    def say(self, template: str, **values: object) -> None:
        """Write one or more sentences; the first letter becomes a capital."""

        def filled(slot: re.Match) -> str:
            value = values[slot[1]]
            return value.form(slot[2]) if isinstance(value, Person) and slot[2] else str(value)

        sentence = SLOT.sub(filled, self.expand(template))
        first = 2 if sentence.startswith("<<") else 0
        self.sentences.append(sentence[:first] + sentence[first].upper() + sentence[first + 1 :])

    def talk(self, speaker: Person, template: str, **values: object) -> None:
        """Direct speech, with the speaker before or after it."""
        verb, words = self.dice.pick(LISTS["says"]), self.expand(template)
        if self.dice.flip(0.6):
            words = words[:-1] + "," if words.endswith(".") else words
            self.say(f'"{words}" {verb} [speaker].', speaker=speaker, **values)
        else:
            self.say(f'[speaker] {verb}, "{words}"', speaker=speaker, **values)

    # ---- who, where, what kind of
    def person(self) -> Person:
        """Somebody who is not yet in this story."""
        is_girl = self.dice.flip(0.5)
        names = LISTS["girls" if is_girl else "boys"]
        self._names.append(self.dice.pick([name for name in names if name not in self._names], UNEVEN))
        return Person(self._names[-1], is_girl)

    def place(self, *others_than: Place) -> Place:
        return self.dice.pick([place for place in PLACES.values() if place not in others_than], UNEVEN)

    def color(self) -> str:
        return self.dice.pick(LISTS["colors"], SLIGHTLY_UNEVEN)

    def adjective(self, t: Thing) -> str:
        """A color, or something that suits the thing."""
        return self.color() if self.dice.flip(0.5) else self.dice.pick(t.adjectives)

    # ---- sentences that many stories share
    def introduce(self, A: Person, place: Place | None = None) -> None:
        """Who the story is about; with a place, how they get there."""
        opening = self.dice.number(0, 3)
        if opening == 0:
            self.say("{Once upon a time|Long ago|One day|Once} there was a {little|young|tall|small} [A.kid] {named|called} [A].", A=A)
        elif opening == 1:
            homes = [place for place in PLACES.values() if place.is_for_living]
            self.say(
                "[A] was a {little|young|cheerful|quiet|busy} [A.kid] from the house near the [p].", A=A, p=self.dice.pick(homes, UNEVEN)
            )
        elif opening == 2:
            mood = "{at home|awake early|outside|in a good mood}"
            self.say(
                "It was a {warm|cold|bright|quiet|long|dark|fine} [t] and [A] was " + mood + ".", A=A, t=self.dice.pick(LISTS["times"])
            )
        else:
            plan = "{wanted|had|planned} to {go out|help at home|see a friend|do something new}"
            self.say("It was [day]{ morning| evening|}. [A] " + plan + ".", A=A, day=self.dice.pick(LISTS["days"]))
        if self.dice.flip(0.25):
            self.likings(A)
        if place:
            self.go(A, place)

    def go(self, A: Person, place: Place, opening: str = "{[A]|[A.He]}") -> None:
        """To a place, perhaps with something to do or to see there."""
        manner = self.dice.pick(LISTS["manners"]) + " " if self.dice.flip(0.25) else ""
        self.say(f"{opening} {self.dice.pick(LISTS['walks'], 0.5)} {manner}to the [p].", A=A, p=place)
        if self.dice.flip(0.3):
            self.say("[A.He] [activity]{ with a friend| there||}.", A=A, activity=self.dice.pick(place.activities))
        if self.dice.flip(0.4):
            self.scene(place)

    def scene(self, place: Place) -> None:
        """What is to be seen at a place: things that belong there, adjectives that suit them."""
        here = FOUND_AT[place]
        things = self.dice.sample(here, self.dice.number(1, min(3, len(here))))
        self.say("{There|Here} {was|stood|lay} [things].", things=listed(with_article(f"{self.adjective(t)} {t}") for t in things))

    def likings(self, A: Person) -> None:
        food, animal = self.dice.pick(FOODS, UNEVEN), self.dice.pick(ANIMALS, UNEVEN)
        self.say(
            "[A.He] {liked|loved} [color] [clothes], [x] [food] and [y] [animals].",
            A=A,
            color=self.color(),
            clothes=self.dice.pick(CLOTHES).plural,
            x=self.dice.pick(food.adjectives),
            food=food.plural,
            y=self.dice.pick(animal.adjectives),
            animals=animal.plural,
        )

    def passing_animal(self) -> None:
        """Nothing to do with the story: something to remember across."""
        a = self.dice.pick(ANIMALS, UNEVEN)
        where = "{near the road|behind a tree|in the grass|somewhere}"
        self.say("A [x] [a] <<[sound]>> " + where + ".", x=self.dice.pick(a.adjectives), a=a, sound=a.sound)

    def end(self, A: Person, *, is_happy: bool = True) -> None:
        """How they feel about it, or what they remember, or nothing."""
        ending = self.dice.number(0, 4)
        if ending < 2:
            mood = self.dice.pick(LISTS["good_moods" if is_happy else "bad_moods"], SLIGHTLY_UNEVEN)
            calm = "In the {end|evening}, [A] {was|felt} [mood] and {went home|went to bed|fell asleep}."
            self.say("[A] {was|felt} {very |so |}[mood]." if ending else calm, A=A, mood=mood)
        elif ending == 2:
            memory = "{never forgot|often thought of|told everyone about|dreamed of}"
            self.say("[A] " + memory + " that [t].", A=A, t=self.dice.pick(LISTS["times"]))


def listed(words: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
