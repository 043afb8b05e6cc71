"""The panel's answers, without a browser."""

import os

import psutil
import pytest

from distill_core import metrics, panel, pictures
from distill_core.config import DistillConfig
from distill_core.language import in_language
from distill_core.runs import Run, create_run


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
    assert ask(run)["tracks"][0]["reason"] == "broken"


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
    text = pictures.vega_bundle()
    (path,) = (distill_home / "assets").iterdir()
    assert "distillVegaEmbed" in text
    path.write_text("changed")
    assert pictures.vega_bundle() == "changed"


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


def test_thirty_viewers_cost_one_look(run, monkeypatch):
    """However many ask: one read of the status, one parse of the metrics file, until one of them changes."""
    looks, reads = [], []
    status, read_new = Run.status, metrics.Follower.read_new
    monkeypatch.setattr(Run, "status", lambda self: looks.append(self.id) or status(self))
    monkeypatch.setattr(metrics.Follower, "read_new", lambda self, *limit: reads.append(rows := read_new(self, *limit)) or rows)
    monkeypatch.setattr(panel, "FRESH_S", 1e9)
    for _ in range(30):
        assert len(ask(run)["rows"]) == 2
    assert looks == [run.id]
    assert sum(len(rows) for rows in reads) == 2, "each row is parsed once"
    run.update(done=3)
    assert [ask(run)["tracks"][0]["done"] for _ in range(3)] == [3, 3, 3]
    assert looks == [run.id, run.id]
    monkeypatch.setattr(panel, "FRESH_S", 0.0)
    ask(run)
    assert len(looks) == 3, "a process that died is looked for again, though no file changed"


def test_place_in_the_queue(run, monkeypatch):
    run.update(time_left_s=90.0)
    second, third = (create_run("train", DistillConfig(), inputs={"cache": "c"}) for _ in range(2))
    for number, other in enumerate((second, third), start=1):
        other.update(created_s=run.stored_status().created_s + number)
    tracks = panel.answer({"a": second, "b": third}, {"kind": "pull"})["tracks"]
    assert [(track["ahead"], track["wait_s"]) for track in tracks] == [(1, 90.0), (2, None)], "nothing to go by for the second"
    assert ask(run)["tracks"][0]["ahead"] is None


def test_a_failure_says_why_and_what_would_help(run):
    run.log_path.write_text("Traceback\nMemoryError\n")
    run.update(state="failed", error="out of memory\nLast lines:\nMemoryError", result={"remedies": ["train.bf16 true: 2 GiB"]})
    (track,) = ask(run)["tracks"]
    assert track["reason"] == "out of memory"
    assert track["remedies"] == ["train.bf16 true: 2 GiB"]
    assert track["log"] == ["Traceback", "MemoryError"]


def test_a_long_history_comes_thinned_and_then_row_by_row(run):
    with open(run.metrics_path, "a") as file:
        file.writelines(f'{{"step": {step}, "loss": {9.0 if step == 4321 else 1.0}}}\n' for step in range(3, 10_001))
    first = ask(run)
    assert len(first["rows"]) < 1000
    assert max(row["loss"] for row in first["rows"]) == 9.0
    assert first["rows"][-1]["step"] == 10_000
    metrics.append(run.metrics_path, {"step": 10_001, "loss": 1.0})
    again = ask(run, first["cursors"])
    assert ([row["step"] for row in again["rows"]], again["replaced"]) == ([10_001], [])


def test_portuguese(run):
    """Words of the browser's half, titles and captions; what is filled in there keeps its places."""
    say = in_language("pt")
    words, english = panel.panel_words(say), panel.panel_words(in_language("en"))
    assert words["states"]["queued"] == "em espera"
    assert "{done}" in words["of"] and "{total}" in words["of"]
    same = [key for key in english if key != "of" and isinstance(english[key], str) and words[key] == english[key]]
    assert same == [], "left in English"
    for picture, theirs in zip(panel.training_pictures(["a"], say=say), panel.training_pictures(["a"]), strict=True):
        assert picture["spec"]["title"]["text"] != theirs["spec"]["title"]["text"]
        assert picture["reading"] != theirs["reading"]


def test_pictures_are_made_once_for_all_visitors():
    one = panel.training_pictures(["student"], predicted_gib=0.5)
    assert panel.training_pictures(["student"], predicted_gib=0.5) is one
    for other in ({"predicted_gib": 0.6}, {"predicted_gib": 0.5, "say": in_language("pt")}):
        assert panel.training_pictures(["student"], **other) != one
    assert panel.capture_pictures("a") != panel.capture_pictures("b")
