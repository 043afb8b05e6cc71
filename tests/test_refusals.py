"""What can only fail is refused before there is a run, and before torch is loaded."""

import subprocess
import sys

import pytest

from distill_core import hf_arguments, jobs, limits, sweep
from distill_core.config import with_overrides
from distill_core.errors import DistillError
from distill_core.runs import list_runs

REFUSED = [
    ({"loss.top_k": 500}, "holds 20 entries per position, loss.top_k asks for 500"),
    ({"train.report_to": "wandb"}, "'wandb' is not installed"),
    ({"device": "cuda"}, "this machine has no CUDA device"),
    ({"student.hidden_size": 97, "student.num_attention_heads": None}, "97 cannot be split into heads"),
    ({"student": {"init": "prune_layers", "keep_layers": [0, 9]}}, r"the teacher has layers 0 to \d"),
    ({"student": {"init": "pretrained", "model": "/no/such/model.gguf"}}, "no such file"),
]


@pytest.mark.parametrize(("pairs", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_training_that_can_only_fail_makes_no_run(small_cache, small_config, pairs, words, monkeypatch):
    monkeypatch.setitem(hf_arguments.REPORTERS, "wandb", "no_such_package")
    monkeypatch.setattr(limits, "_gpus", list)
    config = with_overrides(small_config, pairs)
    for refused in (jobs.new_training, jobs.submit_training):
        with pytest.raises(DistillError, match=words):
            refused(config, "small")
    with pytest.raises(DistillError, match=words):
        sweep.create_sweep("s", "small", config, {"train.learning_rate": [1e-3, 1e-4]}, num_seeds=1)
    assert list_runs() == []


def test_what_can_be_done_is_not_refused(small_cache, small_config, monkeypatch):
    monkeypatch.setattr("distill_core.refusals.num_gpus", lambda: 2)
    for pairs in ({"loss.top_k": 20}, {"device": "cuda:1"}, {"student": {"init": "prune_layers", "keep_layers": [0, 1]}}):
        jobs.new_training(with_overrides(small_config, pairs), "small")
    with pytest.raises(DistillError, match="2 CUDA devices, numbered from 0"):
        jobs.new_training(with_overrides(small_config, {"device": "cuda:2"}), "small")
    assert len(list_runs()) == 3


def test_the_command_refuses_without_torch(small_cache):
    code = (
        "import sys; from distill_core.cli import run_command_line\n"
        "code = run_command_line(['train', '--cache', 'small', '--loss.top_k', '500'])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 False"
