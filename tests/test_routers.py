"""The routers' load-balancing loss: whose weight it has, and that a step's micro-batches share it by their tokens."""

import io

import pytest
import torch
import transformers as tf
from architectures import SERVED, tiny
from siblings import save_sibling
from steps import capture_here, train_here

from distill_core import metrics, models
from distill_core.batches import model_inputs, to_tensors
from distill_core.cache import open_cache
from distill_core.config import with_overrides
from distill_core.errors import ConfigError
from distill_core.losses import IGNORE_INDEX
from distill_core.routers import has_router_loss, router_loss_weight, router_words
from distill_core.runs import create_run
from distill_core.worker import execute

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
BALANCED = {"output_router_logits": True, "router_aux_loss_coef": 0.05}


def test_the_weight_is_the_models_own_unless_one_is_asked_for():
    model = tiny("mixtral", SERVED["mixtral"])
    assert router_loss_weight(model, None) == 0.0
    assert "output_router_logits" in router_words(model, 0.0)
    assert router_loss_weight(model, 0.02) == 0.02
    model.config.output_router_logits = True
    assert router_loss_weight(model, None) == model.config.router_aux_loss_coef == 0.001
    assert router_loss_weight(model, 0.0) == 0.0
    assert "0.001 x the routers' load-balancing loss is added" in router_words(model, 0.001)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "doge"])
def test_a_weight_for_a_model_without_such_a_loss_is_refused(family):
    model = tiny(family, SERVED[family])
    assert not has_router_loss(model)
    assert router_loss_weight(model, None) == 0.0 == router_loss_weight(model, 0.0)
    assert router_words(model, 0.0) is None
    with pytest.raises(ConfigError, match=r"router_loss_weight 0\.1: student \w+ForCausalLM computes no load-balancing loss"):
        router_loss_weight(model, 0.1)


def sibling_of_experts(config, tmp_path, **own):
    folder = save_sibling(tmp_path / "experts", tf.Qwen3MoeConfig, **EXPERTS, **own)
    return with_overrides(config, {"student.init": "pretrained", "student.model": folder, "train.max_steps": 1})


def router_loss_by_hand(config, cache):
    """Mean over the step's micro-batches, weighted by their tokens, of what transformers returns as aux_loss."""
    model = models.load_model(config.student.model, dtype="float32").train()
    size = config.train.per_device_train_batch_size
    windows = cache.order("train", seed=config.train.seed, epoch=0)[: size * config.train.gradient_accumulation_steps]
    total, tokens = 0.0, 0
    for first in range(0, len(windows), size):
        rows = to_tensors(cache.rows("train", windows[first : first + size]))
        inputs = {"input_ids": rows["input_ids"]}
        if cache.packing:
            inputs["position_ids"] = rows["position_ids"]
        else:
            inputs["attention_mask"] = (rows["position_ids"] >= torch.arange(rows["position_ids"].shape[1])).long()
        count = int((rows["labels"] != IGNORE_INDEX).sum())
        total += count * model(**inputs, use_cache=False, output_router_logits=True).aux_loss.item()
        tokens += count
    return total / tokens


@pytest.mark.parametrize("packing", [True, False])
def test_a_step_adds_it_once_however_many_micro_batches(small_cache, small_config, tmp_path, packing):
    config = sibling_of_experts(small_config, tmp_path, **BALANCED)
    config = with_overrides(config, {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4})
    if not packing:
        config = with_overrides(config, {"text.packing": False, "capture.name": "alone"})
        capture_here(config)
    run = train_here(config, cache=config.capture.name)
    row = metrics.read(run.metrics_path)[-1]
    assert row["router_loss"] == pytest.approx(router_loss_by_hand(config, open_cache(config.capture.name)), rel=1e-5)
    assert row["loss"] == pytest.approx(row["kl"] + 0.05 * row["router_loss"], rel=1e-6)


def test_it_moves_the_routers_and_nothing_is_added_when_the_config_is_silent(small_cache, small_config, tmp_path):
    silent, screen = create_run("train", sibling_of_experts(small_config, tmp_path / "silent"), inputs={"cache": "small"}), io.StringIO()
    execute(silent, screen=screen)
    assert "router_loss" not in metrics.read(silent.metrics_path)[-1]
    assert "--loss.router_loss_weight 0.001" in screen.getvalue()
    strong = with_overrides(sibling_of_experts(small_config, tmp_path / "strong"), {"loss.router_loss_weight": 10.0})
    row = metrics.read(train_here(strong, name="strong").metrics_path)[-1]
    before = metrics.read(silent.metrics_path)[-1]
    assert row["kl"] == pytest.approx(before["kl"], rel=1e-6)
    assert row["grad_norm"] > 1.01 * before["grad_norm"]


def test_padding_is_masked_only_where_experts_count_tokens():
    batch = {"input_ids": torch.tensor([[5, 6, 7, 0]]), "position_ids": torch.tensor([[0, 1, 2, 0]])}
    assert set(model_inputs(batch, packing=False)) == {"input_ids"}
    assert model_inputs(batch, packing=False, mask_padding=True)["attention_mask"].tolist() == [[1, 1, 1, 0]]
    assert set(model_inputs(batch, packing=True, mask_padding=True)) == {"input_ids", "position_ids"}
