"""What a person is shown of a batch is what the model is fed: borders, masks, padding."""

import numpy as np

from distill_core.cache.reader import position_ids
from distill_core.corpus import document_lengths, show_batch


class Letters:
    """Token 1 is 'a', 2 is 'b', …; 0 is a special token."""

    all_special_ids = [0]

    def decode(self, ids):
        return "".join(chr(96 + token_id) for token_id in ids)

    def convert_ids_to_tokens(self, ids):
        return ["<end>" for _ in ids]


def test_borders_masks_and_padding_by_hand():
    ids = np.array([[1, 2, 3, 0, 4, 5, 6, 0, 0, 0]])
    learned = np.array([[False, True, True, False, True, False, True, False, False]])
    shown = show_batch(ids, learned, [[4, 4]], Letters(), numbers=[7]).splitlines()[1:]
    assert shown == [
        "window 7: 10 tokens, 4 of them learned, 2 documents, 2 of padding",
        "      0-3     (ab) c<end>",
        "      4-7     (d) e (f) <end>",
    ]


def test_long_documents_and_many_are_cut_and_it_is_said():
    ids, learned = np.ones((1, 120), int), np.ones((1, 119), bool)
    shown = show_batch(ids, learned, [[100, 4, 4, 4, 4, 4]], Letters())
    assert "a … 60 more" in shown and "… 2 more documents" in shown


def test_lengths_come_back_from_positions():
    for lengths in ([3, 4, 2], [10], [9, 1], [1, 9], [4]):
        row = np.ones(9, bool)
        row[max(0, sum(lengths) - 1) :] = False
        assert document_lengths(position_ids(lengths, 10)[None], row[None]) == [lengths]
