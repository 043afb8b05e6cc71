"""Adversarial training: the ascent against dense arithmetic of its own, its bound, what it finds beside chance, and the run around it."""

import pytest
import torch
import transformers as tf
from steps import broken_off_and_resumed, train_here

from distill_core import metrics
from distill_core.batches import Collate
from distill_core.config import with_overrides
from distill_core.errors import ConfigError
from distill_core.group import ALONE
from distill_core.heads import probe_head
from distill_core.losses import IGNORE_INDEX
from distill_core.perturbation import PerturbedLoss, directions, mean_embedding_norm, projected, random_directions, worst_change
from distill_core.training.adversarial import Adversarial
from distill_core.training.launch import check_launch
from distill_core.training.terms import MicroBatch


@pytest.fixture
def scene(small_cache, small_config):
    """A tiny student in float64 with a tied head, one micro-batch, and the loss."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape = tf.LlamaConfig(vocab_size=small_cache.plan.vocab_size, **sizes, tie_word_embeddings=True, initializer_range=0.3)
    model = tf.LlamaForCausalLM(shape).double().train()
    loss = small_config.loss.changed(temperature=2.0, adversarial_weight=0.7, adversarial_radius=0.5, adversarial_steps=2)
    return model, Collate(small_cache, loss)([0, 3]), small_cache, loss


def dense_loss(model, batch, change_BLD, temperature):
    """T² x KL over the stored entries and the rest as one, from full logits, summed over the learned tokens: no code shared."""
    embedded = model.model.embed_tokens(batch["input_ids"]) + change_BLD
    out = model(inputs_embeds=embedded, position_ids=batch["position_ids"], use_cache=False)
    student = torch.log_softmax(out.logits[:, :-1] / temperature, -1)
    total = torch.zeros((), dtype=torch.float64)
    for b, t in (batch["labels"] != IGNORE_INDEX).nonzero().tolist():
        ids, held = batch["teacher_ids"][b, t], torch.isfinite(batch["teacher_logprobs"][b, t])
        ids, logprobs = ids[held], batch["teacher_logprobs"][b, t][held].double()
        teacher = torch.cat([logprobs / temperature, batch["teacher_tail"][b, t].double()[None]]).softmax(0)
        rest = torch.ones(student.shape[-1], dtype=torch.bool).index_fill(0, ids, value=False)
        ours = torch.cat([student[b, t, ids], student[b, t, rest].logsumexp(0)[None]])
        total = total + (teacher * (teacher.log() - ours)).sum()
    return temperature**2 * total


def dense_worst(model, batch, start, radius, steps, temperature):
    change = start
    for _ in range(steps):
        change = change.detach().requires_grad_()
        gradient = torch.autograd.grad(dense_loss(model, batch, change, temperature), change)[0]
        for b in range(change.shape[0]):
            for t in range(change.shape[1]):
                size = gradient[b, t].norm()
                new = change.detach()[b, t] + (radius * gradient[b, t] / size if size > 0 else 0)
                with torch.no_grad():
                    change[b, t] = new * min(1.0, radius / new.norm())
    return change.detach()


def test_value_and_gradient_equal_brute_force(scene):
    model, batch, cache, loss = scene
    term = Adversarial(cache, loss, probe_head(model), seed=5)
    micro = MicroBatch(model=model, inputs=batch, body=None, num_valid=None, number=(2, 1, 0))
    value = term.value(micro)
    ours = torch.autograd.grad(value, list(model.parameters()))
    ids = torch.linspace(0, cache.plan.vocab_size - 1, 1024).long()
    radius = 0.5 * model.model.embed_tokens.weight[ids].norm(dim=1).mean().detach()
    start = 0.1 * radius * random_directions((*batch["input_ids"].shape, 16), (5, 2, 1, 0), torch.device("cpu")).double()
    change = dense_worst(model, batch, start, radius, 2, 2.0)
    truth = dense_loss(model, batch, change, 2.0)
    assert value.item() == pytest.approx(truth.item(), rel=1e-5)
    theirs = torch.autograd.grad(truth, list(model.parameters()))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-4 * other.abs().max().item())


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_no_token_is_changed_by_more_than_the_radius(scene, steps):
    model, batch, cache, loss = scene
    radius = torch.tensor(0.37)
    worst = PerturbedLoss(cache, loss, probe_head(model)).worst(model, batch, radius, num_steps=steps, seed=(0,))
    norms = worst.norm(dim=-1)
    assert norms.max() <= 0.37 * (1 + 1e-6)
    learned = batch["labels"] != IGNORE_INDEX
    assert norms[:, :-1][learned].median() > 0.369, "most tokens whose loss can be raised use all they may"


def test_the_ascent_finds_more_than_chance(scene):
    model, batch, cache, loss = scene
    perturbed, radius = PerturbedLoss(cache, loss, probe_head(model)), torch.tensor(0.3)

    def value(change):
        with torch.no_grad():
            return perturbed.parts(model, batch, change).loss.item()

    by_chance = [value(radius * random_directions((2, batch["input_ids"].shape[1], 16), (n,), torch.device("cpu"))) for n in range(20)]
    one, three = (value(perturbed.worst(model, batch, radius, num_steps=n, seed=(1,))) for n in (1, 3))
    assert one > max(by_chance) > value(torch.zeros(2, batch["input_ids"].shape[1], 16))
    assert three > one


def test_on_a_plane_the_worst_is_known():
    """value = a . change: the worst change is radius x a / |a|, from any start, and a token of zero gradient stays where it is."""
    a = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]])
    start = torch.tensor([[[0.0, -0.1], [0.3, 0.4]]])
    found = worst_change(lambda change: (a * change).sum(), start, torch.tensor(2.0), num_steps=3)
    torch.testing.assert_close(found, torch.tensor([[[1.2, 1.6], [0.3, 0.4]]]), atol=0.02, rtol=0)
    assert projected(torch.tensor([[3.0, 4.0]]), torch.tensor(1.0)).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    assert directions(torch.zeros(1, 1, 3)).abs().sum() == 0
    assert projected(torch.zeros(1, 1, 3), torch.tensor(1.0)).abs().sum() == 0


def test_the_norm_is_that_of_what_the_layer_gives(scene):
    model, _, cache, _ = scene
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(0.25)
    assert mean_embedding_norm(model, cache.plan.vocab_size).item() == pytest.approx(1.0)  # 16 numbers of 1/4


CURVE = ("step", "loss", "kl", "adversarial", "grad_norm", "heldout_nll")


def curve(run):
    return [[row.get(name) for name in CURVE] for row in metrics.read(run.metrics_path)]


def test_a_run_and_its_resume(small_cache, small_config, monkeypatch):
    """Checkpointed activations and two micro-batches a step; broken off a step after a checkpoint it goes on with the same numbers."""
    changes = {"loss.adversarial_weight": 1.0, "train.activation_checkpointing": True, "train.gradient_accumulation_steps": 2}
    config = with_overrides(small_config, changes | {"train.per_device_train_batch_size": 2, "train.max_steps": 4, "train.save_steps": 2})
    whole = train_here(config, name="whole")
    rows = [row for row in metrics.read(whole.metrics_path) if "loss" in row]
    assert all(row["adversarial"] > row["kl"] for row in rows)
    assert rows[0]["loss"] == pytest.approx(rows[0]["kl"] + rows[0]["adversarial"], rel=1e-6)
    plain = train_here(with_overrides(config, {"train.activation_checkpointing": False}), name="plain")
    assert curve(plain)[1][1:4] == pytest.approx(curve(whole)[1][1:4], rel=1e-5)
    assert curve(broken_off_and_resumed(config, at_step=3, monkeypatch=monkeypatch)) == curve(whole)


def test_a_weight_of_0_is_the_plain_run_to_the_byte(small_cache, small_config):
    config = with_overrides(small_config, {"train.max_steps": 3})
    plain = train_here(config, name="plain")
    other = train_here(with_overrides(config, {"loss.adversarial_weight": 0.0, "loss.adversarial_steps": 3}), name="zero")
    first, second = ((run.model_folder / "model.safetensors").read_bytes() for run in (plain, other))
    assert first == second


def test_sharding_is_refused_by_name(small_config, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    check_launch(ALONE, small_config)
    with pytest.raises(ConfigError, match=r"loss\.adversarial_weight under FSDP"):
        check_launch(ALONE, with_overrides(small_config, {"loss.adversarial_weight": 1.0}))


def test_bad_values_are_refused_by_name(small_config):
    for name, value in (("adversarial_weight", -1), ("adversarial_radius", 0), ("adversarial_steps", 4)):
        with pytest.raises(ConfigError, match=rf"loss\.{name}"):
            with_overrides(small_config, {f"loss.{name}": value})
