"""A run killed at its worst moment goes on as if nothing had been: data, dropout, optimizer, scheduler, accumulation, autocast."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from steps import carry_out, train_here

from distill_core import jobs, metrics, models
from distill_core.config import with_overrides
from distill_core.errors import RunError
from distill_core.runs import create_run
from distill_core.training.checkpoints import checkpoint_bytes, checkpoint_step, drop_unfinished, num_kept
from distill_core.training.distill_trainer import DistillTrainer
from distill_core.training.model_folder import mend, stored_best
from distill_core.units import GIB

SCRIPT = Path(__file__).with_name("killed_while_saving.py")
CURVE = ("step", "loss", "kl", "ce", "grad_norm", "learning_rate", "heldout_nll", "heldout_kl")


def curve(run):
    return [[row.get(name) for name in CURVE] for row in metrics.read(run.metrics_path)]


def first_loss(run):
    return next(row["loss"] for row in metrics.read(run.metrics_path) if "loss" in row)


@pytest.fixture
def with_dropout(small_cache, small_config, tmp_path):
    """A student that drops a fifth of its attention, under bfloat16 autocast, two micro-batches to a step."""
    folder = tmp_path / "sibling"
    student = models.load_model("builtin")
    student.config.attention_dropout = 0.2
    student.save_pretrained(folder)
    models.load_tokenizer("builtin").save_pretrained(folder)
    pairs = {"student.init": "pretrained", "student.model": str(folder), "student.num_layers": None, "student.hidden_size": None}
    pairs |= {"student.num_attention_heads": None, "student.intermediate_size": None, "train.learning_rate": 1e-3, "train.bf16": True}
    pairs |= {"train.max_steps": 6, "train.save_steps": 2, "train.eval_steps": 3, "train.per_device_train_batch_size": 2}
    return with_overrides(small_config, pairs | {"train.gradient_accumulation_steps": 2})


@pytest.mark.parametrize("method", ["_save_rng_state", pytest.param("_save_optimizer_and_scheduler", marks=pytest.mark.slow)])
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_while_a_checkpoint_is_written(with_dropout, method):
    whole = train_here(with_dropout, name="whole")
    killed = create_run("train", with_dropout, inputs={"cache": "small"}, name="killed")
    words = [sys.executable, str(SCRIPT), "killed", "4", method]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    torn = killed.checkpoints_folder / "checkpoint-4"
    assert torn.exists() and checkpoint_step(torn) is None, "it died between the weights and the end of that checkpoint"
    jobs.requeue(killed)
    carry_out(killed)
    assert curve(killed) == curve(whole)
    ours, theirs = (models.load_model(str(run.model_folder), dtype="float32").state_dict() for run in (killed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_dropout_is_at_work(with_dropout):
    """Else the test above would prove less than it says: without dropout the same steps cost something else."""
    still = json.loads((Path(with_dropout.student.model) / "config.json").read_text())
    assert still["attention_dropout"] == 0.2
    config = with_overrides(with_dropout, {"train.max_steps": 1})
    dropped = first_loss(train_here(config))
    (Path(with_dropout.student.model) / "config.json").write_text(json.dumps(still | {"attention_dropout": 0.0}))
    assert dropped != first_loss(train_here(config))


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(small_cache, small_config, monkeypatch):
    """/dev/full answers every write with 'no space left on device', as a full disk does."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    config = with_overrides(small_config, {"train.max_steps": 8, "train.save_steps": 3})
    whole = train_here(config, name="whole")
    run = create_run("train", config, inputs={"cache": "small"}, name="full")
    save = DistillTrainer._save_optimizer_and_scheduler

    def onto_a_full_disk(self, output_dir):
        if self.state.global_step == 6:
            os.symlink("/dev/full", os.path.join(output_dir, "optimizer.pt"))
        save(self, output_dir)

    monkeypatch.setattr(DistillTrainer, "_save_optimizer_and_scheduler", onto_a_full_disk)
    with pytest.raises(RunError, match=r"the disk is full.*from step 3, its last checkpoint: python -m distill_core runs resume full"):
        carry_out(run)
    assert "the disk is full" in run.status().error
    monkeypatch.setattr(DistillTrainer, "_save_optimizer_and_scheduler", save)
    jobs.requeue(run)
    carry_out(run)
    assert curve(run) == curve(whole)


def test_the_disk_budget_is_kept_or_refused_before_the_first_step(small_config, tmp_path):
    said = []
    one = GIB // 10
    for gib, kept in ((1.0, 2), (0.31, 2), (0.29, 1), (0.2, 1)):
        train = small_config.train.changed(save_total_gib=gib)
        assert num_kept(train, tmp_path / "checkpoints", one, said.append) == kept
    assert len(said) == 2 and "1 kept instead of 2" in said[0]
    with pytest.raises(RunError, match=r"215 MB are needed, train.save_total_gib 0.19 is less"):
        num_kept(small_config.train.changed(save_total_gib=0.19), tmp_path / "checkpoints", one, said.append)
    with pytest.raises(RunError, match="free is less"):
        num_kept(small_config.train, tmp_path / "checkpoints", 10**18, said.append)


def test_the_size_of_a_checkpoint_is_known_before_it_is_written(small_cache, small_config, monkeypatch):
    found = []
    save = DistillTrainer._save_checkpoint

    def measured(self, model, trial):
        save(self, model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        found.append((sum(path.stat().st_size for path in folder.iterdir()), checkpoint_bytes(model, self.args.optim)))

    monkeypatch.setattr(DistillTrainer, "_save_checkpoint", measured)
    train_here(with_overrides(small_config, {"train.max_steps": 1, "student.hidden_size": 96, "student.intermediate_size": 256}))
    ((written, predicted),) = found
    assert predicted == pytest.approx(written, rel=0.05)


def test_half_written_checkpoints_are_cleared_away(tmp_path):
    for step, state in ((5, '{"global_step": 5}'), (10, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    drop_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ({"model": 1}, 1),
        ({"model": 1, "model.partial": None}, 1),
        ({"model.old": 1, "model.partial": 2}, 2),
        ({"model.old": 1, "model.partial": None}, 1),
        ({"model": 2, "model.old": 1}, 2),
        ({}, -1),
    ],
)
def test_a_kill_between_the_two_renames_loses_no_model(tmp_path, there, found):
    """None: that folder was not written to its end."""
    for name, step in there.items():
        (tmp_path / name).mkdir()
        if step is not None:
            (tmp_path / name / "best.json").write_text(json.dumps({"step": step, "nll": 1.0}))
    mend(tmp_path / "model")
    assert stored_best(tmp_path / "model")["step"] == found
