"""The errors a user can meet: each says what, with which values, and what to do next.

DistillError
├── ConfigError        a value in the config, or on the command line, cannot be used
├── TextError          the text cannot be read, or nothing in it can be trained on
├── ModelError         a model is missing, gated, unsafe to load, or of a kind that cannot be served
├── VocabularyError    two models do not share the tokens that a cache speaks of
├── CacheError         a cache is damaged, unfinished, or was made from something else
├── RunError           a run folder is not what it should be, or is in the wrong state
├── RoomError          in a room: not this visitor's to do, or no place left in queue or on disk
└── LossInputError     tensors that the loss cannot be computed from
"""

import difflib
from collections.abc import Iterable

MOST_NAMED = 16
"""Longer lists of names help nobody; a section of the config is shorter."""
NUM_NEAREST = 5


class DistillError(ValueError):
    """Base of every error that is the user's to mend; the command line prints it and exits with 2."""


class ConfigError(DistillError):
    """A value in the config, or on the command line, cannot be used."""


class TextError(DistillError):
    """The text cannot be read, or nothing in it can be trained on."""


class ModelError(DistillError):
    """A model is missing, gated, unsafe to load, or of a kind that cannot be served."""


class VocabularyError(DistillError):
    """Two models do not share the tokens that a cache speaks of."""


class CacheError(DistillError):
    """A cache is damaged, unfinished, or was made from something else."""


class RunError(DistillError):
    """A run folder is not what it should be, or is in the wrong state."""


class RoomError(DistillError):
    """In a room: not this visitor's to do, or no place left in queue or on disk."""


class LossInputError(DistillError):
    """Tensors that the loss cannot be computed from."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean 'x'?' for a near miss, else what exists, of much the nearest few; starts with a space."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    if len(known) > MOST_NAMED:
        nearest = sorted(known, key=lambda name: -difflib.SequenceMatcher(None, word, name).ratio())[:NUM_NEAREST]
        return f" The nearest of {len(known)}: {', '.join(nearest)}."
    return f" Known: {', '.join(known)}."
