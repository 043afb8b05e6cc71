"""What a position may depend on, where a plain comparison of hidden states would see nothing."""

import pytest
import torch
import transformers as tf
from architectures import SERVED, V, tiny

from distill_core.errors import ModelError
from distill_core.independence import check_documents_kept_apart, check_gradient_paths, check_reads_forward_only


def test_a_convolution_at_its_initialisation_mixes_documents_by_less_than_rounding_may():
    config = tf.Lfm2MoeConfig(**SERVED_SIZES, layer_types=["conv", "full_attention"], num_dense_layers=1)
    torch.manual_seed(3)
    model = tf.AutoModelForCausalLM.from_config(config).eval()
    check_documents_kept_apart(model, V)  # blind to it
    with pytest.raises(ModelError, match=r"Lfm2MoeForCausalLM does not keep documents .* gradients .* text\.packing"):
        check_gradient_paths(model, V, packing=True)
    check_gradient_paths(model, V, packing=False)


SERVED_SIZES = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


class Averaging(torch.nn.Module):
    """Each position also takes `share` of the mean over all positions."""

    def __init__(self, share):
        super().__init__()
        self.embed, self.lm_head, self.share = torch.nn.Embedding(V, 8), torch.nn.Linear(8, V, bias=False), share

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, position_ids=None):
        hidden = self.embed(input_ids)
        return tf.modeling_outputs.CausalLMOutput(logits=self.lm_head(hidden + self.share * hidden.mean(1, keepdim=True)))


def test_reading_ahead_is_seen_in_values_when_strong_and_in_gradients_when_faint():
    for share in (0.0, 1e-6, 0.1):
        model = Averaging(share)
        for check, sees in ((check_reads_forward_only, share > 1e-3), (check_gradient_paths, share > 0)):
            arguments = {"packing": False} if check is check_gradient_paths else {}
            if sees:
                with pytest.raises(ModelError, match="Averaging reads what comes after a position"):
                    check(model, V, **arguments)
            else:
                check(model, V, **arguments)


def test_gradients_of_parameters_and_hooks_are_left_alone():
    model = tiny("llama", SERVED["llama"])
    check_gradient_paths(model, V, packing=True)
    assert all(weight.grad is None for weight in model.parameters())
    assert not model.get_input_embeddings()._forward_hooks
