"""The config: what is refused, in which words, and that it survives its own file."""

import json

import pytest

from distill_core.config import DistillConfig, LossConfig, from_dict, hard_label_twin, read_config, with_overrides
from distill_core.errors import ConfigError
from distill_core.walk.controls import config_from, control_values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": {"temprature": 2}}, "no option 'loss.temprature'. Did you mean 'temperature'?"),
        ({"los": {}}, "no option 'los'. Did you mean 'loss'?"),
        ({"loss": {"temperature": 0.25}}, "loss.temperature: input should be greater than or equal to 0.5, got 0.25"),
        ({"loss": {"kl_weight": 0}}, "nothing would be learned"),
        ({"loss": {"tail": "buckt"}}, "'bucket', 'renormalize' or 'drop', got 'buckt'"),
        ({"student": {"init": "pretrained"}}, "needs student.model"),
        ({"student": {"model": "gpt2"}}, "only read with init 'pretrained'"),
        ({"student": {"init": "prune_layers", "keep_layers": [2, 1]}}, "must rise"),
        ({"student": {"init": "prune_layers", "keep_layers": [0, 1], "num_layers": 3}}, "contradicts"),
        ({"train": {"max_steps": 0}}, "greater than 0, got 0"),
        ({"text": {"window_tokens": "many"}}, "got 'many'"),
    ],
)
def test_refused_in_words(values, words):
    with pytest.raises(ConfigError) as error:
        from_dict(values)
    assert words in str(error.value)


def test_every_fault_is_named_at_once():
    with pytest.raises(ConfigError) as error:
        from_dict({"loss": {"temperature": 0}, "train": {"max_steps": 0}})
    assert len(str(error.value).splitlines()) == 2


def test_file_round_trip(tmp_path):
    config = with_overrides(DistillConfig(), {"loss.temperature": "2", "student.init": "prune_layers", "student.keep_layers": [0, 3]})
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert read_config(path) == config


@pytest.mark.parametrize(("content", "words"), [("{", "not JSON"), ("[]", "holds a list"), ('{"loss": {"T": 1}}', "no option 'loss.T'")])
def test_bad_files_are_named(tmp_path, content, words):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="run.json") as error:
        read_config(path)
    assert words in str(error.value)


def test_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="--print-config"):
        read_config(tmp_path / "none.json")


def test_unknown_section_in_an_override():
    with pytest.raises(ConfigError, match="no section 'losses'.*Did you mean 'loss'"):
        with_overrides(DistillConfig(), {"losses.temperature": 1})


def test_twin_differs_in_the_loss_only():
    config = with_overrides(DistillConfig(), {"train.name": "mine", "train.max_steps": 7})
    twin = hard_label_twin(config)
    assert (twin.loss.kl_weight, twin.loss.ce_weight) == (0.0, 1.0)
    assert twin.train.name == "mine-hard-labels"
    assert twin.changed(loss=config.loss, train=config.train) == config


def test_every_field_says_what_it_means():
    for section in DistillConfig.model_fields.values():
        for name, field in getattr(section.annotation, "model_fields", {}).items():
            assert field.description, f"{section.annotation.__name__}.{name} has no docstring"


def test_changed_is_checked():
    with pytest.raises(ConfigError, match="temperature"):
        LossConfig().changed(temperature=9.0)


def test_json_names_are_the_config_names():
    assert set(json.loads(DistillConfig().to_json())) == set(DistillConfig.model_fields)


def test_looks_and_warm_up_follow_the_length_unless_they_are_set():
    """The same whether a file, the command line or the app's controls say how long; written down, it is read back as it is."""

    def steps(config):
        return (config.train.max_steps, config.train.eval_steps, config.train.warmup_steps)

    short = from_dict({"train": {"max_steps": 30}})
    assert steps(DistillConfig()) == (600, 60, 50)
    assert steps(short) == steps(with_overrides(DistillConfig(), {"train.max_steps": "30"})) == (30, 3, 2)
    values = control_values(DistillConfig())
    assert config_from(DistillConfig(), values | {"train": values["train"] | {"max_steps": 30}}).train == short.train
    assert steps(with_overrides(short, {"train.max_steps": 120})) == (120, 12, 10)
    chosen = from_dict({"train": {"max_steps": 30, "warmup_steps": 5}})
    assert steps(with_overrides(chosen, {"train.max_steps": 120})) == (120, 12, 5), "what was set stays"
    assert steps(with_overrides(short, {"train.max_steps": 120, "train.eval_steps": 7})) == (120, 7, 10)
    assert from_dict(json.loads(chosen.to_json())) == chosen
    assert hard_label_twin(chosen).train == chosen.train


def test_a_warm_up_without_end_is_said_aloud():
    warned = from_dict({"train": {"max_steps": 30, "warmup_steps": 50}}).train.length_warning()
    assert "train.warmup_steps 50 is not below train.max_steps 30" in warned
    assert from_dict({"train": {"max_steps": 1}}).train.length_warning() == "", "set by nobody, and one step long"
    assert DistillConfig().train.length_warning() == ""
