"""Out of memory with large micro-batches: smaller ones, more of them, the same result."""

import pytest
import torch
from steps import carry_out, train_here

from distill_core import jobs, metrics
from distill_core.config import with_overrides
from distill_core.errors import RunError
from distill_core.runs import create_run
from distill_core.training.batch_size import smaller, with_size
from distill_core.training.distill_trainer import DistillTrainer
from distill_core.training.watch import Watch

COMPUTE = DistillTrainer.compute_loss


def room_for(monkeypatch, windows, *, from_step=0):
    """A stand-in for a GPU of that size: the error that CUDA raises, for a larger micro-batch."""

    def compute_loss(self, model, inputs, **others):
        if self.state.global_step >= from_step and len(inputs["input_ids"]) > windows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
        return COMPUTE(self, model, inputs, **others)

    monkeypatch.setattr(DistillTrainer, "compute_loss", compute_loss)


def steps(run):
    return [(row["step"], row["loss"], row["grad_norm"]) for row in metrics.read(run.metrics_path) if "loss" in row]


@pytest.mark.parametrize(("windows", "size", "next_size"), [(8, 8, 4), (8, 1, 0), (6, 6, 3), (6, 3, 1), (12, 5, 2), (7, 7, 1)])
def test_the_next_size_divides_the_step(windows, size, next_size):
    assert smaller(windows, size) == next_size


def test_the_windows_of_a_step_stay(small_config):
    train = small_config.train.changed(per_device_train_batch_size=8, gradient_accumulation_steps=3)
    assert [with_size(train, size).gradient_accumulation_steps for size in (8, 4, 3, 1)] == [3, 6, 8, 24]


def test_the_result_is_that_of_the_large_batch(small_cache, small_config, monkeypatch):
    """Room for two windows is found from eight, before and in the middle of training; the curve is that of a run that had room."""
    config = with_overrides(small_config, {"train.per_device_train_batch_size": 8, "train.max_steps": 5, "train.save_steps": 2})
    config = with_overrides(config, {"train.auto_find_batch_size": True})
    whole = train_here(config)
    assert whole.status().result["per_device_train_batch_size"] == 8
    for from_step in (0, 3):
        room_for(monkeypatch, 2, from_step=from_step)
        squeezed = train_here(config)
        assert squeezed.status().result["per_device_train_batch_size"] == 2
        assert [step for step, *_ in steps(squeezed)] == [1, 2, 3, 4, 5], "each step once"
        for ours, theirs in zip(steps(squeezed), steps(whole), strict=True):
            assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
            assert ours[2] == pytest.approx(theirs[2], rel=1e-3)


def test_a_resumed_run_begins_with_the_size_that_was_found(small_cache, small_config, monkeypatch):
    config = with_overrides(small_config, {"train.auto_find_batch_size": True, "train.max_steps": 4})
    run = create_run("train", config, inputs={"cache": "small"}, name="squeezed")
    room_for(monkeypatch, 1)
    monkeypatch.setattr(Watch, "on_log", stop_at(2, run))
    carry_out(run)
    assert run.status().state == "stopped"
    tried = []

    def seen(self, model, inputs, **others):
        tried.append(len(inputs["input_ids"]))
        return COMPUTE(self, model, inputs, **others)

    monkeypatch.setattr(DistillTrainer, "compute_loss", seen)
    jobs.requeue(run)
    carry_out(run)
    assert run.status().state == "done" and set(tried) == {1}


def stop_at(step, run):
    log = Watch.on_log

    def on_log(self, args, state, control, **others):
        log(self, args, state, control, **others)
        if state.global_step == step:
            run.request_stop()

    return on_log


def test_where_a_single_window_is_too_much_the_error_stands(small_cache, small_config, monkeypatch):
    room_for(monkeypatch, 0)
    with pytest.raises(RunError, match="out of memory"):
        train_here(with_overrides(small_config, {"train.auto_find_batch_size": True}), name="none")
