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

    def piece(self, first: int, end: int) -> "View | None":
        """The view of the document's tokens first … end-1, or none."""
        if first == 0:
            return replace(self, ids_S=self.ids_S[: self.places_T[:end].max() + 1], places_T=self.places_T[:end])
        if self.before_pieces is None:
            return None
        ids = self.ids_S[self.places_T[first] : self.places_T[end - 1] + 1]
        places = len(self.before_pieces) + np.arange(len(ids))
        return replace(self, ids_S=np.concatenate([self.before_pieces, ids]), places_T=places)
