"""Heads: what the door leaves as it was, and what it refuses; test_architectures.py holds values and gradients of every family."""

import pytest
import torch
import transformers as tf

from distill_core.errors import ModelError
from distill_core.heads import HeadOps, head_inputs, probe_head
from distill_core.independence import check_independence

V = 61  # odd on purpose
SPECIAL = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2}
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {**SPECIAL, **WIDTHS, "num_hidden_layers": 2, "max_position_embeddings": 64, "pad_token_id": 0}
GPT2 = {**SPECIAL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

FAMILIES = {
    "llama": (tf.LlamaConfig(**SIZES), HeadOps()),
    "gemma2": (tf.Gemma2Config(**SIZES, final_logit_softcapping=30.0), HeadOps(logit_softcap=30.0)),
    "granite": (tf.GraniteConfig(**SIZES, logits_scaling=8.0), HeadOps(logit_scale=0.125)),
    "gpt2": (tf.GPT2Config(**GPT2), HeadOps()),
}


def tiny(config, dtype=torch.float32) -> torch.nn.Module:
    """A random model in eval mode whose head, bias included, is large enough that a softcap bends its logits."""
    torch.manual_seed(3)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight.mul_(20)
        if getattr(head, "bias", None) is not None:
            head.bias.normal_()
    return model


def ids(rows=2, length=12) -> torch.Tensor:
    return torch.randint(3, V, (rows, length), generator=torch.Generator().manual_seed(1))


def test_probe_in_bfloat16_still_finds_exact_constants():
    for family in ("gemma2", "granite", "llama"):
        config, expected = FAMILIES[family]
        assert probe_head(tiny(config, torch.bfloat16), V) == expected


def test_train_mode_with_gradient_checkpointing():
    model = tiny(FAMILIES["llama"][0])
    plain = head_inputs(model, input_ids=ids())
    plain.square().sum().backward()
    wanted = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    hidden = head_inputs(model, input_ids=ids())
    hidden.square().sum().backward()
    torch.testing.assert_close(hidden, plain)
    torch.testing.assert_close(model.model.layers[0].self_attn.q_proj.weight.grad, wanted)


def test_modes_and_head_are_put_back():
    model = tiny(FAMILIES["gpt2"][0]).train()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    probe_head(model, V)
    check_independence(model, V, packing=True, trained=True)
    assert [module.training for module in model.modules()] == before
    assert "forward" not in model.lm_head.__dict__
    assert model(input_ids=ids()).logits.shape == (2, 12, V)


def test_head_is_put_back_when_the_model_fails():
    model = tiny(FAMILIES["llama"][0])
    with pytest.raises(IndexError):
        head_inputs(model, input_ids=torch.tensor([[V + 5]]))
    assert "forward" not in model.lm_head.__dict__


def test_no_logits_are_built():
    widest = 0

    class Widest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal widest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.dim() == 3:
                widest = max(widest, result.shape[-1])
            return result

    model = tiny(FAMILIES["llama"][0])
    with Widest():
        head_inputs(model, input_ids=ids())
    assert widest == 48  # the feed-forward part; V = 61 never appears


class Odd(torch.nn.Module):
    """A model whose logits are changed by `after`, or whose hidden states are, between body and head."""

    def __init__(self, after):
        super().__init__()
        self.embed = torch.nn.Embedding(V, 8)
        self.lm_head = torch.nn.Linear(8, V, bias=False)
        self.after = after

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids):
        return tf.modeling_outputs.CausalLMOutput(logits=self.after(self.lm_head(self.embed(input_ids) * 3)))


def test_scale_and_cap_together():
    ops = probe_head(Odd(lambda logits: 7.5 * torch.tanh(0.25 * logits / 7.5)))
    assert ops.logit_scale == pytest.approx(0.25, rel=1e-5)
    assert ops.logit_softcap == pytest.approx(7.5, rel=1e-5)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (lambda logits: logits.clamp(min=-4.0), "neither a scale nor a softcap"),
        (lambda logits: logits.log_softmax(-1), "neither a scale nor a softcap"),
        (lambda logits: logits + 1.0, "neither a scale nor a softcap"),
        (lambda logits: logits[..., :-3], "logits 58"),
        (lambda logits: logits.masked_fill(logits.abs() < 0.005, -1e9), "neither|differ"),
    ],
)
def test_other_changes_of_logits_are_refused_by_name(after, words):
    with pytest.raises(ModelError, match=f"(?s)Odd.*({words})"):
        probe_head(Odd(after))


class OddHead(torch.nn.Linear):
    """A head that is more than its weight."""

    def __init__(self, change, **parameters):
        super().__init__(8, V, bias=False)
        self.change = change
        for name, value in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(value)))

    def forward(self, hidden):
        return self.change(super().forward(hidden))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (OddHead(lambda raw: raw, logit_scale=1.0), "more parameters than weight and bias"),
        (OddHead(lambda raw: 30 * torch.tanh(raw / 30)), "gives other values"),
        (OddHead(lambda raw: raw + 40), "gives other values"),
    ],
)
def test_a_head_that_does_more_than_a_product_is_refused(head, words):
    model = Odd(lambda logits: logits)
    model.lm_head = head
    with torch.no_grad():
        head.weight.mul_(1e-3)  # logits so small that a cap does not show in them
    with pytest.raises(ModelError, match=f"Odd.*OddHead.*{words}"):
        probe_head(model)


def test_rows_that_pad_the_vocabulary_may_be_cut_from_the_logits():
    model = Odd(lambda logits: 0.5 * logits[..., : V - 3])
    assert probe_head(model, V - 3) == HeadOps(0.5)
    with pytest.raises(ModelError, match=f"{V} rows but its logits {V - 3}"):
        probe_head(model)


def test_models_without_a_usable_head_are_refused():
    body = tf.LlamaModel(FAMILIES["llama"][0])
    with pytest.raises(ModelError, match="LlamaModel has no output head"):
        probe_head(body, V)
    adapted = Odd(lambda logits: logits)
    adapted.lm_head.base_layer = torch.nn.Identity()
    with pytest.raises(ModelError, match="adapter"):
        probe_head(adapted)
