"""Merging caches on disk: what comes out, what is refused, and what a kill leaves behind."""

import io
import json

import numpy as np
import polars as pl
import pytest
from made import K, L, V, columns, plan, truth

from distill_core import jobs
from distill_core.cache import CacheWriter, browse, open_cache, verify_records
from distill_core.cache.manifest import Teacher
from distill_core.cli import run_command_line
from distill_core.errors import CacheError, ConfigError
from distill_core.merging import Merge
from distill_core.paths import caches_dir
from distill_core.playground.belief import Place, believe
from distill_core.playground.mass import mass_table
from distill_core.runs import list_runs
from distill_core.worker import execute

TEACHER = Teacher(model="made", architecture="None", num_parameters=1, disk_bytes=4, dtype="float32")


def make(name, *, seed=0, text=0, num_windows=14, words=(), merges=(), **fields):
    """A cache of teacher `seed` on text `text`, with a tokenizer of one word per token; returns the truth."""
    known, other = truth(num_windows, seed=seed), truth(num_windows, seed=text)
    known.input_ids_NL[:] = other.input_ids_NL
    planned = plan(num_windows, **{"per_shard": 4, **fields})
    with CacheWriter(caches_dir() / name, planned) as writer:
        for shard in writer.missing():
            writer.write(shard, columns(known, shard))
        writer.finish(teacher=TEACHER.model_copy(update={"model": f"made-{seed}"}), config={}, text={}, versions={})
    tokens = {f"w{i}": i for i in range(V)} | dict(words)
    model = {"type": "BPE", "vocab": tokens, "merges": list(merges)}
    (caches_dir() / name / "tokenizer").mkdir()
    (caches_dir() / name / "tokenizer" / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return known


def merge(*caches, name="merged", **settings):
    run = jobs.new_merge(Merge(caches=caches, name=name, **settings))
    execute(run, screen=io.StringIO())
    return open_cache(name)


def shards_of(name):
    return {path.name: path.read_bytes() for path in sorted((caches_dir() / name / "shards").iterdir())}


def test_a_mixture_is_the_weighted_mean_of_the_dense_truths():
    first, second = make("a", seed=1), make("b", seed=2, codec="packed", per_shard=3)
    cache = merge("a", "b", weights=(3, 1))
    cache.verify()
    verify_records(cache)
    assert cache.plan.top_k == K
    assert cache.plan.codec == "exact"
    mean = 0.75 * np.exp(first.logprobs_NPV) + 0.25 * np.exp(second.logprobs_NPV)
    rows = cache.rows("train", list(range(10)))
    targets = rows["targets"]
    np.testing.assert_array_equal(rows["input_ids"], first.input_ids_NL[:10])
    exact = np.take_along_axis(mean[:10], rows["teacher_ids"], -1)[targets]
    stored = np.exp(rows["teacher_logprobs"][targets].astype(np.float64))
    tail = np.exp(rows["teacher_tail"][targets])
    assert (stored <= exact * 1.02 + 1e-6).all()
    np.testing.assert_allclose(stored.sum(-1) + tail, 1.0, atol=2e-3)
    lacking = (exact - stored).sum(-1)
    assert lacking.mean() < 0.03
    gold = np.log(np.take_along_axis(mean[:10], first.input_ids_NL[:10, 1:, None].astype(int), -1)[..., 0])
    np.testing.assert_allclose(rows["gold_logprob"][targets], gold[targets], atol=1e-5)
    least, most = cache.kept_mass_bracket(2.0)
    assert ((least <= cache.kept_mass(2.0) + 1e-5) & (cache.kept_mass(2.0) <= most + 1e-5)).all()
    assert "certainly between" in cache.mixture_words(2.0)
    assert cache.mixture_words(1.0) == ""


def test_a_mixture_says_what_it_is_and_can_be_browsed(capsys):
    make("a", seed=1), make("b", seed=2)
    assert run_command_line(["cache", "merge", "a", "b", "--weights", "0.7,0.3", "--name", "both", "--top-k", "5"]) == 0
    out = capsys.readouterr().out
    assert "teacher     0.7 x made-1 + 0.3 x made-2" in out
    assert "top 5 of 60" in out
    assert "note        mixture: on average at most" in out
    fields = open_cache("both").plan.fingerprint.fields
    assert fields["merge.0.cache"] == "a"
    assert fields["merge.1.sha256"] == open_cache("b").manifest.sha256()
    assert (fields["merge.0.weight"], fields["merge.1.weight"]) == ("0.7", "0.3")
    assert run_command_line(["cache", "verify", "both"]) == 0
    assert browse(open_cache("both"), "train", 0).height == L
    run = list_runs("merge")[0]
    assert run.status().result == {"cache": "both"}
    assert run.config().capture.name == "both"


def test_a_pick_takes_each_window_from_the_teacher_that_fits_it_best():
    first, second = make("a", seed=1), make("b", seed=2)
    cache = merge("a", "b", by="pick")
    rows = cache.rows("train", list(range(10)))
    sources = [open_cache(name).rows("train", list(range(10))) for name in ("a", "b")]
    fits = [np.where(source["targets"], source["gold_logprob"], 0).sum(1) for source in sources]
    best = np.argmax(fits, 0)
    assert 0 < best.sum() < 10
    for window, number in enumerate(best):
        for name in ("teacher_ids", "teacher_logprobs", "teacher_tail", "gold_logprob"):
            np.testing.assert_array_equal(rows[name][window], sources[number][name][window])
    fits_heldout = [
        sum(known.logprobs_NPV[i, t, known.input_ids_NL[i, t + 1]] for t in np.flatnonzero(known.targets_NP[i]))
        for known in (first, second)
        for i in range(10, 14)
    ]
    heldout = [fits_heldout[4 + i] > fits_heldout[i] for i in range(4)]
    note = cache.manifest.text["notes"][0]
    from_b = int(best.sum()) + sum(heldout)
    assert f"{14 - from_b} windows" in note
    assert f"{from_b} windows" in note


@pytest.mark.parametrize("codec", ["exact", "packed"])
def test_a_join_puts_both_texts_side_by_side_as_they_are(codec):
    make("a", seed=1, text=1, codec=codec), make("b", seed=2, text=2, num_windows=9, codec=codec)
    cache = merge("a", "b", by="join")
    assert (cache.num_windows("train"), cache.num_windows("heldout")) == (10 + 5, 4 + 4)
    for split, there in (("train", 10), ("heldout", 4)):
        for name, begin in (("a", 0), ("b", there)):
            source = open_cache(name)
            for window in range(source.num_windows(split)):
                mine, theirs = cache.rows(split, [begin + window]), source.rows(split, [window])
                for column in ("input_ids", "targets", "teacher_ids", "teacher_logprobs", "teacher_tail", "gold_logprob"):
                    np.testing.assert_array_equal(mine[column], theirs[column])
    ids = pl.concat([pl.read_parquet(cache.shard_path(entry)) for entry in cache.manifest.entries_of("train")])["window_id"]
    assert ids.to_list() == list(range(15))
    cache.verify()


@pytest.mark.parametrize("by", ["mixture", "pick", "join"])
def test_what_a_kill_leaves_is_gone_on_with_to_the_same_bytes(by):
    make("a", seed=1), make("b", seed=2)
    whole = merge("a", "b", by=by, name="whole")
    again = Merge(caches=("a", "b"), by=by, name="cut")
    calls = []
    write = CacheWriter.write

    def killed_at_the_third(self, *args, **named):
        calls.append(1)
        if len(calls) == 3:
            (self.folder / "shards" / "train-00002.parquet.1.partial").write_bytes(b"half")
            raise KeyboardInterrupt
        return write(self, *args, **named)

    run = jobs.new_merge(again)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheWriter, "write", killed_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            execute(run, screen=io.StringIO())
    with pytest.raises(CacheError, match="unfinished: 2 of.*Merge again: python -m distill_core cache merge a b --name cut"):
        open_cache("cut")
    stamps = {path.name: path.stat().st_mtime_ns for path in (caches_dir() / "cut" / "shards").glob("*.parquet")}
    execute(jobs.new_merge(again), screen=io.StringIO())
    assert shards_of("cut") == shards_of("whole")
    assert all((caches_dir() / "cut" / "shards" / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    assert open_cache("cut").plan == whole.plan


def test_a_damaged_shard_is_mended_by_the_same_command_and_says_so():
    make("a", seed=1), make("b", seed=2)
    cache = merge("a", "b")
    before = shards_of("merged")
    path = cache.shard_path(cache.manifest.entries[1])
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(CacheError, match="is damaged.*Merge again: python -m distill_core cache merge a b --name merged"):
        cache.verify()
    merge("a", "b")
    assert shards_of("merged") == before
    (caches_dir() / "merged" / "manifest.d" / "train-00000.json").unlink()
    with pytest.raises(CacheError, match="Merge again"):
        verify_records(open_cache("merged"))


def test_capture_resume_names_the_merge(capsys):
    make("a", seed=1), make("b", seed=2)
    merge("a", "b")
    assert run_command_line(["capture", "--resume", "merged"]) == 2
    assert "was not captured. Merge again: python -m distill_core cache merge a b --name merged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weights": (0.5,)}, "names 1 numbers for 2 caches"),
        ({"weights": (0.5, -0.5)}, "-0.5 is not above 0"),
        ({"weights": (0.5, float("nan"))}, "nan is not above 0"),
        ({"weights": (0.5, 0.5), "by": "pick"}, "merging by pick has none"),
        ({"top_k": 9}, "--top-k 9 must lie between 1 and 8"),
        ({"caches": ("a",)}, "two caches or more"),
        ({"caches": ("a", "a")}, "two caches or more"),
        ({"name": "a"}, "is one of the caches to merge"),
    ],
)
def test_wrong_settings_are_refused_before_there_is_a_run(settings, words):
    make("a", seed=1), make("b", seed=2)
    with pytest.raises(ConfigError, match=words):
        jobs.new_merge(Merge(**{"caches": ("a", "b"), "name": "merged"} | settings))
    assert list_runs() == []


@pytest.mark.parametrize(
    ("other", "by", "words"),
    [
        ({"words": {"x": 7, "w7": V + 1}}, "mixture", r"different tokenizers: .* tokens differ \(7: 'w7' and 'x'; "),
        ({"merges": ["a b"]}, "join", r"cut text differently \(merges\)"),
        ({"codec": "packed"}, "join", "differ in codec: exact and packed"),
        ({"codec": "packed"}, "pick", "differ in codec"),
    ],
)
def test_caches_that_do_not_fit_are_refused_by_name(other, by, words):
    make("a", seed=1), make("b", seed=2, **other)
    with pytest.raises(CacheError, match=words):
        jobs.new_merge(Merge(caches=("a", "b"), name="merged", by=by))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"text": 3}, "input_ids of train window 0 differ.*--by join"),
        ({"num_windows": 13}, "train holds 10 windows and 9 differ"),
    ],
)
def test_a_mixture_of_different_texts_is_refused_with_what_differs(other, words):
    make("a", seed=1), make("b", seed=2, **other)
    with pytest.raises(CacheError, match=words):
        merge("a", "b")
    assert not (caches_dir() / "merged").exists()


def test_a_mixture_is_not_merged_again():
    make("a", seed=1), make("b", seed=2), make("c", seed=3)
    merge("a", "b", name="ab")
    with pytest.raises(CacheError, match="cache ab is a mixture itself"):
        jobs.new_merge(Merge(caches=("ab", "c"), name="abc"))


def test_three_teachers_with_equal_weights():
    known = [make(name, seed=seed) for seed, name in enumerate("abc", 1)]
    cache = merge("a", "b", "c")
    mean = sum(np.exp(each.logprobs_NPV) for each in known) / 3
    rows = cache.rows("heldout", [0, 1])
    gold = np.log(np.take_along_axis(mean[10:12], known[0].input_ids_NL[10:12, 1:, None].astype(int), -1)[..., 0])
    np.testing.assert_allclose(rows["gold_logprob"][rows["targets"]], gold[rows["targets"]], atol=1e-5)


def test_a_cache_of_that_name_that_was_captured_is_not_touched(capsys):
    make("a", seed=1), make("b", seed=2), make("c", seed=3)
    (caches_dir() / "c" / "config.json").write_text("{}")
    before = shards_of("c")
    assert run_command_line(["cache", "merge", "a", "b", "--name", "c"]) == 2
    assert "is there already, begun by a capture" in capsys.readouterr().err
    assert shards_of("c") == before


def test_the_playground_shows_a_mixtures_bounds():
    make("a", seed=1), make("b", seed=2)
    cache = merge("a", "b")
    table = mass_table(cache, (1.0, 2.0))
    for temperature in (1.0, 2.0):
        for top_k in (3, K):
            low, high = table.bound(temperature, top_k)
            expected = [bound.mean() for bound in cache.kept_mass_bracket(temperature, top_k=top_k)]
            np.testing.assert_allclose((low, high), expected, rtol=1e-6)
    row = cache.stored("train", 0)
    names = ("teacher_ids", "teacher_logprobs", "tail_logsumexp", "tail_mean_logprob")
    ids, logprobs, tail, mean = (row[name][0] for name in names)
    place = Place(ids, logprobs.astype(np.float32), tail, mean, 0, -1.0, row["mixture_slack"][0], np.log(V))
    for temperature in (1.0, 2.0, 3.0):
        belief = believe(place, temperature=temperature, top_k=K)
        assert belief.rest_bound[0] - 1e-6 <= belief.rest <= belief.rest_bound[1] + 1e-6
        assert belief.entropy_bound[0] <= belief.entropy <= belief.entropy_bound[1] + 1e-6
