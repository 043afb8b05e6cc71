"""One config for the app, a notebook, the command line and every run's `config.json`; bad values never get past it."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from .errors import ConfigError, did_you_mean
from .faults import explain
from .section import FolderName, Positive, Section, Share
from .train_config import TrainConfig

BUILTIN = "builtin"
"""The name of the teacher and of the stories that ship with this package."""

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]
Tail = Literal["bucket", "renormalize", "drop"]
Impl = Literal["auto", "reference", "chunked", "triton", "tiled"]
Dtype = Literal["float32", "bfloat16", "float16"]
Codec = Literal["exact", "packed"]
Select = Literal["topk", "topk+sample"]
StudentInit = Literal["fresh", "prune_layers", "pretrained"]
Quantize = Literal["8bit", "4bit"]


class TeacherConfig(Section):
    model: str = BUILTIN
    """'builtin', a Hugging Face id such as 'Qwen/Qwen3-8B', a local folder, or a local .gguf file."""
    revision: str | None = None
    """Commit or tag of a Hugging Face model; the commit that was used is written into the cache either way."""
    dtype: Dtype | None = None
    """Type of the weights in memory; none: as stored on a GPU, float32 on a CPU. Logits are float32 always."""


class TextConfig(Section):
    source: str = BUILTIN
    """'builtin', a local .txt, .jsonl or .parquet file, or a Hugging Face dataset id."""
    subset: str | None = None
    """Name of a dataset's configuration, where it has several."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    revision: str | None = None
    """Commit or tag of a Hugging Face dataset."""
    column: str = "text"
    """Column with the text, or with chat messages (a list of {'role', 'content'})."""
    assistant_only_loss: bool = True
    """Chat messages: learn only what the assistant says."""
    window_tokens: Annotated[int, Field(ge=8)] = 256
    """Tokens in one window: the length of every training sequence."""
    packing: bool = True
    """Several documents share a window and do not see each other; off: one document (or piece of one) to a window, padded."""
    num_windows: Positive = 400
    """Windows to train on. More text: a larger cache, a longer capture, a better student."""
    num_heldout_windows: Positive = 64
    """Windows of other documents, never trained on, for judging."""
    seed: int = 0
    """Which built-in stories; other sources are read in their own order."""


class CaptureConfig(Section):
    name: FolderName | None = None
    """Name of the cache folder; none: made from teacher, text and their fingerprint."""
    top_k: Annotated[int, Field(ge=1)] = 100
    """Entries kept per position; the mass of the rest is kept too, as one number at each stored temperature."""
    select: Select = "topk"
    """'topk': the most likely entries; 'topk+sample': num_exact of those, and the rest of top_k drawn from the tail with weights, so that
    the expected gradient is that of the whole vocabulary. Temperature 1 and forward KL only."""
    num_exact: Positive | None = None
    """'topk+sample': most likely entries kept as they are; none: half of top_k."""
    codec: Codec = "exact"
    """'exact': plain columns that any Parquet tool reads; 'packed': two thirds of the disk, log-probabilities in 255 steps a position."""
    batch_windows: Positive = 8
    """Windows in one teacher forward pass."""
    head_chunk_tokens: Positive = 512
    """Tokens per chunk of the teacher's head. Peak logits: head_chunk_tokens x vocabulary x 4 bytes, twice."""
    windows_per_shard: Positive = 200
    """Windows in one Parquet shard: what a killed capture loses at most."""
    num_samples: Annotated[int, Field(ge=0)] = 4
    """Continuations the teacher writes while it is in memory, for reading beside the student's."""
    sample_tokens: Positive = 60
    """Length of each continuation."""

    @model_validator(mode="after")
    def _can_be_stored(self) -> Self:
        if self.select == "topk" and self.num_exact is not None:
            raise ValueError(f"capture.num_exact {self.num_exact} is only read with capture.select 'topk+sample', not 'topk'")
        if self.select == "topk+sample" and self.codec == "packed":
            raise ValueError("capture.select 'topk+sample' needs capture.codec 'exact': 'packed' holds entries in falling order only")
        if self.select == "topk+sample" and not 1 <= self.num_ranked < self.top_k:
            raise ValueError(f"capture.num_exact {self.num_ranked} must be at least 1 and below capture.top_k {self.top_k}")
        return self

    @property
    def num_ranked(self) -> int:
        """Entries that are the most likely ones; what is above them is drawn."""
        return self.top_k if self.select == "topk" else self.num_exact or self.top_k // 2


class StudentConfig(Section):
    init: StudentInit = "fresh"
    """'fresh': random small model; 'prune_layers': the teacher with layers removed; 'pretrained': a smaller sibling."""
    model: str | None = None
    """'pretrained': a Hugging Face id, a local folder or a .gguf file with the teacher's tokenizer."""
    revision: str | None = None
    """Commit or tag of that model."""
    num_layers: Positive | None = None
    """'fresh' and 'prune_layers': layers of the student; none: half of the teacher's."""
    keep_layers: tuple[int, ...] | None = None
    """'prune_layers': which of the teacher's layers stay, counted from 0; none: first, last and evenly between."""
    hidden_size: Positive | None = None
    """'fresh': width; none: half of the teacher's."""
    num_attention_heads: Positive | None = None
    """'fresh': attention heads; none: so that a head is as wide as the teacher's, or near it."""
    intermediate_size: Positive | None = None
    """'fresh': width of the feed-forward part; none: in the teacher's proportion."""
    lora_rank: Positive | None = None
    """Learn through LoRA adapters of this rank, all other weights frozen: less memory for gradients and optimizer; none: learn all."""
    lora_alpha: Positive | None = None
    """LoRA: what the adapters add is multiplied by lora_alpha / lora_rank; none: twice the rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """LoRA: share of the adapters' inputs that is dropped while learning."""
    lora_target_modules: tuple[str, ...] | None = None
    """LoRA: names of the linear layers that get an adapter, such as q_proj; none: all but the head."""
    quantize: Quantize | None = None
    """LoRA on a 'pretrained' student: its frozen weights in 8 or 4 bits (QLoRA), a quarter or an eighth of the memory."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.init == "pretrained" and self.model is None:
            raise ValueError("init 'pretrained' needs student.model: a Hugging Face id, a local folder or a .gguf file")
        if self.init != "pretrained" and self.model is not None:
            raise ValueError(f"student.model '{self.model}' is only read with init 'pretrained', not '{self.init}'")
        if self.keep_layers is not None and self.init != "prune_layers":
            raise ValueError(f"student.keep_layers is only read with init 'prune_layers', not '{self.init}'")
        if self.keep_layers is not None and list(self.keep_layers) != sorted(set(self.keep_layers)):
            raise ValueError(f"student.keep_layers must rise without repeats, got {list(self.keep_layers)}")
        if self.keep_layers is not None and self.num_layers not in (None, len(self.keep_layers)):
            raise ValueError(f"student.num_layers {self.num_layers} contradicts the {len(self.keep_layers)} keep_layers; give one of them")
        return self

    @field_validator("lora_target_modules", mode="before")
    @classmethod
    def _as_names(cls, given: Any) -> Any:
        """'q_proj,v_proj', as the command line gives it, as two names."""
        return [name.strip() for name in given.split(",")] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _adapts(self) -> Self:
        asked = [name for name in ("lora_alpha", "lora_dropout", "lora_target_modules", "quantize") if getattr(self, name)]
        if self.lora_rank is None and asked:
            raise ValueError(f"student.{asked[0]} {getattr(self, asked[0])} is only read with student.lora_rank; 16 is a usual rank")
        if self.lora_rank is not None and self.init == "fresh":
            raise ValueError("student.lora_rank needs weights worth keeping: init 'pretrained' or 'prune_layers', not 'fresh'")
        if self.quantize is not None and self.init != "pretrained":
            raise ValueError(f"student.quantize '{self.quantize}' loads stored weights: it needs init 'pretrained', not '{self.init}'")
        return self


class LossConfig(Section):
    kl_weight: Share = 1.0
    """Weight of the divergence from the teacher, T² included in it."""
    ce_weight: Share = 0.0
    """Weight of cross-entropy with the text's own next token (hard labels)."""
    temperature: Annotated[float, Field(ge=0.5, le=8.0)] = 1.0
    """Softmax temperature of both sides of the divergence; the cache holds what any T in [0.5, 8] needs."""
    divergence: Divergence = "forward_kl"
    """'forward_kl': cover all the teacher considers likely; 'reverse_kl': prefer its favourites; 'jsd': between the two."""
    jsd_weight: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """'jsd' only: the teacher's share of the mixture that both are compared with; near 0 like forward KL, near 1 like reverse KL."""
    z_loss_weight: Share = 0.0
    """Weight of the squared log-sum-exp of the student's logits, which keeps them small; 1e-4 is usual, 0 leaves it out."""
    router_loss_weight: Share | None = None
    """Mixtures of experts: weight of the routers' load-balancing loss, which is added; none: as the student's own config says
    (router_aux_loss_coef where output_router_logits is on, else 0)."""
    tail: Tail = "bucket"
    """The mass outside the top K: 'bucket' keeps it as one entry (unbiased), 'renormalize' spreads it over the K, 'drop' leaves it out."""
    top_k: Positive | None = None
    """Use fewer entries than the cache holds; what is cut goes to the tail."""
    impl: Impl = "auto"
    """Which implementation computes it."""
    chunk_tokens: Positive | None = None
    """Tokens per chunk of the head; none: chosen from the vocabulary. Peak logits: chunk_tokens x vocabulary x 4 bytes."""

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if self.kl_weight == 0 and self.ce_weight == 0:
            raise ValueError("loss.kl_weight and loss.ce_weight are both 0: nothing would be learned. Set one of them above 0")
        return self


class DistillConfig(Section):
    teacher: TeacherConfig = Field(default_factory=TeacherConfig)
    text: TextConfig = Field(default_factory=TextConfig)
    capture: CaptureConfig = Field(default_factory=CaptureConfig)
    student: StudentConfig = Field(default_factory=StudentConfig)
    loss: LossConfig = Field(default_factory=LossConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    device: str = "auto"
    """'auto' (the first GPU, else the CPU), 'cpu', 'cuda' or 'cuda:1'."""

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"device '{device}' is not one of 'auto', 'cpu', 'cuda', 'cuda:1'")
        return device

    def to_json(self) -> str:
        return self.model_dump_json(indent=2) + "\n"


def from_dict(values: dict[str, Any]) -> DistillConfig:
    """A checked config from nested plain values. Raises ConfigError for unknown keys and bad values."""
    try:
        return DistillConfig(**values)
    except ValidationError as error:
        raise ConfigError(explain(DistillConfig, error)) from None


def read_config(path: str | Path) -> DistillConfig:
    """A config from a .json file. Raises ConfigError if it is missing, not JSON, or not a config."""
    path = Path(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"config {path}: no such file. Write one with: python -m distill_core demo --print-config > {path.name}"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: not JSON ({error}). Compare it with: python -m distill_core demo --print-config") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"config {path}: holds a {type(values).__name__}, not an object with the sections {', '.join(DistillConfig.model_fields)}."
        )
    try:
        return from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"config {path}: {error}") from None


def without_unset_steps(train: TrainConfig) -> dict[str, Any]:
    """The section as plain values, without the steps that follow its length: a new max_steps sets them anew. One rule for all screens."""
    return train.model_dump(exclude=set(train.unset_steps()))


def with_overrides(config: DistillConfig, pairs: dict[str, Any]) -> DistillConfig:
    """The config with dotted keys such as 'loss.temperature' replaced. Raises ConfigError."""
    values = config.model_dump()
    if "train.max_steps" in pairs and str(pairs["train.max_steps"]) != str(config.train.max_steps):
        values["train"] = without_unset_steps(config.train)
    for dotted, value in pairs.items():
        *sections, key = dotted.split(".")
        place = values
        for section in sections:
            if not isinstance(place.get(section), dict):
                raise ConfigError(f"no section '{section}' in '{dotted}'.{did_you_mean(section, place)}")
            place = place[section]
        place[key] = value
    return from_dict(values)


def hard_label_twin(config: DistillConfig) -> DistillConfig:
    """The equal-budget comparison: same student, steps and data, learning from the text's own next tokens only."""
    name = f"{config.train.name}-hard-labels" if config.train.name else None
    return config.changed(loss=config.loss.changed(kl_weight=0.0, ce_weight=1.0), train=config.train.changed(name=name))
