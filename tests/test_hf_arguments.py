"""Every TrainingArguments field by its own name: what is taken, what is refused, and why, without importing transformers."""

import dataclasses
from typing import get_args

import pytest
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from distill_core.cli import build_parser
from distill_core.commands import settings
from distill_core.config import DistillConfig, from_dict, with_overrides
from distill_core.errors import ConfigError
from distill_core.hf_arguments import REFUSED, check_reporters_installed, known_arguments
from distill_core.train_config import Scheduler, TrainConfig
from distill_core.training.arguments import OURS_ALONE


def test_the_source_is_read_as_python_reads_it():
    assert list(known_arguments()) == [field.name for field in dataclasses.fields(TrainingArguments)]
    assert known_arguments()["adam_beta2"] == {"float"}
    assert known_arguments()["lr_scheduler_kwargs"] == {"dict", "str", "None"}


def test_no_name_is_stale():
    theirs = known_arguments().keys()
    assert REFUSED.keys() <= theirs
    assert TrainConfig.model_fields.keys() - OURS_ALONE <= theirs
    assert not REFUSED.keys() & TrainConfig.model_fields.keys()
    assert set(get_args(Scheduler)) == {each.value for each in SchedulerType}


@pytest.mark.parametrize("name", sorted(known_arguments().keys() - REFUSED.keys() - TrainConfig.model_fields.keys()))
def test_transformers_default_is_taken_under_its_own_name(name):
    default = getattr(TrainingArguments(output_dir="x"), name)
    assert from_dict({"train": {name: None if "None" in known_arguments()[name] else default}}).train.arguments.keys() == {name}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("adam_beta2", "0.95", 0.95),
        ("adam_epsilon", "1e-6", 1e-6),
        ("tf32", "true", True),
        ("full_determinism", "False", False),
        ("ddp_timeout", "60", 60),
        ("optim", "adafactor", "adafactor"),
        ("optim_args", "0.5", "0.5"),
        ("lr_scheduler_kwargs", '{"num_cycles": 2}', {"num_cycles": 2}),
        ("optim_target_modules", '["attn", "mlp"]', ["attn", "mlp"]),
    ],
)
def test_what_the_command_line_gives_becomes_what_it_is(name, text, value):
    options = build_parser().parse_args(["train", f"--train.{name}", text])
    config = settings(options)
    assert config.train.arguments == {name: value}
    assert from_dict(config.model_dump(mode="json")) == config, "and config.json brings it back"


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({"train.adam_beta": 0.9}, "no option 'train.adam_beta'. Did you mean 'adam_beta2'|1'?"),
        ({"train.lerning_rate": 1}, "no option 'train.lerning_rate'. Did you mean 'learning_rate'?"),
        ({"train.fnord": 1}, "neither in this package nor in transformers.TrainingArguments"),
        ({"train.output_dir": "x"}, "train.output_dir cannot be set: checkpoints live in the run's folder"),
        ({"train.remove_unused_columns": True}, "the loss needs them"),
        ({"train.gradient_checkpointing": True}, "its name is activation_checkpointing now"),
        ({"train.adam_beta2": "much"}, "takes float in transformers.TrainingArguments, got 'much'"),
        ({"train.bf16": True, "train.fp16": True}, "choose one type for autocast"),
        ({"train.arguments": {"learning_rate": 1.0}}, "train.arguments holds learning_rate"),
        ({"train.report_to": "tensorbord"}, "input should be 'tensorboard'"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(pairs, words):
    with pytest.raises(ConfigError, match=words):
        with_overrides(DistillConfig(), pairs)


def test_trackers_are_named_one_by_one_or_together_and_must_be_installed(monkeypatch):
    assert with_overrides(DistillConfig(), {"train.report_to": "wandb, trackio"}).train.report_to == ("wandb", "trackio")
    assert with_overrides(DistillConfig(), {"train.report_to": "none"}).train.report_to == ()
    monkeypatch.setitem(__import__("distill_core.hf_arguments", fromlist=["REPORTERS"]).REPORTERS, "wandb", "no_such_package")
    with pytest.raises(ConfigError, match="'wandb' is not installed. Install it .pip install no_such_package."):
        check_reporters_installed(["wandb"])
