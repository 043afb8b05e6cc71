"""Heads: values and gradients against the model's own full logits, for tiny random models of many families."""

import pytest
import torch
import transformers as tf

from distill_core.errors import ModelError
from distill_core.heads import HeadOps, check_documents_kept_apart, head_inputs, probe_head, read_head

V = 61  # odd on purpose
SPECIAL = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2}
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {**SPECIAL, **WIDTHS, "num_hidden_layers": 2, "max_position_embeddings": 64, "pad_token_id": 0}
GPT2 = {**SPECIAL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

FAMILIES = {
    "llama": (tf.LlamaConfig(**SIZES), HeadOps()),
    "llama tied": (tf.LlamaConfig(**SIZES, tie_word_embeddings=True), HeadOps()),
    "qwen3": (tf.Qwen3Config(**SIZES), HeadOps()),
    "gemma2": (tf.Gemma2Config(**SIZES, final_logit_softcapping=30.0), HeadOps(logit_softcap=30.0)),
    "granite": (tf.GraniteConfig(**SIZES, logits_scaling=8.0), HeadOps(logit_scale=0.125)),
    "cohere": (tf.CohereConfig(**{k: v for k, v in SIZES.items() if k != "head_dim"}, logit_scale=0.0625), HeadOps(logit_scale=0.0625)),
    "gpt2": (tf.GPT2Config(**GPT2), HeadOps()),
    "phi": (tf.PhiConfig(**{k: v for k, v in SIZES.items() if k != "head_dim"}), HeadOps()),
    "gpt_neox": (tf.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k not in ("head_dim", "num_key_value_heads")}), HeadOps()),
    "olmo2": (tf.Olmo2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"}), HeadOps()),
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


def logits_by_hand(model, hidden, ops) -> torch.Tensor:
    head = read_head(model, ops)
    return ops.apply(torch.nn.functional.linear(hidden, head.weight_VD, head.bias_V))


@pytest.mark.parametrize("family", FAMILIES)
def test_probe_finds_what_follows_the_head_and_gives_the_same_logits(family):
    config, expected = FAMILIES[family]
    model = tiny(config)
    ops = probe_head(model, V)
    assert ops == expected  # exact constants, not near ones
    ours = logits_by_hand(model, head_inputs(model, input_ids=ids()), ops)
    torch.testing.assert_close(ours, model(input_ids=ids()).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_full_logits(family):
    config, ops = FAMILIES[family]
    model = tiny(config)

    def gradients(logits):
        model.zero_grad()
        torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), ids()[:, 1:].reshape(-1)).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}

    truth = gradients(model(input_ids=ids()).logits)
    ours = gradients(logits_by_hand(model, head_inputs(model, input_ids=ids()), ops))
    assert ours.keys() == truth.keys()
    scale = max(gradient.abs().max() for gradient in truth.values())
    for name, gradient in truth.items():
        assert (ours[name] - gradient).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_are_kept_apart(family):
    check_documents_kept_apart(tiny(FAMILIES[family][0]), V)


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
    check_documents_kept_apart(model, V)
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


@pytest.mark.parametrize(
    "config",
    [
        tf.MambaConfig(vocab_size=V, hidden_size=32, num_hidden_layers=2, state_size=4),
        tf.BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4),
    ],
    ids=["mamba", "bloom"],
)
def test_models_that_mix_documents_are_refused_for_packing(config):
    model = tiny(config)
    assert probe_head(model, V) == HeadOps()  # the head itself is served
    with pytest.raises(ModelError, match=r"(?s)(Mamba|Bloom)ForCausalLM.*text\.packing"):
        check_documents_kept_apart(model, V)


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


def test_models_without_a_usable_head_are_refused():
    body = tf.LlamaModel(FAMILIES["llama"][0])
    with pytest.raises(ModelError, match="LlamaModel has no output head"):
        probe_head(body, V)
    adapted = Odd(lambda logits: logits)
    adapted.lm_head.base_layer = torch.nn.Identity()
    with pytest.raises(ModelError, match="adapter"):
        probe_head(adapted)
