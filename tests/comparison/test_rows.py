"""Rows of runs and caches, their figures, and what deleting one would do."""

import os

import psutil
import pytest
from made_runs import judged, made

from distill_core import comparison
from distill_core.comparison.there import of_each
from distill_core.errors import CacheError, RunError
from distill_core.paths import caches_dir
from distill_core.runs import Run, create_run, delete_run, list_runs, open_run


def line(rows, name):
    return next(row for row in rows if row["id"] == name)


def test_empty_home():
    assert comparison.run_rows() == comparison.cache_rows() == comparison.quality_rows([]) == []
    assert comparison.sample_rows([]) == ([], [])


def test_a_line_says_what_tells_runs_apart():
    run = made("mine", seed=4, bits=0.4, kl=0.5, loss__temperature=2.0, loss__top_k=7, loss__divergence="jsd", train__max_steps=9)
    created = run.status().created_s
    row = line(comparison.run_rows(now_s=created + 60), "mine")
    told = {"kind": "train", "state": "done", "teacher": "builtin", "text": "builtin", "cache": "mine", "temperature": 2.0, "top_k": 7}
    told |= {"divergence": "jsd", "max_steps": 9, "seed": 4, "bits_per_byte": 0.4, "kl_to_teacher": 0.5, "age_s": 60.0, "owner": ""}
    assert {name: row[name] for name in told} == told
    assert row["disk_bytes"] == sum(path.stat().st_size for path in run.folder.iterdir())
    assert row["num_parameters"] is None, "neither judged nor with weights"


def test_a_judged_run_shows_size_and_its_twin_is_judged_with_it():
    student, twin = made("s", bits=9.0, kl=9.0), made("t", hard=True)
    judged(student, twin)
    rows = {row["run"]: row for row in comparison.quality_rows([twin, student])}
    assert list(rows) == [None, "s", "t"], "the teacher first, then the closest to it"
    assert (rows["s"]["bits_per_byte"], rows["t"]["kl_to_teacher"], rows["t"]["num_parameters"]) == (0.4, 0.7, 1000)
    assert rows["s"]["measured"] == "judged", "judging overrules the looks while training"
    prompts, samples = comparison.sample_rows([student, twin])
    assert prompts == ["Once"]
    assert [(row["who"], row["samples"]) for row in samples] == [
        ("teacher", ["said the teacher"]),
        ("s", ["said the student"]),
        ("t", ["said the twin"]),
    ]


def test_a_run_that_was_not_judged_shows_its_best_look():
    (row,) = comparison.quality_rows([made("s", bits=0.4, kl=0.5), made("none")])
    assert (row["run"], row["measured"], row["bits_per_byte"], row["tokens_per_s"]) == ("s", "while training", 0.4, None)


def test_an_unreadable_config_keeps_its_line():
    run = made("broken")
    (run.folder / "config.json").write_text("{")
    row = line(comparison.run_rows(), "broken")
    assert (row["state"], row["temperature"], row["teacher"]) == ("done", None, None)


def test_caches_complete_unfinished_and_damaged(small_cache):
    half = caches_dir() / "half"
    half.mkdir()
    (half / "plan.json").write_text("{}")
    bad = caches_dir() / "bad"
    bad.mkdir()
    (bad / "manifest.json").write_text("{}")
    (caches_dir() / "no-cache").mkdir()
    made("s", cache="small")
    rows = comparison.cache_rows()
    assert {row["id"]: row["state"] for row in rows} == {"small": "complete", "half": "unfinished", "bad": "damaged"}
    small = line(rows, "small")
    assert (small["teacher"], small["top_k"], small["num_windows"], small["num_students"]) == ("builtin", 20, 24, 1)
    assert small["disk_bytes"] > small_cache.manifest.num_bytes


def test_deleting_a_cache_names_who_learned_from_it_and_gives_back_what_was_said(small_cache):
    made("s", cache="small"), made("other", cache="else")
    what = comparison.deletion_of("cache", "small")
    assert (what.dependents, what.refused) == (("s",), "")
    assert comparison.delete(what) == pytest.approx(what.num_bytes, abs=10)
    assert comparison.cache_rows() == []
    with pytest.raises(CacheError, match="no cache 'small'"):
        comparison.deletion_of("cache", "small")


def at_work(run):
    run.update(state="running", pid=os.getpid(), process_start_s=psutil.Process().create_time())


def test_what_is_active_is_refused_and_so_is_the_cache_it_reads(small_cache):
    run = made("s", cache="small", state="queued")
    what = comparison.deletion_of("run", "s")
    at_work(run)
    assert "stop it first" in comparison.deletion_of("run", "s").refused
    assert "in use by s" in comparison.deletion_of("cache", "small").refused
    with pytest.raises(RunError, match="run s is running: stop it first"):
        comparison.delete(what)
    assert open_run("s").folder.is_dir()
    run.update(state="done")
    assert comparison.delete(comparison.deletion_of("run", "s")) > 0
    with pytest.raises(RunError, match="no run 's'"):
        comparison.deletion_of("run", "s")


def test_a_judging_of_the_run_is_named_before_it_goes():
    student = made("s")
    judging = create_run("evaluate", student.config(), inputs={"run": "s"})
    judging.update(state="done")
    assert comparison.deletion_of("run", "s").dependents == (judging.id,)


def test_a_run_that_vanishes_between_listing_and_reading_is_passed_over_and_a_broken_one_is_not():
    made("kept", cache="c"), made("gone")
    listed = list_runs()
    delete_run("gone")
    assert of_each(listed, Run.inputs) == [(open_run("kept"), {"cache": "c"})]
    (open_run("kept").folder / "inputs.json").unlink()
    with pytest.raises(FileNotFoundError):
        of_each(listed, Run.inputs)
