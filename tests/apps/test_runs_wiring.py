"""The page on runs without a browser: what is shown for what is ticked, and what a press deletes."""

import importlib.util
import json
import os
import shutil
import sys
from types import SimpleNamespace

import psutil
import pytest
from made_runs import judged, made

from distill_core import paths
from distill_core.cache import list_caches
from distill_core.comparison import Deletion, cache_rows, run_rows
from distill_core.language import ENGLISH, in_language
from distill_core.room import POLICY_VARIABLE, Visitor
from distill_core.runs import list_runs, open_run


@pytest.fixture
def page():
    """A fresh copy of the notebook: an app keeps state between runs."""
    spec = importlib.util.spec_from_file_location("runs_app", paths.apps_dir() / "runs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ticked(*names, say=ENGLISH):
    rows = run_rows() + cache_rows()
    return {"rows": rows, "table": SimpleNamespace(value=[{say("name"): name} for name in names])}


def pressed(*, is_sure=True):
    sure = SimpleNamespace(value=is_sure)
    return {"delete_button": SimpleNamespace(value=True)}, sure


def text_of(outputs):
    return "\n".join(output.text for output in outputs if output is not None and hasattr(output, "text"))


def test_an_empty_disk_says_what_to_do_and_loads_no_torch(page):
    before = {name for name in ("torch", "transformers", "datasets") if name in sys.modules}
    outputs, defs = page.app.run()
    assert defs["all_rows"] == []
    assert "python -m distill_core demo" in text_of(outputs)
    assert "Nothing is running now" in text_of(outputs)
    assert {name for name in ("torch", "transformers", "datasets") if name in sys.modules} == before


def test_all_runs_and_caches_are_lines_and_filters_choose(page, small_cache):
    made("s", cache="small"), made("broken", state="failed")
    _, defs = page.app.run()
    assert [row["id"] for row in defs["rows"]] == ["broken", "s", "small"]
    only = {"kinds": SimpleNamespace(value=["train"]), "states": SimpleNamespace(value=["failed"]), "named": SimpleNamespace(value="")}
    _, defs = page.app.run(defs=only)
    assert [row["id"] for row in defs["rows"]] == ["broken"]
    _, defs = page.app.run(defs={name: SimpleNamespace(value=[]) for name in only} | {"named": SimpleNamespace(value=" MALL")})
    assert [row["id"] for row in defs["rows"]] == ["small"]


def test_what_is_ticked_is_laid_side_by_side(page):
    for seed in (0, 1, 2):
        student = made(f"s{seed}", seed=seed, bits=0.4 + seed / 100, kl=0.5)
        judged(student, made(f"t{seed}", seed=seed, hard=True, bits=0.6 + seed / 99, kl=0.9 + seed / 100))
    made("warm", loss__temperature=2.0, bits=0.5, kl=0.5)
    outputs, defs = page.app.run(defs=ticked("s0", "s1", "s2", "warm"))
    shown = text_of(outputs)
    assert [run.id for run in defs["chosen"]] == ["warm", "s2", "s1", "s0"]
    assert "BEATS its hard-label twin" in shown
    assert "UNKNOWN" in shown, "the warm run has no twin"
    assert "<code>loss.temperature</code>" in shown
    assert "said the student" in shown
    assert "teacher of mine" in shown


def test_in_portuguese(page):
    made("s", bits=0.4, kl=0.5)
    say = in_language("pt")
    opening = {"query": {"lang": "pt"}, "say": say, "address": "", "visitor": None, "kept": {"picked": []}}
    outputs, _ = page.app.run(defs=opening | ticked("s", say=say))
    assert "Que qualidade, que tamanho, que velocidade?" in text_of(outputs)
    assert "NÃO SE SABE" in text_of(outputs)


def test_delete_takes_what_is_ticked_but_nothing_active(page, small_cache):
    made("gone", cache="small")
    busy = made("busy", state="running")
    busy.update(pid=os.getpid(), process_start_s=psutil.Process().create_time())
    outputs, defs = page.app.run(defs=ticked("gone", "busy", "small"))
    assert "come back: gone, small" in text_of(outputs)
    assert "gone learned from it" in text_of(outputs)
    assert "Not deleted: run busy is running" in text_of(outputs)
    press, sure = pressed()
    page.app.run(defs=ticked() | press | {"chosen": [], "picked": [], "deletions": defs["deletions"], "is_sure": sure})
    assert [run.id for run in list_runs()] == ["busy"]
    assert list_caches() == []


def test_delete_without_the_tick_deletes_nothing(page):
    made("kept")
    _, defs = page.app.run(defs=ticked("kept"))
    press, unsure = pressed(is_sure=False)
    page.app.run(defs=ticked() | press | {"chosen": [], "picked": [], "deletions": defs["deletions"], "is_sure": unsure})
    assert [run.id for run in list_runs()] == ["kept"]


def test_a_run_that_another_visitor_deletes_leaves_the_page_standing(page, small_cache):
    """Deleted between the tick and the press, or between the listing and the reading: neither may raise."""
    made("mine", bits=0.4, kl=0.5), made("theirs", bits=0.5, kl=0.6)
    before = ticked("mine", "theirs", "small")
    _, defs = page.app.run(defs=before)
    shutil.rmtree(open_run("theirs").folder), shutil.rmtree(paths.caches_dir() / "small")
    outputs, after = page.app.run(defs=before)
    assert [run.id for run in after["chosen"]] == ["mine"]
    assert [what.name for what in after["deletions"]] == ["mine"], "what is gone is not offered"
    stale = {"chosen": defs["chosen"], "picked": defs["picked"], "deletions": defs["deletions"], "is_sure": SimpleNamespace(value=False)}
    outputs, _ = page.app.run(defs=before | stale)
    assert "What was set differently?" in text_of(outputs)
    words = page.delete_all(defs["deletions"], Visitor(is_presenter=True))
    assert "no run 'theirs'" in words
    assert "no cache 'small'" in words
    assert list_runs() == []


@pytest.fixture
def in_a_room(tmp_path, monkeypatch):
    (tmp_path / "policy.json").write_text(json.dumps({}))
    monkeypatch.setenv(POLICY_VARIABLE, str(tmp_path / "policy.json"))


@pytest.mark.parametrize(("name", "is_presenter", "left"), [("Ada", False, ["bobs"]), ("", False, ["bobs", "adas"]), ("Eve", True, [])])
def test_in_a_room_only_the_owner_and_the_presenter_delete(page, in_a_room, name, is_presenter, left):
    made("adas").update(owner="Ada"), made("bobs").update(owner="Bob")
    visitor = Visitor(name, is_presenter)
    opening = {"query": {}, "say": ENGLISH, "address": "", "visitor": visitor, "kept": {"picked": []}}
    outputs, defs = page.app.run(defs=opening | ticked("adas", "bobs"))
    assert ("Not deleted: run bobs belongs to Bob" in text_of(outputs)) == (not is_presenter)
    press, sure = pressed()
    page.app.run(defs=opening | ticked() | press | {"chosen": [], "picked": [], "deletions": defs["deletions"], "is_sure": sure})
    assert [run.id for run in list_runs()] == left
    unrefused = [Deletion(what.kind, what.name, what.num_bytes) for what in defs["deletions"]]
    words = page.delete_all(unrefused, visitor)  # a page that forgot to ask
    assert [run.id for run in list_runs()] == left
    assert ("belongs to Bob" in words) == (not is_presenter)
