"""Public benchmarks: what is handed to lm-eval, what comes back, and what is refused. lm-eval itself is stood in for."""

import importlib.util
import json
import sys
import types

import pytest
from steps import carry_out, train_here

from distill_core import benchmarks, jobs
from distill_core.benchmarks import benchmark_table, check_installed, run_benchmarks
from distill_core.cli import run_command_line
from distill_core.config import TeacherConfig, with_overrides
from distill_core.errors import RunError


class TaskManager:
    all_tasks = ["arc_easy", "hellaswag"]

    def __init__(self, include_path=None):
        self.include_path = include_path

    def match_tasks(self, names):
        return [name for name in names if name in self.all_tasks]


class HFLM:
    def __init__(self, pretrained, tokenizer, batch_size):
        self.model, self.tokenizer = pretrained, tokenizer


@pytest.fixture
def stand_in(monkeypatch):
    """A module with the names that are used of lm-eval 0.4.13; it counts layers and tokens instead of answering questions."""
    asked = []

    def simple_evaluate(*, model, tasks, task_manager, limit, log_samples):
        asked.append((type(model.model).__name__, tasks, task_manager.include_path, limit))
        ids = model.tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
        logits = model.model(ids).logits
        score = float(logits.shape[1]) / 100
        return {"results": {task: {"alias": task, "acc,none": score, "acc_stderr,none": 0.01, "acc_norm,none": 0.5} for task in tasks}}

    root, tasks, hf, parent = (types.ModuleType(f"lm_eval{rest}") for rest in ("", ".tasks", ".models.huggingface", ".models"))
    root.simple_evaluate, tasks.TaskManager, hf.HFLM = simple_evaluate, TaskManager, HFLM
    for name, module in (("lm_eval", root), ("lm_eval.tasks", tasks), ("lm_eval.models", parent), ("lm_eval.models.huggingface", hf)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(benchmarks, "check_installed", lambda: None)
    return asked


def test_teacher_student_and_twin_stand_in_one_table(small_cache, small_config, stand_in):
    config = with_overrides(small_config, {"train.max_steps": 1})
    train_here(config, name="student")
    run = jobs.new_evaluation("student", public_benchmarks={"lm_eval": "arc_easy, hellaswag", "lm_eval_limit": "7"})
    carry_out(run)
    result = json.loads(run.evaluation_path.read_text())
    assert [asked[1:] for asked in stand_in] == [(["arc_easy", "hellaswag"], None, 7)] * 2
    assert [(row["who"], row["task"], row["metric"]) for row in result["benchmarks"]] == [
        (who, task, metric) for who in ("teacher", "student") for task in ("arc_easy", "hellaswag") for metric in ("acc", "acc_norm")
    ]
    table = benchmark_table(result["benchmarks"])
    assert "teacher" in table.splitlines()[0] and "± 0.010" in table and "arc_easy, acc_norm" in table
    student = next(row for row in result["rows"] if row["who"] == "student")
    assert student["first_token_s"] > 0 and student["peak_memory_gib"] > 0 and student["tokens_per_s"] > 0
    assert student["first_token_s"] < config.capture.sample_tokens / student["tokens_per_s"], "the first token is not all of them"


def test_an_unknown_task_is_refused_with_the_nearest(stand_in):
    with pytest.raises(RunError, match=r"no task 'arc_esy'. Did you mean 'arc_easy'"):
        run_benchmarks({}, TeacherConfig(), ["arc_esy"], print)


def test_data_that_cannot_be_had_is_named(small_cache, small_config, stand_in, monkeypatch):
    def offline(**_):
        raise ConnectionError("Couldn't reach the dataset on the Hub")

    monkeypatch.setattr(sys.modules["lm_eval"], "simple_evaluate", offline)
    run = train_here(with_overrides(small_config, {"train.max_steps": 1}))
    with pytest.raises(RunError, match="could not get the data of arc_easy: Couldn't reach the dataset on the Hub"):
        run_benchmarks({"student": run}, TeacherConfig(), ["arc_easy"], print)


def test_where_lm_eval_is_not_installed_it_is_said_before_anything_is_judged(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "lm_eval" else find(name))
    with pytest.raises(RunError, match="pip install lm-eval"):
        check_installed()
    assert run_command_line(["evaluate", "any", "--lm-eval", "arc_easy"]) == 2
    assert "lm-eval is not installed" in capsys.readouterr().err
    assert run_command_line(["evaluate", "any", "--lm-eval-limit", "5"]) == 2
    assert "--lm-eval-limit is about benchmarks, but none is named" in capsys.readouterr().err
