"""A view: what the teacher reads in place of a student's document, aligned token by token on what the student learns.

Whatever the teacher has besides (a context before the document, an image), one record holds it, and one place in the capture reads it.
"""
# T: tokens of the student's document   S: tokens that the teacher reads

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, kw_only=True)
class View:
    """One document as the teacher reads it."""

    ids_S: np.ndarray
    """uint32."""
    places_T: np.ndarray
    """int64; where each token of the student's document stands in ids_S, -1 where the teacher reads it not, or not in this way."""
    before_pieces: np.ndarray | None = None
    """uint32; what stands before a piece of the document that does not begin it; none: such pieces cannot be aligned."""
    image: bytes | None = None
    """The image file that the teacher sees where its tokens stand in ids_S."""

    def piece(self, first: int, end: int) -> "View | None":
        """The view of the document's tokens first … end-1, or none."""
        if first == 0:
            return replace(self, ids_S=self.ids_S[: self.places_T[:end].max() + 1], places_T=self.places_T[:end])
        if self.before_pieces is None:
            return None
        ids = self.ids_S[self.places_T[first] : self.places_T[end - 1] + 1]
        places = len(self.before_pieces) + np.arange(len(ids))
        return replace(self, ids_S=np.concatenate([self.before_pieces, ids]), places_T=places)


def behind(leading: np.ndarray, between: np.ndarray, token_ids_T: np.ndarray) -> View:
    """[leading] between document: the ids themselves are put together, so nothing is cut into tokens otherwise. `leading` is what begins
    every text of the tokenizer; a document that has it gives it to the front."""
    before = np.concatenate([leading, between])
    num_own = len(leading) if len(leading) and np.array_equal(token_ids_T[: len(leading)], leading) else 0
    places = len(before) - num_own + np.arange(len(token_ids_T))
    places[:num_own] = np.arange(num_own)
    return View(ids_S=np.concatenate([before, token_ids_T[num_own:]]), places_T=places, before_pieces=before)


def on_last_learned(token_ids_T: np.ndarray, is_target_T: np.ndarray, ids_S: np.ndarray, is_target_S: np.ndarray) -> View | None:
    """The student's learned tokens on the last ones learned in what the teacher reads, one by one; none where their ids differ."""
    learned_T = np.flatnonzero(is_target_T)
    learned_S = np.flatnonzero(is_target_S)[-len(learned_T) :] if len(learned_T) else learned_T
    if not len(learned_T) or not np.array_equal(token_ids_T[learned_T], ids_S[learned_S]):
        return None
    places = np.full(len(token_ids_T), -1)
    places[learned_T] = learned_S
    return View(ids_S=ids_S, places_T=places)
