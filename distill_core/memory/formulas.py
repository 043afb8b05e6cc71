"""Bytes of each part of a training step, from the model's sizes: weights, activations, logits and loss.

P: student parameters, N = micro-batch windows x window_tokens, V: vocabulary rows, D: hidden size, n: layers, H, G: attention and
key-value heads of width h, I: feed-forward width, K: stored entries, C: tokens per chunk of the head.

* weights 4P (float32, also under bf16 autocast), gradients 4P, AdamW 8P (two float32 moments; the fused optimizer makes no copies).
* activations, one layer: N (4 a D + w (2 h (H + E) + 2 h (H + G) r + m I) + 4 L) with a = 6 (10: Gemma, norms around both parts), E = H
  and L, the window, only for packed windows (the mask; keys and values repeated for it), else E = G and no L; r = 1 where query and key
  are normalised, else 0; m = 4 (2 without a gate); w = 4 (2 under bf16). Counted on a CPU with torch's saved_tensors_hooks
  (tests/memory counts again); attention scores are not among them: torch's fused attention recomputes them.
  Outside the layers: 4 N (4 D + 2 h). bf16 adds its copy of the weights, 2P.
  Activation checkpointing keeps 4 N D a layer and one layer in full.
* fused loss: chunk 4 C V, the head's gradient 4 V D, gradient of the hidden states 4 N D, teacher's entries 24 N K.
* dense loss: copies of N V float32 numbers (logits, log-softmax, gradient, scratch), see DENSE_COPIES.
"""

from ..catalog.model_facts import ModelFacts, belongs, family_word
from ..config import DistillConfig

DENSE_COPIES, DENSE_TEACHER_COPIES = 2.9, 5.0
"""Copies of N V numbers at the worst moment. Dense: measured on a CPU as 2.87 to 2.90 (logits or their log-softmax, gradient, scratch).
Online: both log-softmaxes and kl_div's three temporaries; keeping a name on either side's logits costs one more each."""

QK_NORM = ("qwen3", "qwen3moe", "gemma3", "gemma3text", "olmo2")
SANDWICH_NORM = ("gemma2", "gemma3", "gemma3text")
UNGATED = ("gpt2", "gptneox", "gptj", "phi", "opt", "bloom", "codegen", "falcon")
EXPERTS_AT_ONCE = 4
"""Experts that one token passes through, where the facts do not say."""


def layer_activation_bytes(facts: ModelFacts, *, window_tokens: int, packing: bool, bf16: bool) -> float:
    """Bytes that one layer keeps per token for its backward pass."""
    word = family_word(facts.architecture)
    narrow = 2 if bf16 else 4
    norms = 10 if word in SANDWICH_NORM else 6
    heads, kv_heads = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    feed_forward = facts.intermediate_size * (2 if belongs(facts.architecture, UNGATED) else 4)
    feed_forward *= min(facts.num_experts, EXPERTS_AT_ONCE) or 1
    attention = 2 * heads + 2 * (heads if packing else kv_heads) + (2 * (heads + kv_heads) if word in QK_NORM else 0)
    scores = 2 * facts.num_heads * window_tokens * 4 if word == "gemma2" else 0  # a softcap in the attention: torch's fused one cannot
    return 4 * norms * facts.hidden_size + narrow * (attention + feed_forward) + (4 * window_tokens if packing else 0) + scores


def activation_bytes(facts: ModelFacts, config: DistillConfig) -> float:
    """Bytes that a micro-batch keeps for its backward pass, the loss not counted."""
    train, text = config.train, config.text
    num_tokens = train.per_device_train_batch_size * text.window_tokens
    layer = layer_activation_bytes(facts, window_tokens=text.window_tokens, packing=text.packing, bf16=train.bf16)
    layers = layer + facts.num_layers * 4 * facts.hidden_size if train.activation_checkpointing else facts.num_layers * layer
    outside = 4 * (4 * facts.hidden_size + 2 * facts.head_dim)
    copied = train.bf16 and config.student.quantize is None
    return num_tokens * (layers + outside) + (2 * facts.num_parameters if copied else 0)


def chunk_tokens(config: DistillConfig, vocab_size: int, *, gpu: bool) -> int:
    """Tokens per chunk of the fused loss: as asked, else the loss's own rule (tests compare the two)."""
    if config.loss.chunk_tokens is not None:
        return config.loss.chunk_tokens
    if not gpu:
        return 512 if vocab_size <= 65536 else 256
    return max(256, min(2048, 2**30 // (4 * vocab_size) // 128 * 128))


def loss_bytes(facts: ModelFacts, config: DistillConfig, *, mode: str, gpu: bool) -> float:
    """Bytes of logits, their gradients and the teacher's entries, at the worst moment of the loss; the head's gradient is not in it."""
    num_tokens = config.train.per_device_train_batch_size * config.text.window_tokens
    rows = facts.vocab_size_config
    if mode != "offline fused":
        copies = DENSE_COPIES if mode == "offline dense" else DENSE_TEACHER_COPIES
        return num_tokens * rows * (4 * copies + (2 if config.train.bf16 else 0))
    chunk = min(chunk_tokens(config, rows, gpu=gpu), num_tokens)
    entries = config.loss.top_k or config.capture.top_k
    return 4 * chunk * rows + num_tokens * (4 * facts.hidden_size + 24 * entries)
