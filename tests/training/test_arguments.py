"""What transformers' Trainer is told, and that it does it."""

import numpy as np
import pytest
import torch
import transformers
from steps import train_here
from transformers.integrations import integration_utils
from transformers.optimization import get_scheduler

from distill_core import hf_arguments, metrics, models
from distill_core.config import with_overrides
from distill_core.errors import ConfigError
from distill_core.students import build_student
from distill_core.training.arguments import training_arguments
from distill_core.training.watch import looks_without_gain

CPU = torch.device("cpu")


def test_each_value_arrives_under_its_own_name(small_config, tmp_path):
    pairs = {"train.adam_beta2": 0.95, "train.optim": "adafactor", "train.max_grad_norm": 0.5, "train.lr_scheduler_type": "polynomial"}
    made = training_arguments(with_overrides(small_config, pairs), tmp_path, CPU)
    assert (made.adam_beta2, made.optim, made.max_grad_norm, made.lr_scheduler_type) == (0.95, "adafactor", 0.5, "polynomial")
    assert made.report_to == [] and made.remove_unused_columns is False


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({"train.fp16": True}, "train.fp16 needs a CUDA GPU"),
        ({"train.optim": "adam_of_eden"}, "transformers refuses these training arguments: adam_of_eden is not a valid"),
        ({"train.report_to": "wandb"}, "'wandb' is not installed"),
    ],
)
def test_what_cannot_be_done_here_is_refused_before_the_first_step(small_config, tmp_path, monkeypatch, pairs, words):
    monkeypatch.setitem(hf_arguments.REPORTERS, "wandb", "no_such_package")
    with pytest.raises(ConfigError, match=words):
        training_arguments(with_overrides(small_config, pairs), tmp_path, CPU)


@pytest.mark.parametrize("name", [each.value for each in transformers.SchedulerType])
def test_every_scheduler_can_be_made_from_our_settings(small_config, tmp_path, name):
    details = {"cosine_with_min_lr": {"min_lr_rate": 0.1}, "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1}}
    details["warmup_stable_decay"] = {"num_decay_steps": 2}
    pairs = {"train.lr_scheduler_type": name} | ({"train.lr_scheduler_kwargs": details[name]} if name in details else {})
    made = training_arguments(with_overrides(small_config, pairs), tmp_path, CPU)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=made.learning_rate)
    get_scheduler(made.lr_scheduler_type, optimizer, made.get_warmup_steps(8), 8, made.lr_scheduler_kwargs)


def test_sgd_moves_by_learning_rate_times_gradient(small_cache, small_config):
    """Plain SGD from transformers' own names: the weights move by exactly the gradient's norm times the learning rate."""
    pairs = {"train.optim": "sgd", "train.learning_rate": 0.05, "train.lr_scheduler_type": "constant", "train.weight_decay": 0.0}
    config = with_overrides(small_config, pairs | {"train.max_grad_norm": 0.0, "train.max_steps": 1, "train.warmup_steps": 0})
    tokenizer = models.load_tokenizer(str(small_cache.tokenizer_folder))
    before = build_student(config, tokenizer=tokenizer, real_vocab_size=small_cache.plan.vocab_size)
    run = train_here(config)
    after = dict(models.load_model(str(run.model_folder), dtype="float32").named_parameters())
    moved = torch.sqrt(sum(((after[name] - value) ** 2).sum() for name, value in before.named_parameters())).item()
    row = next(row for row in metrics.read(run.metrics_path) if "loss" in row)
    assert row["learning_rate"] == 0.05
    assert moved == pytest.approx(0.05 * row["grad_norm"], rel=1e-4)


class Tracker(transformers.TrainerCallback):
    """Stands in for a tracker: keeps what it is sent."""

    seen: list[dict] = []

    def on_log(self, args, state, control, logs=None, **others):
        self.seen.append({"step": state.global_step} | logs)


def test_a_tracker_gets_every_value_of_our_rows(small_cache, small_config, monkeypatch):
    monkeypatch.setattr(Tracker, "seen", [])
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Tracker)
    monkeypatch.setitem(hf_arguments.REPORTERS, "trackio", "torch")
    run = train_here(with_overrides(small_config, {"train.max_steps": 4, "train.report_to": "trackio"}))
    for row in metrics.read(run.metrics_path):
        sent = {name: value for each in Tracker.seen if each["step"] == row["step"] for name, value in each.items()}
        absent = {name for name, value in row.items() if value is not None and name != "time_s"} - sent.keys()
        assert not absent, f"step {row['step']}: the tracker never heard of {absent}"


def test_tensorboard_events_lie_in_the_run(small_cache, small_config):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_here(with_overrides(small_config, {"train.max_steps": 4, "train.report_to": "tensorboard"}))
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    rows = [row for row in metrics.read(run.metrics_path) if "loss" in row]
    assert [each.value for each in events.Scalars("train/kl")] == pytest.approx([row["kl"] for row in rows])
    assert [each.step for each in events.Scalars("train/heldout_kl")] == [0, 4]


@pytest.mark.parametrize(
    ("values", "threshold", "count"),
    [
        ([], 0.0, 0),
        ([3.0], 0.0, 0),
        ([3, 2, 1], 0.0, 0),
        ([3, 3], 0.0, 1),
        ([3, 4, 5], 0.0, 2),
        ([3, 4, 2, 5], 0.0, 1),
        ([3, 2.9, 2.8], 0.5, 2),
    ],
)
def test_looks_without_gain_by_hand(values, threshold, count):
    assert looks_without_gain(values, threshold=threshold) == count


def test_looks_without_gain_is_the_rule_of_transformers(tmp_path):
    random = np.random.default_rng(0)
    for threshold in (0.0, 0.3):
        callback, state = transformers.EarlyStoppingCallback(99, threshold), transformers.TrainerState()
        args = transformers.TrainingArguments(str(tmp_path), metric_for_best_model="eval_x", greater_is_better=False)
        values = random.normal(size=60).tolist()
        for count, value in enumerate(values, start=1):
            callback.check_metric_value(args, state, None, value)
            state.best_metric = value if state.best_metric is None else min(value, state.best_metric)
            assert looks_without_gain(values[:count], threshold=threshold) == callback.early_stopping_patience_counter


def test_a_run_that_gains_nothing_ends_early_and_says_so(small_cache, small_config):
    pairs = {"train.max_steps": 40, "train.eval_steps": 2, "train.early_stopping_patience": 2, "train.early_stopping_threshold": 10.0}
    run = train_here(with_overrides(small_config, pairs | {"train.metric_for_best_model": "heldout_kl"}))
    rows = metrics.read(run.metrics_path)
    assert [row["step"] for row in rows if "heldout_kl" in row] == [0, 2, 4]
    assert max(row["step"] for row in rows) == 4
    assert run.status().state == "done"
    assert run.status().result["stopped_early_at"] == 4
    best = min((row for row in rows if "heldout_kl" in row), key=lambda row: row["heldout_kl"])
    assert run.status().result["best_step"] == best["step"]


def test_the_learning_rate_falls_when_the_held_out_text_stays_where_it_is(small_cache, small_config):
    pairs = {
        "train.lr_scheduler_type": "reduce_lr_on_plateau",
        "train.lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 9.0, "threshold_mode": "abs"},
    }
    run = train_here(with_overrides(small_config, pairs | {"train.max_steps": 6, "train.eval_steps": 2, "train.learning_rate": 1e-3}))
    rates = [row["learning_rate"] for row in metrics.read(run.metrics_path) if "loss" in row]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3, 1e-3, 5e-4, 5e-4])
