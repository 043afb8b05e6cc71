"""Judging and taking home: honest comparisons, a model that loads without this package, a card that says where it comes from."""

import itertools
import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from steps import carry_out, train_here

from distill_core import evaluate, models
from distill_core.cli import run_command_line
from distill_core.config import hard_label_twin, with_overrides
from distill_core.errors import ModelError, RunError
from distill_core.export import export_model, program
from distill_core.judgement import Scores, bootstrap_interval, table, verdict
from distill_core.runs import create_run


@pytest.fixture
def judged(small_cache, small_config):
    """A student, its twin, and the evaluation of both."""
    config = with_overrides(small_config, {"train.max_steps": 30, "train.eval_steps": 10, "train.learning_rate": 1e-2})
    student = train_here(config, name="student")
    twin = train_here(hard_label_twin(config), name="twin")
    run = create_run("evaluate", config, inputs={"run": "student", "baseline": "twin"})
    carry_out(run)
    return student, twin, json.loads(run.evaluation_path.read_text())


def scores(nll, kl, windows=40, *, seed=0):
    noise = np.random.default_rng(seed).normal(size=windows) * 0.5
    tokens, num_bytes = np.full(windows, 50.0), np.full(windows, 200.0)
    return Scores(nll_W=nll * tokens + noise, kl_W=kl * tokens + noise, agreed_W=tokens / 2, tokens_W=tokens, bytes_W=num_bytes)


def test_scores_by_hand():
    two = Scores(*(np.array(values, float) for values in ([20, 40], [2, 4], [5, 10], [10, 20], [40, 80])))
    assert two.nll == 2.0
    assert two.kl_to_teacher == pytest.approx(0.2)
    assert two.top1_agreement == 0.5
    assert two.bits_per_byte == pytest.approx(0.5 / math.log(2))
    assert two.perplexity == pytest.approx(math.exp(2))


def test_interval_holds_the_mean_and_widens_with_noise():
    weight = np.full(100, 10.0)
    calm = np.random.default_rng(1).normal(1.0, 0.1, 100) * 10
    wild = np.random.default_rng(1).normal(1.0, 2.0, 100) * 10
    for difference in (calm, wild):
        mean, low, high = bootstrap_interval(difference, weight)
        assert low < mean < high
        assert mean == pytest.approx(difference.sum() / 1000)
    assert bootstrap_interval(wild, weight)[2] - bootstrap_interval(wild, weight)[1] > 10 * (
        bootstrap_interval(calm, weight)[2] - bootstrap_interval(calm, weight)[1]
    )


@pytest.mark.parametrize(
    ("student", "baseline", "word"),
    [
        (scores(1.0, 0.3), scores(1.3, 0.6), "BEATS"),
        (scores(1.3, 0.6), scores(1.0, 0.3), "is WORSE than"),
        (scores(1.0, 0.3), scores(1.0, 0.3, seed=1), "NO CLEAR DIFFERENCE"),
        (scores(1.3, 0.3), scores(1.0, 0.6), "is CLOSER TO THE TEACHER, but predicts this text WORSE than"),
        (scores(1.0, 0.6), scores(1.3, 0.3), "predicts this text BETTER, but is FURTHER FROM THE TEACHER than"),
    ],
)
def test_verdict_needs_both_measures(student, baseline, word):
    assert word in verdict(student, baseline)


def test_verdict_without_a_twin_claims_no_gain():
    assert "Train the hard-label twin" in verdict(scores(1.0, 0.3), None)


def test_evaluation_rows(judged, small_cache):
    _, _, result = judged
    rows = {row["who"]: row for row in result["rows"]}
    assert list(rows) == ["teacher", "untrained student", "student", "hard labels"]
    assert rows["teacher"]["perplexity"] < rows["student"]["perplexity"] < rows["untrained student"]["perplexity"]
    assert rows["student"]["kl_to_teacher"] < rows["untrained student"]["kl_to_teacher"]
    assert rows["untrained student"]["perplexity"] == pytest.approx(2048, rel=0.2), "an untrained model is near uniform"
    assert all(len(row["samples"]) == len(result["prompts"]) == 2 for row in rows.values())
    assert rows["student"]["num_parameters"] < rows["teacher"]["num_parameters"]
    assert result["cache_sha256"] == small_cache.manifest.sha256()
    assert "hard-label twin" in result["verdict"]
    assert "student" in table(result["rows"])


def test_scores_against_plain_transformers(judged, small_cache):
    """Held-out NLL of the student by full logits, each document alone."""
    student, _, result = judged
    model = models.load_model(str(student.model_folder), dtype="float32").eval()
    nll, count, num_bytes = 0.0, 0, 0
    for index in range(small_cache.num_windows("heldout")):
        row = {name: values[0] for name, values in small_cache.rows("heldout", [index]).items()}
        starts = [i for i, position in enumerate(row["position_ids"]) if position == 0] + [64]
        for start, end in itertools.pairwise(starts):
            ids = torch.tensor(row["input_ids"][None, start:end])
            logprobs = model(ids).logits[0].detach().log_softmax(-1)
            for t in range(start, end - 1):
                if row["targets"][t]:
                    nll -= logprobs[t - start, row["input_ids"][t + 1]].item()
                    count += 1
                    num_bytes += row["token_bytes"][t + 1]
    found = next(row for row in result["rows"] if row["who"] == "student")
    assert found["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-4)


def test_another_caches_teacher_judges_only_students_of_its_tokens(small_cache, small_config, distill_home, capsys):
    """The judgement by another cache stays out of the run's own; two swapped tokens are refused by name."""
    student = train_here(with_overrides(small_config, {"train.max_steps": 2}), name="student")
    for name in ("twin", "swapped"):
        shutil.copytree(distill_home / "caches" / "small", distill_home / "caches" / name)
    path = distill_home / "caches" / "swapped" / "tokenizer" / "tokenizer.json"
    stored = json.loads(path.read_text())
    vocabulary = stored["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(stored))
    assert run_command_line(["evaluate", "student", "--against", "twin"]) == 0
    assert "untrained" not in capsys.readouterr().out, "how it began is known by its own cache only"
    assert not student.evaluation_path.exists()
    assert run_command_line(["evaluate", "student", "--against", "swapped"]) == 2
    assert "cache swapped" in (said := capsys.readouterr().err) and "differ in 2 tokens" in said
    assert run_command_line(["evaluate", "student", "--against", "none"]) == 2
    assert "no cache 'none'" in capsys.readouterr().err


def test_unequal_budgets_are_refused(small_cache, small_config):
    train_here(with_overrides(small_config, {"train.max_steps": 2}), name="short")
    train_here(hard_label_twin(with_overrides(small_config, {"train.max_steps": 3})), name="long")
    run = create_run("evaluate", small_config, inputs={"run": "short", "baseline": "long"})
    with pytest.raises(RunError, match="train.max_steps: 2 and 3"):
        carry_out(run)


def test_a_student_is_no_twin_of_itself(small_cache, small_config):
    train_here(with_overrides(small_config, {"train.max_steps": 2}), name="short")
    with pytest.raises(RunError, match="is no hard-label twin of short"):
        carry_out(create_run("evaluate", small_config, inputs={"run": "short", "baseline": "short"}))


def test_a_failed_run_is_not_judged(small_cache, small_config):
    failed = create_run("train", small_config, inputs={"cache": "small"}, name="failed")
    failed.update(state="failed", error="it broke.")
    with pytest.raises(RunError, match="failed and cannot be judged: it broke"):
        carry_out(create_run("evaluate", small_config, inputs={"run": "failed"}))


def test_export_loads_without_this_package(judged, tmp_path):
    """Another Python, another folder, plain transformers: same logits as the run's own model."""
    student, _, _ = judged
    folder = export_model(student, tmp_path / "home taken")
    code = (
        "import sys, torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})\ntokenizer = AutoTokenizer.from_pretrained({str(folder)!r})\n"
        "ids = tokenizer('Tom had a ball.', return_tensors='pt').input_ids\n"
        "assert 'distill_core' not in sys.modules\nprint(model(ids).logits.sum().item(), ids.shape[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    total, length = done.stdout.split()
    model = models.load_model(str(student.model_folder), dtype="float32").eval()
    ids = models.load_tokenizer("builtin")("Tom had a ball.", return_tensors="pt").input_ids
    assert int(length) == ids.shape[1]
    assert float(total) == pytest.approx(model(ids).logits.sum().item(), rel=1e-4)


def test_card_states_provenance_and_quality(judged, tmp_path, small_cache):
    student, _, result = judged
    card = (export_model(student, tmp_path / "taken") / "README.md").read_text()
    best = student.status().result["best_step"]
    for stated in (
        small_cache.manifest.sha256(),
        "| K | 20 |",
        "kept mass at T = 1",
        f"tokens seen | {4 * 64 * best:,}, up to step {best} of 30,",
        result["verdict"],
        "temperature T | 1",
        program(),
        f"transformers {transformers.__version__}",
    ):
        assert stated in card


def test_export_in_half_precision_and_never_over_something(judged, tmp_path):
    student, _, _ = judged
    folder = export_model(student, tmp_path / "half", dtype="bfloat16")
    assert evaluate.disk_bytes(folder) < 0.6 * evaluate.disk_bytes(student.model_folder)
    with pytest.raises(RunError, match="not empty"):
        export_model(student, folder)


def test_export_of_a_run_without_a_model(small_config, tmp_path):
    run = create_run("train", small_config, inputs={"cache": "small"}, name="empty")
    with pytest.raises(ModelError, match="has no model yet"):
        export_model(run, tmp_path / "x")
