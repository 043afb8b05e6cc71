"""The techniques page without a browser: every technique has its card, and what a click starts."""

import importlib.util
import json
import shutil
import sys
from types import SimpleNamespace

import pytest

from distill_core import chain, jobs, paths, practice, room, walk
from distill_core.chain import drive
from distill_core.config import DistillConfig
from distill_core.language import in_language
from distill_core.merging import read_merge
from distill_core.practice import cards, forms, gains, job
from distill_core.room.policy import write_policy
from distill_core.runs import create_run
from distill_core.techniques import TECHNIQUES


@pytest.fixture
def page():
    """A fresh copy of the notebook: an app keeps state between runs."""
    spec = importlib.util.spec_from_file_location("techniques_app", paths.apps_dir() / "techniques.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def started(monkeypatch, home):
    """Chains that would have been driven, instead of driving them."""
    calls = []
    monkeypatch.setattr(drive, "start_in_background", lambda made: calls.append(made))
    return calls


class Form(dict):
    """Stands in for a mo.ui.dictionary."""

    def __init__(self, **values):
        super().__init__({name: f"[{name}]" for name in values})
        self.value = values


def filled(kind, /, **changed):
    return Form(**{key: value for key, (_, value) in forms.FORMS[kind].controls().items()} | changed)


def pressed(*names):
    buttons = (*(f"{name}_button" for name in forms.FORMS), "stop_button", "resume_button")
    return {name: SimpleNamespace(value=name in names, text=f"<button>{name}</button>") for name in buttons} | {
        "tick": SimpleNamespace(value="", text="")
    }


def pressing(kind, /, **changed):
    """That form's button was pressed, with these values in it; the other forms are as they open."""
    made = {f"{name}_form": filled(name) for name in forms.FORMS} | {f"{kind}_form": filled(kind, **changed)}
    return pressed(f"{kind}_button") | made


def text_of(outputs):
    return "\n".join(output.text for output in outputs if output is not None and hasattr(output, "text"))


def test_opening_shows_every_technique_starts_nothing_and_loads_no_torch(page, started):
    before = {name for name in ("torch", "transformers", "datasets") if name in sys.modules}
    outputs, _ = page.app.run()
    text = text_of(outputs)
    for name, technique in TECHNIQUES.items():
        for words in (technique.title, technique.when, technique.costs, technique.command):
            assert cards.text(words) in text, name
    assert set(cards.PLACES) == set(TECHNIQUES)
    assert started == []
    assert {name for name in ("torch", "transformers", "datasets") if name in sys.modules} == before


def test_a_form_that_is_not_there_is_not_linked(page):
    text = cards.cards({}, {}, lambda step: None)
    assert 'href="#form-' not in text
    outputs, _ = page.app.run()
    for name in forms.FORMS:
        assert f'href="#form-{name}"' in text_of(outputs)
        assert f'id="form-{name}"' in text_of(outputs)


def test_the_chain_that_is_described_is_started_and_shown(page, started):
    _, defs = page.app.run(defs=pressing("chain", widths="64, 32", max_steps=30, name="steps"))
    assert [made.name for made in started] == ["steps"]
    config = started[0].settings
    assert (config.kind, config.with_direct) == ("progressive", True)
    assert [link.config().student.hidden_size for link in started[0].links()] == [64, 32, 32]
    assert [link.config().train.max_steps for link in started[0].links()] == [30, 30, 60]
    assert defs["get_job"]() == practice.Job(chain="steps")
    assert defs["get_notes"]() == {}


def test_rounds_of_one_student(page, started):
    page.app.run(defs=pressing("chain", kind="born_again", rounds=3, with_direct=False))
    assert (started[0].settings.num_links, started[0].settings.with_direct) == (4, False)
    assert started[0].name.startswith("chain-")


@pytest.mark.parametrize(("widths", "words"), [("broad", "whole numbers"), ("", "whole numbers"), ("64, 7", "hidden_size 7")])
def test_what_cannot_be_is_said_beside_the_button(page, started, widths, words):
    _, defs = page.app.run(defs=pressing("chain", widths=widths))
    assert words in defs["get_notes"]()["chain"]
    assert started == []


@pytest.fixture
def queued(monkeypatch, small_cache):
    """Runs that would have been worked on; there are two caches."""
    shutil.copytree(small_cache.folder, small_cache.folder.with_name("twin"))
    calls = []
    monkeypatch.setattr(jobs, "start", lambda run: calls.append(run))
    return calls


def test_texts_are_written_by_the_teacher_or_a_student(page, queued):
    student = create_run("train", DistillConfig(), name="own")
    student.model_folder.mkdir()
    student.update(state="done")
    assert "run:own" in forms.FORMS["write"].controls()["by"][0].choices.values()
    chosen = {"settings": "small", "by": "run:own", "num_texts": 7, "max_new_tokens": 32, "temperature": 0.7, "name": "mine"}
    _, defs = page.app.run(defs=pressing("write", **chosen))
    (run,) = queued
    write = run.config().write
    assert (run.status().kind, write.by, write.num_texts, write.max_new_tokens, write.name) == ("write", "run:own", 7, 32, "mine")
    assert run.config().text.window_tokens == 64, "the text is the cache's"
    assert defs["get_job"]() == practice.Job(run=run.id)


@pytest.mark.parametrize(("by", "weights"), [("mixture", (0.3, 0.7)), ("join", ())])
def test_two_caches_are_merged(page, queued, by, weights):
    controls = forms.FORMS["merge"].controls()
    assert (controls["one"][1], controls["other"][1]) == ("small", "twin"), "two different ones to begin with"
    page.app.run(defs=pressing("merge", by=by, share=0.3, name="both"))
    merge = read_merge(queued[0].inputs())
    assert (merge.caches, merge.by, merge.weights, merge.name) == (("small", "twin"), by, weights, "both")
    assert ("share" in forms.FORMS["merge"].fields({"by": by})) == (by == "mixture"), "only a mixture has shares"


def test_a_cache_is_translated(page, queued, monkeypatch):
    asked = []
    made = create_run("translate", DistillConfig())
    monkeypatch.setattr(jobs, "submit_translate", lambda *words, **named: asked.append((words, named)) or made)
    page.app.run(defs=pressing("translate", cache="twin", to=" /m ", min_coverage=0.25, name="t"))
    assert asked == [(("twin", "/m", "t"), {"min_coverage": 0.25, "owner": ""})]


@pytest.mark.parametrize(
    ("form", "changed", "words"),
    [
        ("merge", {"other": "small"}, "each once"),
        ("merge", {"one": "gone"}, "no cache 'gone'"),
        ("translate", {}, "name the model"),
        ("translate", {"to": "/no/such/folder"}, "/no/such/folder"),
        ("write", {"settings": "gone"}, "cache gone is gone"),
        ("write", {"name": "../x"}, "name"),
    ],
)
def test_what_a_form_cannot_start_is_said_beside_its_button(page, queued, form, changed, words):
    _, defs = page.app.run(defs=pressing(form, **changed))
    assert words in defs["get_notes"]()[form]
    assert queued == []


@pytest.mark.parametrize("form", ["merge", "translate"])
def test_without_a_cache_a_form_says_what_comes_first(page, started, form):
    changed = {"to": "builtin"} if form == "translate" else {}
    _, defs = page.app.run(defs=pressing(form, **changed))
    assert "there is no cache yet" in defs["get_notes"]()[form]


@pytest.mark.parametrize(
    ("result", "words", "asked"),
    [
        ({"cache": "both"}, "Cache both is there", {"cache": "both"}),
        ({"text": "mine", "num_texts": 7}, "7 texts are there: written:mine", {"settings": '{"text.source": "written:mine"}'}),
    ],
)
def test_what_a_finished_run_made_is_said_and_leads_into_the_walk(page, home, monkeypatch, result, words, asked):
    run = create_run("merge", DistillConfig())
    monkeypatch.setattr(practice, "job_from", lambda query: practice.Job(run=run.id))
    outputs, _ = page.app.run()
    assert words not in text_of(outputs), "not before it has ended"
    run.update(state="done", result=result)
    outputs, _ = page.app.run()
    assert words in text_of(outputs)
    assert job.for_walk(result) == asked
    assert 'href="/walk?x=1"' in cards.result(result, "/walk?x=1")
    opening = walk.opening_config(walk.Place(), asked)
    assert ("text" in result) == (opening.text.source == "written:mine")


@pytest.fixture
def opened_at(monkeypatch):
    """opened_at(name): the page's address names that chain."""
    return lambda name: monkeypatch.setattr(practice, "job_from", lambda query: practice.Job(chain=name))


def test_a_chain_is_shown_as_far_as_it_is_and_stopped_by_its_owner_only(page, started, monkeypatch, tmp_path, opened_at):
    write_policy(tmp_path / "room.json", room.Policy())
    monkeypatch.setenv(room.POLICY_VARIABLE, str(tmp_path / "room.json"))
    forms.start_chain(filled("chain", name="hers").value, owner="Ana")
    opened_at("hers")
    monkeypatch.setattr(chain.results, "is_driven", lambda made: True)
    monkeypatch.setattr(room, "visitor_of", lambda request: room.Visitor("Bob"))
    outputs, _ = page.app.run()
    assert "hers-1" in text_of(outputs)
    assert "Ana started it" in text_of(outputs)
    _, defs = page.app.run(defs=pressed("stop_button"))
    assert "belongs to Ana" in defs["get_notes"]()["job"]
    assert not (chain.open_chain("hers").folder / "stop").exists()
    monkeypatch.setattr(room, "visitor_of", lambda request: room.Visitor("Ana"))
    page.app.run(defs=pressed("stop_button"))
    assert (chain.open_chain("hers").folder / "stop").exists()


def test_an_address_that_names_no_chain_is_said(page, home, opened_at):
    opened_at("gone")
    outputs, _ = page.app.run()
    assert "no chain " in text_of(outputs)


ROW = {
    "technique": "positions",
    "figure": "held-out KL to the teacher, nats a token", "num_seeds": 3, "plain": 0.25, "with_technique": 0.2,
    "gain": 0.05, "gain_half_width": 0.01, "gains": [0.05] * 3, "more_disk_bytes": 0, "more_memory_gib": -0.5, "time_ratio": 0.75,
    "before_s": 61,
}  # fmt: skip


def test_gains_are_those_of_the_file_and_what_was_not_measured_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gains, "data_dir", lambda: tmp_path)
    assert practice.measured() == {}
    (tmp_path / "techniques.jsonl").write_text(json.dumps(ROW) + "\n")
    rows = practice.measured()
    assert "It helped: 0.2500 became 0.2000, a gain of 0.0500 ± 0.0100 over 3 seeds" in cards.gain_words(rows["positions"])
    assert cards.gain_words(rows.get("chains")) == "Not measured yet."
    text = cards.gains_table(rows)
    assert text.count("not measured") == len(TECHNIQUES) - 1
    for words in ("+0.0500 ± 0.0100", "-512 MiB", "× 0.75", "1 min 01 s"):
        assert words in text
    for gain, width, words in ((-0.05, 0.01, "did harm"), (0.05, 0.06, "No clear difference"), (0.05, None, "proves nothing")):
        assert words in cards.gain_words(ROW | {"gain": gain, "gain_half_width": width})
    assert "+0,0500 ± 0,0100" in cards.gains_table(rows, say=in_language("pt"))


def test_the_file_that_ships_names_techniques_only():
    assert set(practice.measured()) <= set(TECHNIQUES)


def test_in_portuguese(page, monkeypatch):
    monkeypatch.setattr(page.language, "language_of", lambda query: "pt")
    outputs, defs = page.app.run()
    assert defs["say"].code == "pt"
    for words in ("O que ganharam", "Começar a cadeia", "KL ao professor", "No percurso, passo"):
        assert words in text_of(outputs)
    for words in ("What they gained", "Not measured", "Use it when"):
        assert words not in text_of(outputs)
