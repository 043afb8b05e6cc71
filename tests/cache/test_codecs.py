"""Two ways to store entries, one to read them: ids exact, order kept, log-probabilities within what each promises."""
# n: windows   P: positions   K: entries

import numpy as np
import polars as pl
import pytest
from made import K, P, make

from distill_core.cache import open_cache
from distill_core.cache.codecs import COLUMNS_OF, EMPTY_ID, decode, encode, plane_count
from distill_core.cache.shards import to_numpy
from distill_core.errors import CacheError

CASES = [(1, 2), (8, 256), (100, 257), (100, 65_536), (100, 151_936), (256, 262_144), (257, 300_000), (3, 2**24 + 9)]


def entries(top_k, vocab_size, *, seed=0):
    """Entries of 3 windows x 5 positions with a skewed choice of ids, ties, and two positions that hold none."""
    dice = np.random.default_rng(seed)
    ids = np.empty((3, 5, top_k), np.uint32)
    for place in np.ndindex(3, 5):
        chosen = np.unique((vocab_size * dice.random(20 * top_k) ** 3).astype(np.uint32))
        ids[place] = dice.permutation(chosen)[:top_k] if len(chosen) >= top_k else dice.permutation(vocab_size)[:top_k]
    ids[0, 0, 0] = vocab_size - 1 if vocab_size - 1 not in ids[0, 0] else ids[0, 0, 0]
    logits = np.round(dice.normal(size=ids.shape) * 2, 1).astype(np.float32)
    logprobs = -np.sort(-(logits - np.log(1.2 * np.exp(logits).sum(-1, keepdims=True))), -1)
    targets = np.ones((3, 5), bool)
    targets[1, 2] = targets[2, 4] = False
    ids[~targets], logprobs[~targets] = EMPTY_ID, -np.inf
    return ids, logprobs, targets


def round_trip(codec, ids, logprobs, targets, vocab_size):
    columns = encode(codec, ids, logprobs, vocab_size=vocab_size)
    assert tuple(columns) == COLUMNS_OF[codec]
    arrays = {name: to_numpy(column) for name, column in columns.items()}
    return decode(codec, arrays, targets, top_k=ids.shape[-1], vocab_size=vocab_size)


@pytest.mark.parametrize("codec", COLUMNS_OF)
@pytest.mark.parametrize(("top_k", "vocab_size"), CASES)
def test_round_trip(codec, top_k, vocab_size):
    ids, logprobs, targets = entries(top_k, vocab_size)
    ids_back, logprobs_back = round_trip(codec, ids, logprobs, targets, vocab_size)
    logprobs_back = logprobs_back.astype(np.float32)
    assert (ids_back[..., 0] == ids[..., 0])[targets].all(), "the top-1 is entry 0, whatever ties with it"
    np.testing.assert_array_equal(np.sort(ids_back, -1), np.sort(ids, -1))
    assert (ids_back[~targets] == EMPTY_ID).all() and np.isneginf(logprobs_back[~targets]).all()
    assert (np.diff(logprobs_back[targets], axis=-1) <= 0).all(), "falling"
    by_id, back_by_id = np.argsort(ids, -1), np.argsort(ids_back, -1)
    stored = np.take_along_axis(logprobs_back, back_by_id, -1)[targets]
    true = np.take_along_axis(logprobs, by_id, -1)[targets]
    gap_range = (true.max(-1) - true.min(-1)).max()
    np.testing.assert_allclose(stored, true, atol=1e-2 if codec == "exact" else gap_range / 255 + 1e-2)


def test_packed_by_hand():
    """Ids 7, 300, 2 with gaps of 0, 0.6 and 5 nats: differences 2, 5, 293; steps 255, 0, and 51 for 51 x 306 / 130050 = 0.12 = 0.6 / 5."""
    ids = np.array([[[7, 300, 2]]], np.uint32)
    logprobs = np.array([[[-0.5, -1.1, -5.5]]], np.float32)
    columns = encode("packed", ids, logprobs, vocab_size=1000)
    assert list(columns["teacher_id_planes"][0]) == [2, 5, 293 % 256, 0, 0, 1]
    assert list(columns["teacher_gap_steps"][0]) == [255, 0, 51]
    assert list(columns["teacher_top1_slot"][0]) == [1]
    assert columns["teacher_gap_range"].to_list() == [[5.0]]
    assert columns["teacher_top1_logprob"][0][0] == pytest.approx(-0.5, abs=1e-6)


def test_packed_keeps_the_kept_mass():
    ids, logprobs, targets = entries(100, 151_936)
    _, back = round_trip("packed", ids, logprobs, targets, 151_936)
    np.testing.assert_allclose(np.exp(back).sum(-1), np.exp(logprobs).sum(-1), rtol=1e-5)


def test_storage_costs_less_than_2e_5_nats():
    """KL(true entries and tail || stored), mean, with a tail that is stored exactly: the top 100 of 20,000 tokens, kept mass 0.79."""
    ids, _, targets = entries(100, 151_936)
    logits = 2.2 * np.random.default_rng(1).normal(size=(3, 5, 20_000))
    logits[..., :6] += 10
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    logprobs = np.where(targets[..., None], -np.sort(-logits, -1)[..., :100], -np.inf).astype(np.float32)
    for codec, limit in (("exact", 1e-6), ("packed", 2e-5)):
        ids_back, back = round_trip(codec, ids, logprobs, targets, 151_936)
        p = np.take_along_axis(logprobs, np.argsort(ids, -1), -1)[targets].astype(np.float64)
        q = np.take_along_axis(back, np.argsort(ids_back, -1), -1)[targets].astype(np.float64)
        tail = 1 - np.exp(p).sum(-1)
        total = np.exp(q).sum(-1) + tail
        assert 0 <= ((np.exp(p) * (p - q)).sum(-1) + np.log(total)).mean() < limit


def test_planes():
    assert [plane_count(vocab) for vocab in (1, 2, 256, 257, 65_536, 65_537, 2**24, 2**24 + 1)] == [1, 1, 1, 2, 2, 3, 3, 4]


def test_a_top_token_of_probability_0_is_refused_by_packed():
    ids, logprobs, _ = entries(8, 256)
    logprobs[0, 0, -1] = -np.inf
    encode("exact", ids, logprobs, vocab_size=256)
    with pytest.raises(CacheError, match="probability 0, which codec 'packed' cannot hold.*--capture.codec exact"):
        encode("packed", ids, logprobs, vocab_size=256)


def test_one_reader_for_both():
    """The same cache written with both codecs reads the same but for rounding; K' below K cuts the same entries where none tie."""
    make("plain")
    make("packed", codec="packed")
    plain, packed = open_cache("plain"), open_cache("packed")
    for top_k in (None, 3, 1):
        ours, theirs = (
            packed.rows("train", [4, 19], temperature=1.7, top_k=top_k),
            plain.rows("train", [4, 19], temperature=1.7, top_k=top_k),
        )
        assert {name: (array.shape, array.dtype) for name, array in ours.items()} == {n: (a.shape, a.dtype) for n, a in theirs.items()}
        np.testing.assert_allclose(ours["teacher_logprobs"], theirs["teacher_logprobs"], atol=0.05)
        np.testing.assert_array_equal(ours["teacher_ids"][..., 0], theirs["teacher_ids"][..., 0])
        assert (ours["teacher_ids"] == theirs["teacher_ids"]).mean() > 0.97
    assert packed.kept_mass(1.0).mean() == pytest.approx(plain.kept_mass(1.0).mean(), abs=1e-4)
    frame = pl.scan_parquet(packed.folder / "shards" / "*.parquet").collect()
    assert len(frame["teacher_id_planes"][0]) == P * K, "one plane: the made vocabulary has 60 tokens"
