"""Bytes of each part of a training step, from the model's sizes: weights, activations, logits and loss.

P: student parameters, N = micro-batch windows x window_tokens, M: positions of the loss, N less one a window, V: vocabulary rows, D:
hidden size, n: layers, H, G: attention and key-value heads of width h, I: feed-forward width, K: stored entries, C: tokens per chunk of
the head, at most M and evened out as the loss does it.

* weights 4P (float32, also under autocast), gradients 4P, AdamW 8P (two float32 moments; the fused optimizer makes no copies).
* activations, one layer: N (4 a D + w (2 h (H + E) + 2 h (H + G) r + m I) + 4 L) with a = 6 (10: Gemma, norms around both parts), E = H
  and L, the window, only for packed windows (the mask; keys and values repeated for it), else E = G and no L; r = 1 where query and key
  are normalised, else 0; m = 4 (2 without a gate); w = 4 (2 under autocast). Counted on a CPU with torch's saved_tensors_hooks
  (tests/memory counts again); attention scores are not among them: torch's fused attention recomputes them.
  A frozen norm keeps its input only, so adapters take 1 of a for each norm and half of r away, and add their own rank-wide outputs.
  Outside the layers: 4 N (4 D + 2 h), with adapters 4 N (3 D + 2 h). Autocast adds its copy of the weights, 2P.
  Activation checkpointing keeps 4 N D a layer, and one layer in full while its gradients are computed: the logits are gone by then.
* gradients inside one layer at their most: w N 2 I (I without a gate), more than what that layer has let go.
* fused loss: chunk 4 C V (kept from step to step), the head's gradient 4 V D, gradient of the hidden states 4 M D, teacher's entries
  12 M K, and the four float64 matrices of its floor, 32 M K, which are gone in the backward pass.
* dense loss: copies of M V float32 numbers, see DENSE_COPIES.
"""

import math

from ..catalog.model_facts import ModelFacts, belongs, family_word
from ..config import DistillConfig, StudentConfig
from .adapted import adapter_outputs

DENSE_COPIES, ONLINE_COPIES = 3, 5
"""Matrices of M x V numbers at the worst moment, by torch's operations. Dense, in the backward pass: the log-softmax, the gradient that
gather makes of its K columns, the gradient of the logits. Online, in the forward pass: both log-softmaxes, and kl_div's exp(teacher),
teacher - student and their product. Keeping a name on either side's logits costs one more each."""

QK_NORM = ("qwen3", "qwen3moe", "gemma3", "gemma3text", "olmo2")
SANDWICH_NORM = ("gemma2", "gemma3", "gemma3text")
UNGATED = ("gpt2", "gptneox", "gptj", "phi", "opt", "bloom", "codegen", "falcon")
EXPERTS_AT_ONCE = 4
"""Experts that one token passes through, where the facts do not say."""


def layer_activation_bytes(
    facts: ModelFacts, *, window_tokens: int, packing: bool, autocast: bool, student: StudentConfig | None = None
) -> float:
    """Bytes that one layer keeps per token for its backward pass. `student`: where it may learn through adapters."""
    word = family_word(facts.architecture)
    narrow = 2 if autocast else 4
    is_frozen = student is not None and student.lora_rank is not None
    norms = 10 if word in SANDWICH_NORM else 6
    normalised = 2 if word in QK_NORM else 0
    if is_frozen and not belongs(facts.architecture, UNGATED):  # torch's LayerNorm keeps one input either way
        norms, normalised = norms - (4 if word in SANDWICH_NORM else 2), normalised // 2
    heads, kv_heads = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    feed_forward = _feed_forward_width(facts) * (2 if belongs(facts.architecture, UNGATED) else 4)
    attention = 2 * heads + 2 * (heads if packing else kv_heads) + normalised * (heads + kv_heads)
    adapters = adapter_outputs(facts, student) if student is not None else 0
    scores = 2 * facts.num_heads * window_tokens * 4 if word == "gemma2" else 0  # a softcap in the attention: torch's fused one cannot
    mask = 4 * window_tokens if packing else 0
    return 4 * norms * facts.hidden_size + narrow * (attention + feed_forward + adapters) + mask + scores


def _feed_forward_width(facts: ModelFacts) -> int:
    return facts.intermediate_size * (min(facts.num_experts, EXPERTS_AT_ONCE) or 1)


def activation_bytes(facts: ModelFacts, config: DistillConfig) -> float:
    """Bytes that a micro-batch keeps for its backward pass while its loss is computed, the loss not counted."""
    each = 4 * facts.hidden_size if config.train.activation_checkpointing else _layer(facts, config)
    body = (
        3 if config.student.lora_rank else 4
    )  # the last norm's input, what it scaled (if it learns), its output, the positions that count
    outside = 4 * (body * facts.hidden_size + 2 * facts.head_dim)
    return _num_tokens(config) * (facts.num_layers * each + outside) + _copied_bytes(facts, config)


def backward_bytes(facts: ModelFacts, config: DistillConfig, *, layers_below: int) -> float:
    """Bytes of activations and of gradients of activations while one layer's gradients are computed, others still waiting below it."""
    layer = _layer(facts, config)
    each = 4 * facts.hidden_size if config.train.activation_checkpointing else layer
    own = layer + (4 * facts.hidden_size if config.train.activation_checkpointing else 0)
    gradients = (2 if _is_autocast(config) else 4) * _feed_forward_width(facts) * (1 if belongs(facts.architecture, UNGATED) else 2)
    return _num_tokens(config) * (layers_below * each + own + gradients + 8 * facts.head_dim) + _copied_bytes(facts, config)


def _layer(facts: ModelFacts, config: DistillConfig) -> float:
    return layer_activation_bytes(
        facts,
        window_tokens=config.text.window_tokens,
        packing=config.text.packing,
        autocast=_is_autocast(config),
        student=config.student,
    )


def _is_autocast(config: DistillConfig) -> bool:
    return config.train.bf16 or config.train.fp16


def _copied_bytes(facts: ModelFacts, config: DistillConfig) -> int:
    """Autocast's copy of the weights."""
    return 2 * facts.num_parameters if _is_autocast(config) and config.student.quantize is None else 0


def _num_tokens(config: DistillConfig) -> int:
    return config.train.per_device_train_batch_size * config.text.window_tokens


def _num_positions(config: DistillConfig) -> int:
    """Tokens that have a next one."""
    return config.train.per_device_train_batch_size * (config.text.window_tokens - 1)


def chunk_tokens(config: DistillConfig, vocab_size: int, *, gpu: bool) -> int:
    """Tokens per chunk of the fused loss: as asked, else the loss's own rule (tests compare the two)."""
    if config.loss.chunk_tokens is not None:
        return config.loss.chunk_tokens
    if not gpu:
        return 512 if vocab_size <= 65536 else 256
    return max(256, min(2048, 2**30 // (4 * vocab_size) // 128 * 128))


def chunk_bytes(facts: ModelFacts, config: DistillConfig, *, gpu: bool) -> int:
    """The fused loss's buffer of one chunk, which the trainer keeps from step to step."""
    positions, rows = _num_positions(config), facts.vocab_size_config
    chunks = max(1, math.ceil(positions / chunk_tokens(config, rows, gpu=gpu)))
    return 4 * math.ceil(positions / chunks) * rows  # no short last one


def loss_bytes(facts: ModelFacts, config: DistillConfig, *, mode: str, gpu: bool) -> float:
    """Bytes of logits, their gradients and the teacher's entries, at the worst moment of the loss; the head's gradient is not in it."""
    positions = _num_positions(config)
    if mode != "offline fused":
        copies = DENSE_COPIES if mode == "offline dense" else ONLINE_COPIES
        return positions * facts.vocab_size_config * (4 * copies + (2 if _is_autocast(config) else 0))
    return chunk_bytes(facts, config, gpu=gpu) + positions * (4 * facts.hidden_size + 44 * _entries(config))


def state_widths(teacher: ModelFacts, config: DistillConfig) -> tuple[int, int]:
    """(layer pairs, numbers stored of each) of the hidden states that are learned from; (0, 0) where none are."""
    pairs = len(config.loss.layer_map or config.capture.hidden_layers) if config.loss.hidden_weight else 0
    return (pairs, config.capture.hidden_size or teacher.hidden_size) if pairs else (0, 0)


def state_bytes(teacher: ModelFacts, student: ModelFacts, config: DistillConfig) -> float:
    """Bytes of hidden states while they are compared: the stored ones of a micro-batch, and for each pair the student's rows, their
    projection and the teacher's, in float32."""
    pairs, width = state_widths(teacher, config)
    if not pairs:
        return 0
    stored = len(config.capture.hidden_layers) * (2 * width if config.capture.hidden_codec == "float16" else width + 4)
    return _num_positions(config) * (stored + pairs * 4 * (student.hidden_size + 2 * width))


def left_bytes(facts: ModelFacts, config: DistillConfig, *, mode: str, gpu: bool) -> float:
    """What is left of it while the layers' gradients are computed."""
    positions, kept = _num_positions(config), 0 if mode == "online" else 12 * _entries(config)
    chunk = chunk_bytes(facts, config, gpu=gpu) if mode == "offline fused" else 0
    return chunk + positions * (4 * facts.hidden_size + kept)


def _entries(config: DistillConfig) -> int:
    return config.loss.top_k or config.capture.top_k
