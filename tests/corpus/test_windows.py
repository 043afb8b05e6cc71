"""Windows worked out by hand, and what must hold for any documents."""

import random

import numpy as np
import pytest

from distill_core.corpus import EncodedDocument, windows
from distill_core.corpus.windows import Packer, window

PAD = 99


def document(*token_ids, masked=()):
    """Tokens with one byte each; those in `masked` may not be learned."""
    return EncodedDocument(
        token_ids=np.array(token_ids, np.uint32),
        is_target=np.array([token not in masked for token in token_ids]),
        token_bytes=np.ones(len(token_ids), np.uint16),
    )


def pack(*documents, tokens=4, packing=True, count=10):
    return window(documents, window_tokens=tokens, packing=packing, num_windows=count, pad_id=PAD)


def test_by_hand():  # the third document goes back to the first window, which has room; none is cut
    made = pack(document(1, 2, 3), document(4, 5, 6), document(7, 8), tokens=5)
    assert made.input_ids_NL.tolist() == [[1, 2, 3, 7, 8], [4, 5, 6, PAD, PAD]]
    assert made.doc_lens == [[3, 2], [3]]
    # row t speaks of token t + 1: 2, 3, not 7 (another document), 8
    assert made.targets_NP.tolist() == [[True, True, False, True], [True, True, False, False]]
    assert made.token_bytes_NL.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert (made.num_tokens, made.num_targets, len(made)) == (8, 5, 2)


def test_without_packing_each_document_has_a_window():
    made = pack(document(1, 2), document(3, 4, 5), packing=False)
    assert made.input_ids_NL.tolist() == [[1, 2, PAD, PAD], [3, 4, 5, PAD]]
    assert made.doc_lens == [[2], [3]]
    assert made.targets_NP.tolist() == [[True, False, False], [True, True, False]]


@pytest.mark.parametrize("packing", [True, False])
def test_a_long_document_is_cut_and_no_target_crosses_the_cut(packing):
    made = pack(document(*range(10)), packing=packing)
    assert made.input_ids_NL.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, PAD, PAD]]
    assert made.doc_lens == [[4], [4], [2]]
    assert made.targets_NP.tolist() == [[True] * 3, [True] * 3, [True, False, False]]


def test_a_document_of_exactly_one_window():
    assert pack(document(1, 2, 3, 4)).doc_lens == [[4]]


def test_pieces_with_nothing_to_learn_take_no_place_and_are_counted():
    made = pack(document(1, 2, 3, 4, 5), document(6, 7, masked=(7,)), document(8), document(8, 9, masked=(8,)))
    # 5 alone, 6 7 without a target, and 8 alone are left out
    assert made.num_left_out == 3
    assert made.input_ids_NL.tolist() == [[1, 2, 3, 4], [8, 9, PAD, PAD]]


def test_masked_tokens_are_read_but_not_learned():
    made = pack(document(1, 2, 3, 4, masked=(2, 3)))
    assert made.targets_NP.tolist() == [[False, False, True]]


def test_no_document_gives_no_window():
    made = pack()
    assert made.input_ids_NL.shape == (0, 4)
    assert made.targets_NP.shape == (0, 3)
    assert (made.num_tokens, made.num_targets) == (0, 0)


def test_reading_stops_when_the_windows_are_full():
    read = []

    def endless():
        while True:
            read.append(1)
            yield document(1, 2, 3)

    made = window(endless(), window_tokens=4, packing=True, num_windows=3, pad_id=PAD)
    assert len(made) == 3
    assert len(read) == 4


def test_old_windows_are_closed(monkeypatch):
    monkeypatch.setattr(windows, "OPEN_WINDOWS", 1)
    assert pack(document(1, 2, 3), document(4, 5, 6), document(7, 8), tokens=5).doc_lens == [[3], [3, 2]]


def test_a_packer_that_is_full_takes_small_documents_only_into_the_room_that_is_left():
    packer = Packer(window_tokens=4, packing=True, num_windows=1, pad_id=PAD)
    for each in (document(1, 2), document(3, 4, 5), document(6, 7)):
        packer.add(each)
    assert packer.is_full
    assert packer.windows().doc_lens == [[2, 2]]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_for_any_documents(seed, packing):
    dice = random.Random(seed)
    tokens = dice.choice([8, 13, 64])
    texts, start = [], 0
    for _ in range(60):
        length = dice.randint(2, 3 * tokens)
        masked = {token for token in range(start, start + length) if dice.random() < 0.3}
        texts.append(document(*range(start, start + length), masked=masked))
        start += length
    made = pack(*texts, tokens=tokens, packing=packing, count=1000)
    may_learn = np.concatenate([each.is_target for each in texts])
    seen = []
    for row, lengths in enumerate(made.doc_lens):
        assert 0 < sum(lengths) <= tokens
        assert packing or len(lengths) == 1
        assert (made.input_ids_NL[row, sum(lengths) :] == PAD).all()
        assert not made.targets_NP[row, max(0, sum(lengths) - 1) :].any()
        at = 0
        for length in lengths:
            ids = made.input_ids_NL[row, at : at + length]
            assert (np.diff(ids) == 1).all(), "a piece is a run of one document, in order"
            expected = may_learn[ids[1:]]
            assert (made.targets_NP[row, at : at + length - 1] == expected).all()
            assert at == 0 or not made.targets_NP[row, at - 1], "the first token of a document is never learned"
            seen.extend(ids.tolist())
            at += length
    assert len(seen) == len(set(seen)), "no token twice"
    num_lost = sum(len(each) for each in texts) - len(seen)
    assert (num_lost > 0) == (made.num_left_out > 0), "what is not there was left out, and counted"
