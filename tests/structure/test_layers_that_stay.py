"""Teachers whose layers cannot be taken out one by one are refused by name, before anything is measured."""

import pytest
import torch
import transformers as tf

from distill_core import students
from distill_core.config import from_dict
from distill_core.errors import ModelError
from distill_core.structure import choose

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 8}
MORE = {"num_key_value_heads": 2, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 3}
INPUTS = {"vocab_size_per_layer_input": 61, "bos_token_id": 1, "eos_token_id": 2}
GEMMA_3N = {"laurel_rank": 4, "activation_sparsity_pattern": None}
SHARED, OWN_INPUT = "its last 2 layers read keys and values", "an input of its own for every layer"
REFUSED = [
    (tf.Gemma3nTextConfig, GEMMA_3N | {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}, SHARED),
    (tf.Gemma3nTextConfig, GEMMA_3N | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8}, OWN_INPUT),
    (tf.Gemma4TextConfig, {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}, SHARED),
    (tf.Gemma4TextConfig, {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8}, OWN_INPUT),
    (tf.Gemma4TextConfig, {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}, "sizes of their own"),
]


def saved(kind, values, folder):
    torch.manual_seed(0)
    tf.AutoModelForCausalLM.from_config(kind(**SIZES, **MORE, **INPUTS, **values)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("kind", "values", "words"), REFUSED)
def test_layers_that_hang_together_are_refused(kind, values, words, tmp_path, small_cache):
    source = saved(kind, values, tmp_path / "model")
    student = {"init": "prune_layers", "keep_layers": [0, 1, 2, 4, 5]}
    config = {"teacher": {"model": source}, "text": {"window_tokens": 16}}
    with pytest.raises(ModelError, match=words):
        students.build_student(from_dict(config | {"student": student}), tokenizer=None, real_vocab_size=61)
    said = []
    measured = from_dict(config | {"student": {"init": "prune_layers", "num_layers": 3, "layer_choice": "importance"}})
    with pytest.raises(ModelError, match=words):
        choose(measured, small_cache, torch.device("cpu"), said.append)
    assert said == [], "before anything is measured"
