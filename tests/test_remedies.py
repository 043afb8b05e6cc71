"""Out of memory is an answer: the settings that help most, with the peak that the plan expects of each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from steps import carry_out, train_here

from distill_core import catalog, jobs, memory
from distill_core.config import with_overrides
from distill_core.errors import ModelError, RunError
from distill_core.remedies import answer
from distill_core.runs import create_run, open_run
from distill_core.units import show_gib

SCRIPT = Path(__file__).with_name("short_of_memory.py")


@pytest.fixture
def large(small_config):
    """Where activations outweigh everything else."""
    sizes = {"student.hidden_size": 512, "student.intermediate_size": 2048, "student.num_layers": 8, "student.num_attention_heads": 8}
    return with_overrides(small_config, sizes | {"text.window_tokens": 256, "train.per_device_train_batch_size": 32})


def test_each_remedy_is_a_setting_whose_plan_is_what_is_said(large):
    found = answer(large, "train", "no room")
    before = memory.report(large).peaks["offline fused"]
    peaks = []
    for words, changes in zip(found.remedies, found.changes, strict=True):
        dotted = {f"{section}.{name}": value for section, values in changes.items() for name, value in values.items()}
        peaks.append(memory.report(with_overrides(large, dotted)).peaks["offline fused"])
        assert f"about {show_gib(peaks[-1])} at the peak" in words
        assert all(f"{name} {str(value).lower()}" in words for name, value in dotted.items())
    assert 1 <= len(peaks) <= 3 and peaks == sorted(peaks) and peaks[-1] < before
    assert found.error.startswith(f"out of memory: no room. The plan expects {show_gib(before)}")
    assert "train.auto_find_batch_size true" in found.error
    assert not any("text" in changes for changes in found.changes), "the cache's windows cannot be made shorter"


def test_a_capture_has_its_own_remedies(small_config):
    found = answer(small_config, "capture", "")
    assert "capture.batch_windows 2" in found.error and "train." not in found.error
    assert {"capture": {"head_chunk_tokens": 256}} in found.changes


def test_where_the_models_facts_cannot_be_had_it_says_so(small_config, monkeypatch):
    def offline(*_, **__):
        raise ModelError("model far/away is not here.")

    monkeypatch.setattr(catalog, "facts", offline)
    found = answer(small_config, "train", "no room")
    assert "cannot be made here (model far/away is not here.)" in found.error and found.remedies == ()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs an address-space limit")
def test_a_process_that_really_has_no_memory_left_answers(small_cache, small_config):
    """The system itself refuses the memory of a forward pass; the status tells it."""
    sizes = {"student.hidden_size": 192, "student.intermediate_size": 1024, "train.per_device_train_batch_size": 24, "train.max_steps": 1}
    config = with_overrides(small_config, sizes)
    run = create_run("train", config, inputs={"cache": "small"}, name="short")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "short"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    status = run.status()
    assert (done.returncode, status.state) == (2, "failed"), done.stderr[-2000:]
    assert "can't allocate memory" in status.error and "out of memory" in done.stderr
    assert len(status.result["remedies"]) == len(status.result["remedy_settings"]) >= 1
    assert re.search(r"at the peak \(the same result\)", status.error)


def test_cuda_s_own_error_is_one_too(small_cache, small_config, monkeypatch, distill_home):
    import torch

    from distill_core import trainer

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(trainer, "run_training", fail)
    with pytest.raises(RunError, match="CUDA out of memory. Tried to allocate 2.00 GiB. The plan expects"):
        train_here(small_config, name="short")
    run = open_run("short")
    assert run.status().result["remedies"]
    monkeypatch.undo()
    monkeypatch.setenv("DISTILL_HOME", str(distill_home))
    jobs.requeue(run)
    carry_out(run)
    assert run.status().state == "done" and "remedies" not in run.status().result, "what no longer holds is not shown"
