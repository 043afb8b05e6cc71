"""Small pretrained siblings of the built-in teacher: random weights, its tokenizer, in a folder."""

import torch
import transformers as tf

from distill_core import models

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "max_position_embeddings": 128,
}  # fmt: skip


def save_sibling(folder, kind=tf.Qwen3Config, **config):
    """The folder's name, for student.model."""
    tokenizer = models.load_tokenizer("builtin")
    torch.manual_seed(11)
    made = kind(**(SIZES | {"vocab_size": len(tokenizer)} | config))
    model = tf.AutoModelForCausalLM.from_config(made)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
