"""Reading: what was written comes back, in a seeded order, in constant memory, never in a forked process."""

import multiprocessing
import os
import threading

import numpy as np
import polars as pl
import pytest
from made import K, L, P, V, make

from distill_core.cache import list_caches, open_cache
from distill_core.cache import reader as reader_module
from distill_core.errors import CacheError, ConfigError


def test_round_trip():
    _, known = make()
    cache = open_cache("made")
    cache.verify()
    rows = cache.rows("train", [19, 0, 7])
    for row, window in enumerate((19, 0, 7)):
        np.testing.assert_array_equal(rows["input_ids"][row], known.input_ids_NL[window])
        np.testing.assert_array_equal(rows["targets"][row], known.targets_NP[window])
        valid = known.targets_NP[window]
        order = np.argsort(-known.logprobs_NPV[window], -1)[:, :K]
        np.testing.assert_array_equal(rows["teacher_ids"][row][valid], order[valid])
        stored = np.take_along_axis(known.logprobs_NPV[window], order, -1)
        np.testing.assert_allclose(rows["teacher_logprobs"][row][valid], stored[valid], rtol=1e-3)
        assert np.isneginf(rows["teacher_logprobs"][row][~valid]).all()
    assert rows["position_ids"][1].tolist() == list(range(12))
    assert rows["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2]
    assert cache.rows("heldout", [3])["window_id"].tolist() == [23]


def test_plain_polars_can_browse_it():
    make()
    frame = pl.scan_parquet(open_cache("made").folder / "shards" / "train-*.parquet").collect()
    assert frame.height == 20
    assert frame["teacher_ids"].dtype == pl.Array(pl.UInt32, (P, K))
    assert frame["teacher_logprobs"].dtype == pl.Array(pl.Float16, (P, K))


def test_fewer_entries_and_more_than_stored():
    make()
    cache = open_cache("made")
    whole, fewer = cache.rows("train", [0]), cache.rows("train", [0], top_k=3)
    np.testing.assert_array_equal(fewer["teacher_ids"], whole["teacher_ids"][..., :3])
    assert (fewer["teacher_tail"] >= whole["teacher_tail"]).all()
    with pytest.raises(CacheError, match="holds 8 entries per position, loss.top_k asks for 9"):
        cache.rows("train", [0], top_k=9)


@pytest.mark.parametrize("index", [-1, 20])
def test_windows_that_are_not_there(index):
    make()
    with pytest.raises(CacheError, match=f"no window {index} in split 'train', which has 20"):
        open_cache("made").rows("train", [index])


@pytest.mark.parametrize("budget", [1, 10**9])
def test_order_is_a_seeded_permutation(monkeypatch, budget):
    monkeypatch.setattr(reader_module, "MEMORY_BUDGET_BYTES", budget)
    make()
    first = open_cache("made").order("train", seed=1, epoch=0)
    assert sorted(first) == list(range(20))
    np.testing.assert_array_equal(first, open_cache("made").order("train", seed=1, epoch=0))
    assert (first != open_cache("made").order("train", seed=1, epoch=1)).any()
    assert (first != open_cache("made").order("train", seed=2, epoch=0)).any()


def test_memory_does_not_grow_with_the_cache(monkeypatch):
    """However many windows are read, no more row groups are held than the budget allows."""
    monkeypatch.setattr(reader_module, "rows_per_group", lambda window_tokens: 1)
    monkeypatch.setattr("distill_core.cache.shards.rows_per_group", lambda window_tokens: 1)
    monkeypatch.setattr(reader_module, "MEMORY_BUDGET_BYTES", 3 * L * (K * 6 + 76))
    make()
    cache = open_cache("made")
    for index in range(20):
        cache.rows("train", [index])
        assert len(cache._groups) <= 3


def test_kept_mass_of_the_sample():
    _, known = make()
    logprobs = known.logprobs_NPV[:20][known.targets_NP[:20]]
    top = np.sort(logprobs, -1)[:, -K:]
    for T in (0.5, 0.8, 1.0, 1.6, 2.0, 3.0, 8.0):
        true = np.exp(top / T).sum(-1) / np.exp(logprobs / T).sum(-1)
        np.testing.assert_allclose(open_cache("made").kept_mass(T), true, atol=2e-3)
        low, high = open_cache("made").kept_mass_bracket(T)
        assert ((low - 1e-3 <= true) & (true <= high + 1e-3)).all(), "the entries themselves are rounded to float16"


def test_a_temperature_nothing_is_stored_for_is_refused():
    make()
    for ask in (open_cache("made").kept_mass, open_cache("made").log_tail, open_cache("made").kept_mass_bracket):
        with pytest.raises(ConfigError, match=r"temperature 9 .*\[0.5, 8\]"):
            ask(9)
    with pytest.raises(ConfigError, match=r"\[0.5, 8\]"):
        open_cache("made").rows("train", [0], temperature=0.4)


def test_manifest_means():
    _, known = make()
    manifest = open_cache("made").manifest
    valid = known.targets_NP[:20]
    gold = np.take_along_axis(known.logprobs_NPV[:20], known.input_ids_NL[:20, 1:, None].astype(int), -1)[..., 0]
    assert manifest.num_positions("train") == valid.sum()
    assert manifest.mean("gold_logprob", "train") == pytest.approx(gold[valid].mean(), abs=1e-6)
    entropy = -(np.exp(known.logprobs_NPV[:20]) * known.logprobs_NPV[:20]).sum(-1)[valid].mean()
    assert manifest.mean("entropy", "train") == pytest.approx(entropy, rel=1e-3)
    assert manifest.plan.vocab_size == V


def _read_in_child(cache, answer):
    try:
        cache.rows("train", [0])
    except AssertionError as error:
        answer.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_is_refused_instead_of_hanging():
    make()
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_read_in_child, args=(open_cache("made"), answer))
    child.start()
    assert "forked" in answer.get(timeout=20)
    child.join()


def test_listing_passes_over_what_is_not_a_cache(distill_home):
    make()
    (distill_home / "caches" / "half").mkdir()
    (distill_home / "caches" / "note.txt").write_text("x")
    assert [cache.name for cache in list_caches()] == ["made"]


def test_unknown_and_unfinished():
    make(only=2, name="half")
    make()
    with pytest.raises(CacheError, match="no cache 'mode'.*Did you mean 'made'"):
        open_cache("mode")
    with pytest.raises(CacheError, match="half is unfinished: 2 of 5 shards"):
        open_cache("half")


@pytest.fixture
def small_groups(monkeypatch):
    """Row groups of one window, and how often each was read."""
    monkeypatch.setattr(reader_module, "rows_per_group", lambda window_tokens: 1)
    monkeypatch.setattr("distill_core.cache.shards.rows_per_group", lambda window_tokens: 1)
    reads = []
    read_rows = reader_module.read_rows

    def counted(path, first, count, columns):
        reads.append((path.stem, first, threading.current_thread().name))
        return read_rows(path, first, count, columns)

    monkeypatch.setattr(reader_module, "read_rows", counted)
    return reads


def test_reading_ahead_happens_in_a_thread_and_once(small_groups):
    make()
    cache = open_cache("made")
    order = cache.order("train", seed=0, epoch=0)
    plain = open_cache("made").rows("train", order)
    small_groups.clear()
    parts = []
    for place, window in enumerate(order):
        cache.ahead("train", order[place + 1 : place + 4])
        parts.append(cache.rows("train", [window]))
    for name, array in plain.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
    assert len(small_groups) == len({(shard, first) for shard, first, _ in small_groups}) == 20, "each row group once"
    assert sum(thread.startswith("cache-made") for _, _, thread in small_groups) == 19, "all but the first by the thread"


def test_what_goes_wrong_ahead_is_raised_where_it_is_read_and_not_remembered(small_groups, monkeypatch):
    make()
    cache = open_cache("made")
    with monkeypatch.context() as patch:
        patch.setattr(reader_module, "read_rows", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
        cache.ahead("train", [3])
        with pytest.raises(OSError, match="the disk is gone"):
            cache.rows("train", [3])
    assert cache.rows("train", [3])["window_id"].tolist() == [3]


def test_reading_ahead_keeps_to_the_memory_budget(small_groups, monkeypatch):
    monkeypatch.setattr(reader_module, "MEMORY_BUDGET_BYTES", 8 * L * (K * 6 + 76))
    make()
    cache = open_cache("made")
    for index in range(20):
        cache.ahead("train", list(range(index + 1, 20)))
        cache.rows("train", [index])
        assert len(cache._groups) <= 8
    assert len(small_groups) == 20, "nothing that was read ahead had to leave before it was used"
