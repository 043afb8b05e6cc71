"""The walk without a browser: what a click starts, and that the page holds together for any choice of its controls."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from distill_core import jobs, language, paths, push, room, walk
from distill_core.cache import open_cache
from distill_core.cli import run_command_line
from distill_core.config import DistillConfig
from distill_core.room.policy import write_policy
from distill_core.runs import create_run
from distill_core.techniques import TECHNIQUES
from distill_core.walk import options, take_home
from distill_core.walk.controls import control_values

BUTTONS = (
    "capture_button",
    "train_button",
    "judge_button",
    "export_button",
    "push_button",
    "remedy_button",
    "stop_button",
    "stop_capture_button",
    "resume_button",
    "restart_button",
)


@pytest.fixture
def distill():
    """A fresh copy of the notebook: an app keeps state between runs."""
    spec = importlib.util.spec_from_file_location("distill_app", paths.apps_dir() / "distill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def started(monkeypatch):
    """Jobs that would have been started, instead of starting them."""
    calls = []
    monkeypatch.setattr(jobs, "start", lambda run: calls.append(run))
    return calls


class Form(dict):
    """Stands in for a mo.ui.dictionary: values, and something to show for each."""

    def __init__(self, **values):
        super().__init__({name: f"[{name}]" for name in values})
        self.value = values


def forms(**sections):
    """Every form with its default values, those of `sections` changed."""
    values = control_values(DistillConfig()) | {"peek": {"is_open": False, "split": "train", "window": 0}}
    values["train"]["twin"] = True
    return {name: Form(**shown | sections.get(name, {})) for name, shown in values.items()}


def pressed(*names):
    """These buttons were pressed, the others were not."""
    buttons = {name: SimpleNamespace(value=name in names, text=f"<button>{name}</button>") for name in BUTTONS}
    return buttons | {"cache_choice": SimpleNamespace(value=None), "push_to": SimpleNamespace(value="owner/name")}


def at(monkeypatch, place: walk.Place):
    """The page's address carries this place."""
    monkeypatch.setattr(walk, "place_from", lambda query: place)


def test_opening_the_page_starts_nothing_and_loads_no_torch(distill, started):
    before = {name for name in ("torch", "transformers", "datasets") if name in sys.modules}
    _, defs = distill.app.run()
    assert started == []
    assert defs["states"]["cache"] == "next"
    assert defs["config"] == DistillConfig(), "the controls' defaults are the config's defaults"
    assert {name for name in ("torch", "transformers", "datasets") if name in sys.modules} == before


def test_capture_starts_one_capture_of_the_config_that_is_shown(distill, started):
    _, defs = distill.app.run(defs=pressed("capture_button") | forms(text={"num_windows": 100}))
    assert [run.status().kind for run in started] == ["capture"]
    assert started[0].config() == defs["config"]
    assert started[0].config().text.num_windows == 100


def test_train_starts_the_student_and_its_twin_on_the_cache(distill, started, small_cache, monkeypatch):
    at(monkeypatch, walk.Place(cache="small"))
    distill.app.run(defs=pressed("train_button"))
    student, twin = started
    assert student.inputs() == twin.inputs() == {"cache": "small"}
    assert (student.config().loss.kl_weight, student.config().loss.ce_weight) == (1, 0)
    assert (twin.config().loss.kl_weight, twin.config().loss.ce_weight) == (0, 1)
    assert student.config().train == twin.config().train
    assert student.config().text == DistillConfig(**open_cache("small").manifest.config).text, "the text is the cache's"


@pytest.mark.parametrize(("window", "words"), [(3, "what the teacher expected here"), (24, "no window 24 in split")])
def test_the_cache_can_be_looked_into(distill, small_cache, monkeypatch, window, words):
    at(monkeypatch, walk.Place(cache="small"))
    outputs, _ = distill.app.run(defs=forms(peek={"is_open": True, "window": window}))
    shown = [output.text for output in outputs if output is not None and hasattr(output, "text")]
    assert any(words in text for text in shown)


def test_out_of_memory_has_a_button_that_trains_the_first_way_out(distill, started, small_cache, monkeypatch):
    config = DistillConfig().changed(train=DistillConfig().train.changed(name="mine"))
    run = create_run("train", config, inputs={"cache": "small"}, name="mine")
    ways = [{"train": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}}, {"loss": {"chunk_tokens": 64}}]
    run.update(state="failed", error="out of memory", result={"remedies": ["…"], "remedy_settings": ways})
    at(monkeypatch, walk.Place(run=run.id))
    outputs, _ = distill.app.run()
    assert "Train again with the first way out" in shown(outputs)
    distill.app.run(defs=pressed("remedy_button"))
    student, twin = (run.config().train for run in started)
    assert (student.per_device_train_batch_size, student.gradient_accumulation_steps, student.name) == (4, 2, None)
    assert twin == student
    run.update(error="something else", result={})
    outputs, _ = distill.app.run()
    assert "first way out" not in shown(outputs)


def test_train_without_twin(distill, started, small_cache, monkeypatch):
    at(monkeypatch, walk.Place(cache="small"))
    distill.app.run(defs=pressed("train_button") | forms(train={"twin": False}))
    assert len(started) == 1


def test_judge_names_the_twin(distill, started, small_cache, monkeypatch):
    student, twin = (create_run("train", DistillConfig(), inputs={"cache": "small"}) for _ in range(2))
    for run in (student, twin):
        run.model_folder.mkdir()
        run.update(state="done")
    at(monkeypatch, walk.Place(cache="small", run=student.id, baseline=twin.id))
    _, defs = distill.app.run(defs=pressed("judge_button"))
    assert started[-1].inputs() == {"run": student.id, "baseline": twin.id}
    assert defs["states"]["judge"] == "next"


def test_stop_asks_the_active_runs_only(distill, small_cache, monkeypatch):
    running, ended = (create_run("train", DistillConfig(), inputs={"cache": "small"}) for _ in range(2))
    ended.update(state="done")
    at(monkeypatch, walk.Place(cache="small", run=running.id, baseline=ended.id))
    distill.app.run(defs=pressed("stop_button"))
    assert running.stop_requested()
    assert not ended.stop_requested()


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("teacher", {"kind": "local", "model": "/no/such/folder"}, "no such folder"),
        ("teacher", {"kind": "hub", "model": ""}, "Name"),
        ("text", {"kind": "local", "source": "/no/such/file.txt"}, "no such file"),
        ("student", {"init": "pretrained", "model": ""}, "Name the smaller model"),
        ("student", {"init": "prune_layers", "num_layers": 99}, "99"),
        ("train", {"max_steps": None}, "max_steps"),
    ],
)
def test_a_bad_choice_is_explained_in_words_and_the_page_stands(distill, started, section, values, words):
    _, defs = distill.app.run(defs=forms(**{section: values}))
    problems = [str(defs[name]) for name in ("problem", "student_problem", "token_problem", "teacher_problem")]
    assert any(words in problem for problem in problems), problems
    assert started == []


def test_a_student_without_a_name_is_said_once_and_capture_stays(distill, started):
    choice = forms(student={"init": "pretrained", "model": " "})
    outputs, defs = distill.app.run(defs=choice)
    text = shown(outputs)
    assert text.count("Name the smaller model") == 1
    assert "student.model" not in text
    assert 'href="#step-student">This student cannot be made' in text
    assert (defs["standing"]["student"], defs["standing"]["plan"], defs["standing"]["cache"]) == ("wrong", "held", "next")
    distill.app.run(defs=choice | pressed("capture_button"))
    assert [run.status().kind for run in started] == ["capture"]


def test_an_unfit_student_is_what_the_bar_names_not_the_button(distill, small_cache, monkeypatch):
    at(monkeypatch, walk.Place(cache="small"))
    outputs, defs = distill.app.run(defs=forms(student={"init": "prune_layers", "num_layers": 99}))
    assert 'href="#step-student">This student cannot be made' in shown(outputs)
    assert (defs["standing"]["student"], defs["standing"]["plan"], defs["standing"]["train"]) == ("wrong", "held", "held")


def test_a_teacher_that_is_not_found_is_where_the_bar_points(distill):
    outputs, defs = distill.app.run(defs=forms(teacher={"kind": "local", "model": "/no/such/folder"}))
    assert defs["standing"]["teacher"] == "wrong"
    assert 'href="#step-teacher">The teacher cannot be used' in shown(outputs)


@pytest.mark.parametrize(("checkpoint", "words"), [(True, "Go on from the last checkpoint"), (False, "Start it again")])
def test_going_on_names_a_checkpoint_only_where_there_is_one(distill, small_cache, monkeypatch, checkpoint, words):
    run = create_run("train", DistillConfig(), inputs={"cache": "small"})
    run.update(state="failed", error="no")
    (run.checkpoints_folder / "checkpoint-5").mkdir(parents=True)
    if checkpoint:
        (run.checkpoints_folder / "checkpoint-5" / "trainer_state.json").write_text('{"global_step": 5}')
    at(monkeypatch, walk.Place(run=run.id))
    outputs, _ = distill.app.run()
    assert words in shown(outputs)
    assert ("the last checkpoint" in shown(outputs)) == checkpoint


def shown(outputs):
    return "\n".join(output.text for output in outputs if output is not None and hasattr(output, "text"))


def test_the_pages_config_is_what_the_command_line_runs_with(distill, started, small_cache, monkeypatch, tmp_path):
    at(monkeypatch, walk.Place(cache="small"))
    changed = {
        "loss": {"temperature": 2, "divergence": "jsd", "jsd_weight": 0.25, "z_loss_weight": 1e-4},
        "train": {"max_steps": 40, "seed": 3},
    }
    _, defs = distill.app.run(defs=pressed("train_button") | forms(**changed))
    file = tmp_path / "config.json"
    file.write_text(defs["shown_config"].to_json())  # what the page's download holds
    assert run_command_line(["train", "--config", str(file), "--cache", "small", "--twin", "--background"]) == 0
    student, twin, again, twin_again = started
    assert student.config() == again.config() == defs["shown_config"]
    assert twin.config() == twin_again.config()
    assert (again.config().loss.jsd_weight, again.config().loss.z_loss_weight, again.config().train.max_steps) == (0.25, 1e-4, 40)


def test_the_language_switch_takes_changed_settings_along(distill):
    outputs, _ = distill.app.run()
    assert "settings=" not in shown(outputs), "nothing was changed"
    outputs, _ = distill.app.run(defs=forms(loss={"temperature": 2.0}))
    assert 'href="?settings=%7B%22loss.temperature%22%3A2.0%7D&amp;lang=pt"' in shown(outputs)


def test_in_portuguese(distill, monkeypatch):
    monkeypatch.setattr(language, "language_of", lambda query: "pt")
    outputs, defs = distill.app.run()
    assert defs["say"].code == "pt"
    text = shown(outputs)
    for words in ("Ensine a um modelo pequeno", "Uma aula de 45 minutos", "Prima Capturar", "Precisa de", 'lang="pt"'):
        assert words in text
    for words in ("Press Capture", "unlocks later", "More settings", "A lesson of", "Windows to train on"):
        assert words not in text


def test_a_control_that_switches_a_technique_on_says_when_to_use_it(distill, small_cache, monkeypatch):
    at(monkeypatch, walk.Place(cache="small"))
    said = TECHNIQUES["images"].when
    before, _ = distill.app.run()
    assert said not in shown(before), "no control of the page, no words"
    for name in ("jsd_weight", "top_k"):
        monkeypatch.setitem(options.FORMS["loss"], name, replace(options.FORMS["loss"][name], technique="images"))
    outputs, _ = distill.app.run()
    assert shown(outputs).count(said) == 1, "one technique of two controls is said once"
    assert TECHNIQUES["images"].costs in shown(outputs)


def test_every_technique_that_a_control_names_is_one():
    keys = {control.technique for controls in options.FORMS.values() for control in controls.values()}
    assert keys - {""} <= set(TECHNIQUES)


def test_a_finished_cache_is_said_to_be_there_and_draws_no_empty_chart(distill, small_cache, monkeypatch):
    run = create_run("capture", DistillConfig())
    run.update(state="done", result={"cache": "small"})
    at(monkeypatch, walk.Place(capture=run.id, cache="small"))
    outputs, defs = distill.app.run()
    assert "This cache was on disk already" in shown(outputs)
    assert defs["get_capture"]() is None


@pytest.fixture
def in_a_room(tmp_path, monkeypatch):
    """A room; visitor(name) makes the page that visitor's."""
    write_policy(tmp_path / "room.json", room.Policy())
    monkeypatch.setenv(room.POLICY_VARIABLE, str(tmp_path / "room.json"))
    return lambda name, **rights: monkeypatch.setattr(room, "visitor_of", lambda request: room.Visitor(name, **rights))


def test_in_a_room_work_is_its_visitors_and_others_do_not_stop_it(distill, started, small_cache, monkeypatch, in_a_room):
    in_a_room("Ana")
    at(monkeypatch, walk.Place(cache="small"))
    distill.app.run(defs=pressed("train_button"))
    assert {run.status().owner for run in started} == {"Ana"}
    at(monkeypatch, walk.Place(cache="small", run=started[0].id))
    in_a_room("Bob")
    outputs, _ = distill.app.run()
    assert "Ana started it: only Ana and the presenter can stop it" in shown(outputs)
    assert "Stop, keep" not in shown(outputs)
    _, defs = distill.app.run(defs=pressed("stop_button"))
    assert "belongs to Ana" in defs["get_notes"]()["train"]
    assert not started[0].stop_requested()
    in_a_room("Eva", is_presenter=True)
    distill.app.run(defs=pressed("stop_button"))
    assert started[0].stop_requested()


@pytest.mark.parametrize(("is_presenter", "sent"), [(True, 1), (False, 0)])
def test_only_the_presenter_sends_to_the_hub(distill, small_cache, monkeypatch, in_a_room, is_presenter, sent):
    run = create_run("train", DistillConfig(), inputs={"cache": "small"})
    run.model_folder.mkdir()
    run.update(state="done")
    run.evaluation_path.write_text('{"rows": [], "verdict": "", "prompts": [], "notes": []}')
    walk.export_folder(run.id).mkdir(parents=True)
    at(monkeypatch, walk.Place(run=run.id))
    in_a_room("Eva", is_presenter=is_presenter)
    calls = []
    monkeypatch.setattr(push, "refusal", lambda: "")
    monkeypatch.setattr(take_home, "pushing", lambda *args: iter(calls.append(args) or [0.1]))
    _, defs = distill.app.run(defs=pressed("push_button"))
    assert len(calls) == sent
    assert ("pushed" in defs["get_notes"]()) == is_presenter
    if sent:
        assert calls == [(walk.export_folder(run.id), "owner/name")]
