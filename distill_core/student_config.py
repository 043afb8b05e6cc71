"""The section 'student': how it begins, and which of its weights learn."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from .section import Positive, Section

StudentInit = Literal["fresh", "prune_layers", "pretrained"]
LayerChoice = Literal["even", "importance"]
Quantize = Literal["8bit", "4bit"]


class StudentConfig(Section):
    init: StudentInit = "fresh"
    """'fresh': random small model; 'prune_layers': the teacher with layers removed; 'pretrained': a smaller sibling."""
    model: str | None = None
    """'pretrained': a Hugging Face id, a local folder, a .gguf file or 'run:NAME', with the teacher's tokenizer."""
    revision: str | None = None
    """Commit or tag of that model."""
    num_layers: Positive | None = None
    """'fresh' and 'prune_layers': layers of the student; none: half of the teacher's."""
    keep_layers: tuple[int, ...] | None = None
    """'prune_layers': which of the teacher's layers stay, counted from 0; none: first, last and evenly between."""
    layer_choice: LayerChoice = "even"
    """'prune_layers': 'importance' measures on a few training windows which layers can go, one after the other; 'even': first, last and
    evenly between."""
    hidden_size: Positive | None = None
    """'fresh': width; none: half of the teacher's."""
    num_attention_heads: Positive | None = None
    """'fresh': attention heads; none: so that a head is as wide as the teacher's, or near it."""
    intermediate_size: Positive | None = None
    """Width of the feed-forward part. 'fresh': none is in the teacher's proportion; 'prune_layers': that many of each layer's units stay,
    those that matter most on a few training windows; none: all."""
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

    @model_validator(mode="after")
    def _is_cut(self) -> Self:
        if self.layer_choice == "importance" and self.init != "prune_layers":
            raise ValueError(
                f"student.layer_choice 'importance' chooses among the teacher's layers: init 'prune_layers', not '{self.init}'"
            )
        if self.layer_choice == "importance" and self.keep_layers is not None:
            raise ValueError(f"student.keep_layers {list(self.keep_layers)} and layer_choice 'importance' both choose the layers; drop one")
        return self

    @property
    def is_measured(self) -> bool:
        """Whether what stays of the teacher is measured on its cache, before the student is built."""
        return self.init == "prune_layers" and (self.layer_choice == "importance" or self.intermediate_size is not None)

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
