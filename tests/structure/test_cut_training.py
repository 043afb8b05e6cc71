"""Training a student whose layers and units were measured: what stays is written beside the run, and is the same after a kill."""

import io
import json

import pytest
import torch
from steps import carry_out, train_here

from distill_core import jobs, models
from distill_core.config import from_dict
from distill_core.runs import create_run, open_run
from distill_core.structure import Structure
from distill_core.training import structure as run_structure
from distill_core.training.structure import FILE
from distill_core.worker import execute


@pytest.fixture
def config(small_config):
    values = small_config.model_dump() | {
        "student": {"init": "prune_layers", "num_layers": 2, "layer_choice": "importance", "intermediate_size": 64}
    }
    values["train"] |= {"max_steps": 4, "save_steps": 2, "eval_steps": 4}
    return from_dict(values)


def test_the_run_says_what_stayed_and_plain_transformers_loads_it(small_cache, config):
    run = train_here(config)
    kept = json.loads((run.folder / FILE).read_text())
    assert run.status().result["kept_layers"] == kept["layers"]
    assert [len(units) for units in kept["units"]] == [64, 64]
    student = models.load_model(str(run.model_folder))
    assert (student.config.num_hidden_layers, student.config.intermediate_size) == (2, 64)


def test_after_a_kill_nothing_is_measured_again_and_the_weights_are_the_same(small_cache, config, monkeypatch):
    config = config.changed(student=config.student.changed(lora_rank=4))  # adapters alone are in a checkpoint, the rest is built anew
    train_here(config, name="whole")
    run = create_run("train", config, inputs={"cache": "small"}, name="killed")
    steps = iter(range(100))
    with monkeypatch.context() as patch:
        patch.setattr(type(run), "stop_requested", lambda self: next(steps) > 2)
        execute(run, screen=io.StringIO())
    assert run.status().state == "stopped"
    monkeypatch.setattr(run_structure, "choose", lambda *_: pytest.fail("measured again"))
    jobs.requeue(run)
    carry_out(run)
    assert run.status().state == "done"
    ours, theirs = (models.load_model(str(open_run(name).model_folder)).state_dict() for name in ("killed", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_structure_of_layers_alone():
    assert Structure.from_dict({"layers": [0, 2]}) == Structure((0, 2))
    assert Structure((0, 2)).to_dict() == {"layers": [0, 2]}
