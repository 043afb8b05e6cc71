"""Runs in processes of their own: one per device, first come first served, however the one before ends."""

import os
import signal
import time

import pytest
from steps import carry_out

from distill_core import jobs, worker
from distill_core.config import with_overrides
from distill_core.errors import RunError
from distill_core.runs import create_run, open_run


def until(condition, timeout_s=90):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.mark.parametrize(("device", "key"), [("cpu", "cpu"), ("cuda", "cuda-0"), ("cuda:3", "cuda-3")])
def test_device_keys(device, key):
    assert jobs.device_key(device) == key


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_queue_of_three(small_cache, small_config):
    """Three trainings on one device run one at a time; the killed first one frees the device; the second is stopped while it waits."""
    long = with_overrides(small_config, {"train.max_steps": 100_000})
    first = jobs.submit_training(long, "small")
    until(lambda: first.status().state == "running" and first.metrics_path.exists())
    second = jobs.submit_training(small_config, "small")
    third = jobs.submit_training(small_config, "small")
    until(lambda: "ahead" in third.status().phase)
    assert (second.status().state, third.status().state) == ("queued", "queued")
    second.request_stop()
    until(lambda: second.status().state == "stopped")
    assert third.status().state == "queued"
    os.kill(first.status().pid, signal.SIGKILL)
    until(lambda: first.status().state == "failed")
    jobs.wait(third, timeout_s=90)
    assert third.status().state == "done"
    assert open_run(third.id).model_folder.is_dir()


def test_sigterm_means_finish_save_and_end(small_cache, small_config):
    run = jobs.submit_training(with_overrides(small_config, {"train.max_steps": 100_000, "train.eval_steps": 50_000}), "small")
    until(lambda: run.status().done > 3)
    os.kill(run.status().pid, signal.SIGTERM)
    until(lambda: run.status().state == "stopped")
    assert (run.model_folder / "model.safetensors").exists()
    jobs.requeue(run)
    assert run.status().state == "queued"
    assert not run.stop_requested()


def test_what_is_done_or_active_is_not_resumed(small_config):
    run = create_run("train", small_config)
    run.update(state="done")
    with pytest.raises(RunError, match="done: nothing to resume"):
        jobs.requeue(run)


def test_failures_are_written_down_with_their_reason(small_config):
    run = create_run("train", small_config, inputs={"cache": "none"})
    with pytest.raises(ValueError, match="no cache 'none'"):
        carry_out(run)
    status = run.status()
    assert status.state == "failed"
    assert "no cache 'none'" in status.error


def test_out_of_memory_names_knobs_and_amounts(small_cache, small_config, monkeypatch):
    from distill_core import trainer

    def fail(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(trainer, "run_training", fail)
    run = create_run("train", small_config, inputs={"cache": "small"})
    with pytest.raises(RunError, match="out of memory"):
        carry_out(run)
    assert "per_device_train_batch_size 2 with train.gradient_accumulation_steps 2: about " in run.status().error


def test_explanations():
    assert worker.explain(KeyError("x")) == "KeyError: 'x'"
    assert worker.is_out_of_memory(MemoryError())
    assert not worker.is_out_of_memory(ValueError("no"))
