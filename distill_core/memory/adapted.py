"""Students that learn through LoRA adapters: how many parameters learn, and what the frozen ones take.

r: rank, D: hidden size, h: head width, H, G: attention and key-value heads, I: feed-forward width. An adapter on a layer from a to b
numbers has r (a + b) parameters; fused experts and routers get none.
"""

from ..catalog.model_facts import UNGATED, ModelFacts, belongs, layer_parameters
from ..config import StudentConfig

BITS_4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes a number in NF4: 4 bits, a scale in 8 bits for 64 of them, a float32 for 256 scales (arXiv:2305.14314, section 3)."""


def learned_parameters(facts: ModelFacts, student: StudentConfig) -> int:
    """Parameters with a gradient and optimizer state: all, or those of the adapters."""
    if student.lora_rank is None:
        return facts.num_parameters
    return facts.num_layers * student.lora_rank * sum(a + b for a, b in _adapted_layers(facts, student).values())


def adapter_outputs(facts: ModelFacts, student: StudentConfig) -> int:
    """Numbers per token that one layer's adapters keep for their backward pass: r of each; 0 without adapters."""
    return 0 if student.lora_rank is None else student.lora_rank * len(_adapted_layers(facts, student))


def _adapted_layers(facts: ModelFacts, student: StudentConfig) -> dict[str, tuple[int, int]]:
    sizes = _linear_layers(facts)
    named = {name: size for name, size in sizes.items() if name in (student.lora_target_modules or sizes)}
    return named or sizes  # names of another family: as if all were meant


def weight_bytes(facts: ModelFacts, student: StudentConfig) -> float:
    """The student's weights in memory: float32, the linear layers in fewer bits where quantized, and the adapters."""
    adapters = 4 * learned_parameters(facts, student) if student.lora_rank else 0
    bytes_each = {"8bit": 1.0, "4bit": BITS_4, None: 4.0}[student.quantize]
    return 4 * facts.num_parameters - (4 - bytes_each) * _linear_numbers(facts) + adapters


def merging_bytes(facts: ModelFacts, student: StudentConfig) -> float:
    """What a look at the held-out text takes for a moment, on the CPU, where the adapters are merged into the weights to be kept."""
    return 4 * _linear_numbers(facts) if student.lora_rank else 0


def _linear_layers(facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of one layer's linear parts, by the names that most families use."""
    heads, kv_heads, width = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim, facts.hidden_size
    attention = {"q_proj": (width, heads), "k_proj": (width, kv_heads), "v_proj": (width, kv_heads), "o_proj": (heads, width)}
    if facts.num_experts:
        return attention
    up, down = (width, facts.intermediate_size), (facts.intermediate_size, width)
    gate = {} if belongs(facts.architecture, UNGATED) else {"gate_proj": up}
    return attention | gate | {"up_proj": up, "down_proj": down}


def _linear_numbers(facts: ModelFacts) -> int:
    return min(facts.num_parameters, facts.num_layers * layer_parameters(facts))
