"""The panel's answers, without a browser."""

import os

import psutil
import pytest

from distill_core import metrics, panel
from distill_core.config import DistillConfig
from distill_core.runs import create_run


@pytest.fixture
def run():
    made = create_run("train", DistillConfig(), inputs={"cache": "c"})
    made.update(state="running", pid=os.getpid(), process_start_s=psutil.Process().create_time(), done=2, total=9, unit="steps")
    for step in (1, 2):
        metrics.append(made.metrics_path, {"step": step, "loss": 1.0, "tokens_per_s": 5.0})
    return made


def ask(run, cursors=None, **more):
    return panel.answer({"student": run}, {"kind": "pull", "viewer": 1, "gen": 1, "cursors": cursors or {}, **more})


def test_rows_come_once(run):
    first = ask(run)
    assert [row["step"] for row in first["rows"]] == [1, 2]
    assert {row["run"] for row in first["rows"]} == {"student"}
    assert first["replaced"] == ["student"]
    again = ask(run, first["cursors"])
    assert again["rows"] == again["replaced"] == []
    metrics.append(run.metrics_path, {"step": 3, "loss": 1.0})
    assert [row["step"] for row in ask(run, again["cursors"])["rows"]] == [3]


def test_progress_and_log(run):
    run.log_path.write_text("one\ntwo\n")
    track = ask(run)["tracks"][0]
    assert (track["state"], track["done"], track["total"], track["tokens_per_s"], track["active"]) == ("running", 2, 9, 5.0, True)
    assert track["log"] == []
    assert ask(run, log=True)["tracks"][0]["log"] == ["one", "two"]
    run.update(state="failed", error="broken")
    assert ask(run)["tracks"][0]["log"] == ["one", "two"]
    assert ask(run)["tracks"][0]["error"] == "broken"


@pytest.mark.parametrize("cursors", [{"student": [999, 0]}, {"student": [-5, 0]}, {"student": "x"}, {"student": []}, {"other": [1, 0]}])
def test_odd_cursors_are_survived(run, cursors):
    assert len(ask(run, cursors)["rows"]) in (0, 2)


def test_an_ended_run_leaves_no_row_behind(run, monkeypatch):
    """The status is read first: rows written between the two reads still come."""
    real = type(run).status

    def status_then_row(self):
        status = real(self)
        metrics.append(run.metrics_path, {"step": 3, "loss": 1.0})
        return status

    monkeypatch.setattr(type(run), "status", status_then_row)
    assert [row["step"] for row in ask(run)["rows"]] == [1, 2, 3]


def test_the_library_is_built_once_and_whole(distill_home):
    text = panel.vega_bundle()
    (path,) = (distill_home / "assets").iterdir()
    assert "distillVegaEmbed" in text
    path.write_text("changed")
    assert panel.vega_bundle() == "changed"


def test_the_kernel_is_told_of_changes_only(run):
    seen = []
    made = panel.LivePanel({"student": run}, panel.training_pictures(["student"]), on_change=seen.append)
    made._answer(made, {"kind": "pull", "viewer": 1, "gen": 1}, [])
    made._answer(made, {"kind": "nonsense"}, [])
    assert seen == []
    run.update(state="done")
    made._answer(made, {"kind": "pull", "viewer": 1, "gen": 2}, [])
    made._answer(made, {"kind": "pull", "viewer": 1, "gen": 3}, [])
    assert seen == [{"student": "done"}]


def test_every_picture_says_what_will_appear_and_how_to_read_it():
    for picture in panel.training_pictures(["a", "b"], eval_steps=5) + panel.capture_pictures("c"):
        assert picture["empty"].endswith(".")
        assert picture["reading"].endswith(".")
    assert "every 5 steps" in panel.training_pictures(["a"], eval_steps=5)[1]["empty"]
