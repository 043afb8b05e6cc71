"""The plan of a student with adapters, against the models that PEFT and bitsandbytes make."""

import pytest
import torch
import transformers as tf
from siblings import save_sibling

from distill_core import memory
from distill_core.adapters import quantization, with_adapter
from distill_core.catalog import facts
from distill_core.config import StudentConfig, from_dict
from distill_core.memory import prediction
from distill_core.memory.adapted import learned_parameters, weight_bytes
from distill_core.models import load_model


@pytest.mark.parametrize("targets", [None, ("q_proj", "down_proj")])
@pytest.mark.parametrize("kind", [tf.Qwen3Config, tf.LlamaConfig, tf.Qwen3MoeConfig])
def test_as_many_parameters_learn_as_planned(tmp_path, kind, targets):
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24} if kind is tf.Qwen3MoeConfig else {}
    folder = save_sibling(tmp_path / "sibling", kind, **experts)
    student = StudentConfig(init="pretrained", model=folder, lora_rank=3, lora_target_modules=targets and targets[: 1 if experts else 2])
    adapted = with_adapter(load_model(folder), student, seed=0)
    assert learned_parameters(facts(folder), student) == sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)


@pytest.mark.parametrize("bits", [None, "8bit", "4bit"])
def test_the_weights_take_as_much_as_planned(tmp_path, bits):
    folder = save_sibling(tmp_path / "sibling", hidden_size=256, intermediate_size=512, num_attention_heads=4, head_dim=64)
    student = StudentConfig(init="pretrained", model=folder, lora_rank=3, quantize=bits)
    how = quantization(student, torch.device("cpu")) if bits else None
    adapted = with_adapter(load_model(folder, dtype="float32", quantization=how), student, seed=0)
    held = sum(weight.numel() * weight.element_size() for weight in adapted.parameters())
    scales = [part.weight.quant_state for part in adapted.modules() if type(part).__name__ == "Linear4bit"]
    held += sum(each.absmax.numel() + 4 * each.state2.absmax.numel() for each in scales)
    assert weight_bytes(facts(folder), student) == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize("kind", [tf.LlamaConfig, tf.Qwen3Config, tf.GPTNeoXConfig, tf.Gemma3TextConfig])
def test_a_layer_keeps_what_is_planned_where_only_adapters_learn(tmp_path, kind):
    """The difference between three layers and two, counted as autograd keeps it, within 4 % of the formula."""
    folders = [save_sibling(tmp_path / str(layers), kind, num_hidden_layers=layers, num_key_value_heads=2) for layers in (2, 3)]
    student = StudentConfig(init="pretrained", model=folders[0], lora_rank=3)
    counted = [kept_bytes(with_adapter(load_model(folder), student, seed=0).get_base_model().base_model) for folder in folders]
    told = memory.layer_activation_bytes(facts(folders[0]), window_tokens=48, packing=False, autocast=False, student=student)
    assert told == pytest.approx((counted[1] - counted[0]) / 96, rel=0.04)


def kept_bytes(body) -> int:
    """What autograd keeps of two windows of 48 tokens, weights left out."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*body.parameters(), *body.buffers()]}
    kept: dict[int, torch.Tensor] = {}  # the tensors are held: their addresses must not be used again

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        body.train()(input_ids=torch.arange(96).view(2, 48) % 90, use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_adapters_take_gradients_and_optimizer_out_of_the_plan(tmp_path):
    folder = save_sibling(tmp_path / "sibling")
    known = facts(folder)
    plain, adapted = (
        prediction.peak_parts(known, known, from_dict({"student": {"init": "pretrained", "model": folder, **more}}), gpu=True)[
            "offline fused"
        ]
        for more in ({}, {"lora_rank": 2})
    )
    learned = 4 * learned_parameters(known, StudentConfig(init="pretrained", model=folder, lora_rank=2))
    assert plain["optimizer"] == 8 * known.num_parameters and adapted["optimizer"] == 2 * learned
    assert adapted["student weights"] == plain["student weights"] + learned
    assert plain["gradients"] >= 4 * known.vocab_size_config * known.hidden_size > adapted["gradients"], "no gradient of the head"
