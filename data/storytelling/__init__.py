"""Small English stories from a probabilistic grammar that knows the exact probability of what it writes.

Every random choice adds its -log p, so the entropy of the text is known: the held-out loss of a model can be compared with the best
loss any model could reach. It is the entropy of the derivation, an upper bound that is nearly tight: few stories can be made in two
ways. Words that the story so far determines are marked, so "does the model remember?" is an accuracy that can be measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .people_meet import compare, letter, party, pet, purse, weather, week
from .telling import Dice, Teller, read_marks
from .things_happen import chain, count, hide, job, quest, sums

KINDS = (hide, count, chain, quest, job, pet, weather, purse, week, letter, compare, party, sums)
"""Each has something that must be remembered from its beginning to its end."""


@dataclass(frozen=True, kw_only=True)
class Story:
    kind: str
    """Name of the function that tells it."""
    text: str
    nats: float
    """-log probability of the choices that made this text."""
    determined: list[tuple[int, int]]
    """(start, end) characters of the words that the text before them leaves no choice about."""


def story(seed: str) -> Story:
    """The story of this seed, always and everywhere the same."""
    dice = Dice(seed)
    teller = Teller(dice)
    kind = dice.pick(KINDS)
    kind(teller)
    text, determined = read_marks(" ".join(teller.sentences))
    return Story(kind=kind.__name__, text=text, nats=dice.nats, determined=determined)


def stories(count: int, seed: str) -> Iterator[Story]:
    """`count` stories, one after the other; another seed gives other stories."""
    return (story(f"{seed}-{number}") for number in range(count))
