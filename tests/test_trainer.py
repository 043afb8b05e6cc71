"""Training: the same steps whatever the micro-batches, the same curve after any kill, and nothing learned in silence."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from steps import capture_here, carry_out, train_here

from distill_core import catalog, jobs, metrics, models, trainer
from distill_core.batches import Collate, Visits, to_tensors
from distill_core.cache import open_cache
from distill_core.config import with_overrides
from distill_core.errors import CacheError, VocabularyError
from distill_core.heads import probe_head
from distill_core.losses import IGNORE_INDEX
from distill_core.runs import create_run, open_run
from distill_core.students import build_student
from distill_core.training.arguments import training_arguments
from distill_core.training.checkpoints import latest_checkpoint
from distill_core.training.distill_trainer import DistillTrainer
from distill_core.training.watch import Watch

CURVE = ("loss", "kl", "ce", "floor", "teacher_nll", "top1_agreement", "grad_norm", "learning_rate")


def curve(run):
    return [[row[name] for name in CURVE] for row in metrics.read(run.metrics_path) if "loss" in row]


def looks(run):
    return [(row["step"], row["heldout_nll"], row["heldout_kl"]) for row in metrics.read(run.metrics_path) if "heldout_nll" in row]


def weights(run):
    return models.load_model(str(run.model_folder), dtype="float32").state_dict()


def first_step_by_hand(config, cache):
    """Full logits, dense KL over the K+1 buckets, plain autograd: (loss per token, gradient norm) of the first step."""
    tokenizer = models.load_tokenizer(str(cache.tokenizer_folder))
    student = build_student(config, tokenizer=tokenizer, real_vocab_size=cache.plan.vocab_size).train()
    first = cache.order("train", seed=config.train.seed, epoch=0)[: config.train.per_device_train_batch_size]
    rows = to_tensors(cache.rows("train", first))
    logits = student(input_ids=rows["input_ids"], position_ids=rows["position_ids"], use_cache=False).logits[:, :-1]
    valid = rows["labels"] != IGNORE_INDEX
    student_lp = logits[valid].log_softmax(-1)
    ids, teacher_lp, tail = rows["teacher_ids"][valid], rows["teacher_logprobs"][valid], rows["teacher_tail"][valid]
    rest = student_lp.scatter(1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    target = torch.cat([teacher_lp, tail[:, None]], 1).log_softmax(-1)
    loss = (target.exp() * (target - torch.cat([student_lp.gather(1, ids), rest], 1))).sum(-1).mean()
    loss.backward()
    return loss.item(), torch.sqrt(sum((p.grad**2).sum() for p in student.parameters())).item()


def test_first_step_against_plain_torch(small_cache, small_config):
    loss, norm = first_step_by_hand(small_config, small_cache)
    run = train_here(with_overrides(small_config, {"train.max_steps": 1}))
    row = metrics.read(run.metrics_path)[-1]
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert row["kl"] == row["loss"]


def test_windows_are_fed_in_the_order_of_their_visits(small_cache, small_config, monkeypatch):
    """Epoch after epoch, each window once in each: nothing between the visits and the model shuffles again."""
    fed = []
    collate = Collate.__call__

    def seen(self, windows):
        fed.extend(windows)
        return collate(self, windows)

    monkeypatch.setattr(Collate, "__call__", seen)
    train_here(with_overrides(small_config, {"train.max_steps": 9}))
    orders = [small_cache.order("train", seed=small_config.train.seed, epoch=epoch) for epoch in (0, 1)]
    assert fed == np.concatenate(orders)[:36].tolist()


def test_it_learns_and_keeps_the_best_weights(small_cache, small_config):
    config = with_overrides(small_config, {"train.max_steps": 60, "train.eval_steps": 20, "train.learning_rate": 1e-2})
    run = train_here(config)
    seen = looks(run)
    assert [step for step, _, _ in seen] == [0, 20, 40, 60]
    assert seen[-1][2] < 0.8 * seen[0][2], "held-out KL to the teacher falls"
    best = json.loads((run.model_folder / "best.json").read_text())
    assert best["nll"] == pytest.approx(min(nll for _, nll, _ in seen))
    assert run.status().result["best_step"] == best["step"]
    assert all(row[0] >= row[3] - 1e-6 for row in curve(run)), "the loss is never below the floor of its batch"
    assert not run.checkpoints_folder.exists(), "a run that is done keeps its model, not its checkpoints"


@pytest.mark.parametrize(
    "loss",
    [
        {},
        {"loss.ce_weight": 0.5, "loss.temperature": 2.0, "loss.tail": "renormalize"},
        {"loss.divergence": "jsd", "loss.z_loss_weight": 1e-3, "loss.ce_weight": 0.1},
    ],
)
def test_accumulation_one_by_eight_is_eight_by_one(small_cache, small_config, loss):
    """Windows of unequal numbers of valid tokens: one division by the step's tokens, not a mean of means.

    The first step's rows, its gradient's norm among them, agree within 1e-5; later ones as far as AdamW lets float32 differences grow.
    """
    base = with_overrides(small_config, {"train.max_steps": 4, "train.save_steps": 100, **loss})
    whole = train_here(with_overrides(base, {"train.per_device_train_batch_size": 8}))
    parts = train_here(with_overrides(base, {"train.per_device_train_batch_size": 1, "train.gradient_accumulation_steps": 8}))
    first, same = (next(row for row in metrics.read(run.metrics_path) if "loss" in row) for run in (whole, parts))
    for name in ("loss", "kl", "ce", "floor", "teacher_nll", "top1_agreement", "grad_norm"):
        assert same[name] == pytest.approx(first[name], rel=1e-5, abs=1e-9), name
    np.testing.assert_allclose(curve(whole), curve(parts), rtol=2e-4, atol=1e-6)
    ours, theirs = weights(whole), weights(parts)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("is_faster", [True, False])
def test_the_body_multiplies_where_it_is_faster(small_cache, small_config, monkeypatch, is_faster):
    """During the steps only, and packed windows only: oneDNN keeps code for every shape it meets."""
    matmul, seen = torch.backends.mkldnn.matmul, []
    before, fed = matmul.fp32_precision, DistillTrainer.compute_loss
    monkeypatch.setattr(trainer, "is_onednn_faster", lambda: is_faster)
    monkeypatch.setattr(DistillTrainer, "compute_loss", lambda *a, **k: (seen.append(matmul.fp32_precision), fed(*a, **k))[1])
    train_here(with_overrides(small_config, {"train.max_steps": 2}))
    assert set(seen) == {"bf16" if is_faster else before}
    assert matmul.fp32_precision == before
    unpacked = SimpleNamespace(packing=False)
    assert not trainer.gains_from_onednn(torch.device("cpu"), unpacked)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_sigkill_then_resume_continues_the_same_curve(small_cache, small_config):
    """The killed run, resumed from its last checkpoint, ends with the rows and weights of the undisturbed one."""
    config = with_overrides(small_config, {"train.max_steps": 40, "train.save_steps": 5, "train.eval_steps": 10})
    whole = train_here(config, name="whole")
    killed = create_run("train", config, inputs={"cache": "small"}, name="killed")
    child = subprocess.Popen(
        [sys.executable, "-m", "distill_core", "runs", "work", "killed"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while len(curve(killed)) < 12 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert killed.status().state == "failed"
    assert 12 <= len(curve(killed)) < 40
    jobs.requeue(killed)
    carry_out(killed)
    assert killed.status().state == "done"
    np.testing.assert_allclose(curve(killed), curve(whole), rtol=1e-6)
    np.testing.assert_allclose(looks(killed), looks(whole), rtol=1e-6)
    ours, theirs = weights(killed), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_stop_keeps_a_loadable_model_and_resume_goes_on(small_cache, small_config, monkeypatch):
    config = with_overrides(small_config, {"train.max_steps": 12, "train.eval_steps": 50})
    whole = train_here(config, name="whole")
    run = create_run("train", config, inputs={"cache": "small"}, name="stopped")
    log = Watch.on_log

    def log_then_ask(self, args, state, control, **others):
        log(self, args, state, control, **others)
        if state.global_step == 5:
            run.request_stop()

    monkeypatch.setattr(Watch, "on_log", log_then_ask)
    carry_out(run)
    assert run.status().state == "stopped"
    assert len(curve(run)) == 6, "the step during which the stop came was the last"
    weights(run)
    monkeypatch.setattr(Watch, "on_log", log)
    jobs.requeue(run)
    carry_out(run)
    np.testing.assert_allclose(curve(run), curve(whole), rtol=1e-6)


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    for step, content in ((5, '{"global_step": 5}'), (10, '{"global_st'), (15, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if content:
            (folder / "trainer_state.json").write_text(content)
    assert latest_checkpoint(tmp_path).name == "checkpoint-5"
    assert latest_checkpoint(tmp_path / "none") is None


def test_a_damaged_cache_is_refused_by_shard(small_cache, small_config, distill_home):
    path = distill_home / "caches" / "small" / "shards" / "train-00002.parquet"
    content = bytearray(path.read_bytes())
    content[1000] ^= 4
    path.write_bytes(content)
    with pytest.raises(CacheError, match="train-00002 is damaged"):
        train_here(small_config)


def test_a_student_of_other_tokens_is_refused_with_the_first_that_differ(small_cache, small_config, tmp_path):
    folder = tmp_path / "sibling"
    models.load_model("builtin").save_pretrained(folder)
    models.load_tokenizer("builtin").save_pretrained(folder)
    text = (folder / "tokenizer.json").read_text()
    tokenizer = json.loads(text)
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(VocabularyError) as error:
        train_here(with_overrides(small_config, {"student.init": "pretrained", "student.model": str(folder)}))
    assert "300" in str(error.value)


def test_the_teacher_as_its_own_student_has_nothing_to_learn(small_cache, small_config):
    """KL 0 before the first step but for storage in half precision, agreement 1, and a gradient near 0: the loss is unbiased."""
    config = with_overrides(
        small_config,
        {"student.init": "pretrained", "student.model": str(catalog.builtin_folder()), "train.max_steps": 1, "train.learning_rate": 1e-9},
    )
    run = train_here(config)
    rows = metrics.read(run.metrics_path)
    assert rows[0]["heldout_kl"] == pytest.approx(0.0, abs=2e-5)
    assert rows[0]["heldout_top1_agreement"] > 0.995
    assert rows[0]["heldout_nll"] == pytest.approx(-small_cache.manifest.mean("gold_logprob", "heldout"), abs=2e-4)
    hard = train_here(with_overrides(config, {"loss.kl_weight": 0.0, "loss.ce_weight": 1.0}))
    step, hard_step = (next(row for row in metrics.read(each.metrics_path) if "loss" in row) for each in (run, hard))
    assert step["grad_norm"] < 0.02 * hard_step["grad_norm"]


def test_a_batch_without_a_single_target_trains_nothing_and_breaks_nothing(small_cache, small_config, tmp_path):
    student = build_student(
        small_config, tokenizer=models.load_tokenizer(str(small_cache.tokenizer_folder)), real_vocab_size=small_cache.plan.vocab_size
    )
    ours = DistillTrainer(
        cache=small_cache,
        loss=small_config.loss,
        ops=probe_head(student),
        model=student,
        args=training_arguments(small_config, tmp_path, torch.device("cpu")),
    )
    batch = Collate(small_cache, small_config.loss)([0, 1])
    batch["labels"].fill_(IGNORE_INDEX)
    batch["valid_rows"] = batch["valid_rows"][:0]
    count = ours._get_num_items_in_batch([batch], torch.device("cpu"))
    loss = ours.compute_loss(student, batch, num_items_in_batch=count)
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in student.parameters())
    assert ours.take_means()["tokens"] == 0


def test_visits_are_epochs_one_after_the_other(small_cache):
    visits = Visits(small_cache, num_visits=60, seed=3)
    order = [visits[i] for i in range(60)]
    assert sorted(order[:24]) == sorted(order[24:48]) == list(range(24))
    assert order[:24] != order[24:48]
    assert [visits[i] for i in (50, 3)] == [order[50], order[3]], "any visit, in any order: nothing to replay after a resume"


def test_the_run_records_what_the_student_wrote_before_it_learned(small_cache, small_config):
    run = train_here(with_overrides(small_config, {"train.max_steps": 1}))
    assert len(json.loads((run.folder / "untrained.json").read_text())["samples"]) == 2


@pytest.mark.parametrize(
    "change", [{"train.bf16": True}, {"train.activation_checkpointing": True}, {"text.packing": False, "capture.name": "alone"}]
)
def test_switches_train(small_cache, small_config, change):
    config = with_overrides(small_config, {"train.max_steps": 2, **change})
    if "capture.name" in change:
        capture_here(config)
    run = train_here(config, cache=config.capture.name)
    assert open_run(run.id).status().state == "done"
    assert all(np.isfinite(row).all() for row in curve(run))
    assert open_cache(config.capture.name).num_windows("train") == 24
