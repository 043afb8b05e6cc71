"""What is known about a model without its weights: sizes, vocabulary, memory, licence."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..config import Dtype

Kind = Literal["builtin", "hub", "folder", "gguf"]

DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

# Names that transformers' configs use for one thing; the first that is present counts.
FIELDS = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab_size_config": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions", "max_sequence_length"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_size": ("moe_intermediate_size",),
}

# Two matrices in the feed-forward part, not three (no gate): by model_type or architecture name.
UNGATED = ("gpt2", "gptneox", "gptneo", "gptj", "gptbigcode", "phi", "opt", "bloom", "codegen", "falcon", "starcoder2", "mpt", "nemotron")
# transformers ties the head to the embedding for these unless their config says otherwise.
TIED_UNLESS_SAID = ("gpt2", "gemma", "bloom", "opt", "falcon", "cohere", "gptbigcode", "mpt", "mamba")
LEARNED_POSITIONS = ("gpt2", "gptbigcode", "opt", "gptneo")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts before weights; None: not known."""

    source: str
    kind: Kind
    architecture: str
    """Class of transformers, such as 'LlamaForCausalLM'; for GGUF the file's own word, such as 'llama'."""
    num_parameters: int
    """Every number in the model, a head that is tied to the embedding counted once."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size_config: int
    """Rows of the embedding, padding rows included."""
    vocab_size_tokenizer: int | None = None
    """Highest token id + 1."""
    tied_head: bool
    """The output head is the embedding matrix."""
    max_positions: int | None = None
    num_experts: int = 0
    """0: not a mixture of experts."""
    dtype_on_disk: str = "unknown"
    """Type of most weights: 'float32', 'bfloat16', 'float16', or a GGUF type such as 'Q4_K'."""
    disk_bytes: int | None = None
    """Weight files only."""
    license: str | None = None
    gated: bool | None = None
    """The owner wants terms accepted before the weights may be downloaded."""
    commit: str | None = None
    """Of a Hugging Face model."""
    notes: tuple[str, ...] = field(default=())
    """What a user should know before choosing it, a sentence each."""

    @property
    def memory_bytes(self) -> dict[Dtype, int]:
        """Weights alone, by the type they are held in."""
        return {dtype: self.num_parameters * size for dtype, size in DTYPE_BYTES.items()}

    def noting(self, *notes: str) -> "ModelFacts":
        """The same facts with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def dtype_in_memory(facts: ModelFacts, asked: Dtype | None, device: str) -> Dtype:
    """Type of the teacher's weights in memory: as asked; else float32 on a CPU, on a GPU as stored (bfloat16 for quantized files)."""
    if asked is not None:
        return asked
    if device.startswith("cpu"):
        return "float32"
    return facts.dtype_on_disk if facts.dtype_on_disk in DTYPE_BYTES else "bfloat16"


def family_word(architecture: str) -> str:
    """'GPTNeoXForCausalLM', 'gpt_neox' and 'gpt-neox' are all 'gptneox'."""
    word = architecture.lower().replace("_", "").replace("-", "")
    for ending in ("forcausallm", "lmheadmodel", "forconditionalgeneration"):
        word = word.removesuffix(ending)
    return word


def belongs(architecture: str, families: tuple[str, ...]) -> bool:
    """Is this architecture one of the families, versions included ('phi' holds 'Phi', not the gated 'Phi3')?"""
    word = family_word(architecture)
    return word in families or ("gemma" in families and word.startswith("gemma")) or ("cohere" in families and word.startswith("cohere"))


def shape_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes from a transformers config.json, whatever names its family uses; keys of ModelFacts. Missing sizes are left out."""
    inner = config.get("text_config")
    flat = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    shape: dict[str, Any] = {}
    for name, words in FIELDS.items():
        value = next((flat[word] for word in words if flat.get(word) is not None), None)
        if isinstance(value, list):  # per layer
            value = max((entry for entry in value if isinstance(entry, int)), default=None)
        if isinstance(value, int) and value > 0:
            shape[name] = value
    if "hidden_size" in shape:
        shape.setdefault("intermediate_size", 4 * shape["hidden_size"])
    if "num_heads" in shape:
        shape.setdefault("num_kv_heads", 1 if flat.get("multi_query") else shape["num_heads"])
        if "hidden_size" in shape:
            shape.setdefault("head_dim", shape["hidden_size"] // shape["num_heads"])
    if "num_experts" in shape and "expert_size" in shape:
        shape["intermediate_size"] = shape["expert_size"]
    shape.pop("expert_size", None)
    architecture = (config.get("architectures") or [config.get("model_type", "unknown")])[0]
    tied = flat.get("tie_word_embeddings")
    return {**shape, "architecture": architecture, "tied_head": belongs(architecture, TIED_UNLESS_SAID) if tied is None else bool(tied)}


def layer_parameters(facts: ModelFacts) -> int:
    """Numbers in one layer: four attention products, two or three feed-forward ones (per expert), two norms, no biases."""
    attention = facts.hidden_size * facts.head_dim * (2 * facts.num_heads + 2 * facts.num_kv_heads)
    matrices = 2 if belongs(facts.architecture, UNGATED) else 3
    feed_forward = matrices * facts.hidden_size * facts.intermediate_size * max(1, facts.num_experts)
    return attention + feed_forward + facts.hidden_size * (2 + facts.num_experts)


def dense_parameters(facts: ModelFacts) -> int:
    """Numbers in the whole model from its sizes; within 1 % for the families in data/models.csv (tested), biases left out."""
    embeddings = facts.vocab_size_config * facts.hidden_size * (1 if facts.tied_head else 2)
    positions = (facts.max_positions or 0) * facts.hidden_size if belongs(facts.architecture, LEARNED_POSITIONS) else 0
    return embeddings + positions + facts.num_layers * layer_parameters(facts) + facts.hidden_size
