"""The section 'train': the fields most runs touch, under Hugging Face's names, and a place for all others of transformers."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .hf_arguments import checked_arguments
from .section import FolderName, Positive, Section, Share

Scheduler = Literal[
    "cosine", "linear", "constant", "constant_with_warmup", "cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "polynomial", "inverse_sqrt", "warmup_stable_decay", "reduce_lr_on_plateau", "greedy",
]  # fmt: skip
FOLLOWS_LOOKS = ("reduce_lr_on_plateau", "greedy")
Reporter = Literal["tensorboard", "wandb", "trackio", "mlflow", "comet_ml"]


def _as_names(value: Any) -> Any:
    """'wandb,trackio' as two names; 'none' as none."""
    if not isinstance(value, str):
        return value
    return [name.strip() for name in value.split(",") if name.strip() not in ("", "none")]


def steps_that_follow(max_steps: int) -> dict[str, int]:
    """Looks and warm-up of a run of this length, where nobody set them: ten looks, a twelfth of the steps to warm up."""
    return {"eval_steps": max(1, max_steps // 10), "warmup_steps": max(1, max_steps // 12)}


class TrainConfig(Section):
    name: FolderName | None = None
    """Name of the run; none: made from date and time."""
    max_steps: Positive = 600
    """Optimizer steps."""
    per_device_train_batch_size: Positive = 8
    """Windows in one micro-batch."""
    gradient_accumulation_steps: Positive = 1
    """Micro-batches in one optimizer step; the result is the same as one large batch."""
    auto_find_batch_size: bool = False
    """Where memory does not suffice, smaller micro-batches and more of them: the windows of a step, and so the result, stay the same."""
    train_sampling_strategy: Literal["random", "group_by_length"] = "random"
    """'group_by_length': windows of like length in a step, so that less padding is computed where text.packing is off."""
    learning_rate: Annotated[float, Field(gt=0)] = 5e-3
    """Peak learning rate. The default suits the tiny fresh student; pretrained students want about 1e-5 to 1e-4."""
    lr_scheduler_type: Scheduler = "cosine"
    """How the learning rate falls; train.lr_scheduler_kwargs sets the details of those that have some."""
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    """Steps over which the learning rate rises; where it is not set, a twelfth of max_steps."""
    weight_decay: Share = 0.05
    """AdamW's decay."""
    max_grad_norm: Share = 1.0
    """Longer gradients are shortened to this; 0: never."""
    bf16: bool = False
    """Train under bfloat16 autocast; the loss stays in float32."""
    fp16: bool = False
    """Train under float16 autocast with a scaled loss, on a CUDA GPU only; where the GPU knows bfloat16, bf16 is the calmer choice."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    eval_steps: Positive = 60
    """Steps between looks at the held-out text, whose best weights become the student; where it is not set, a tenth of max_steps."""
    metric_for_best_model: Literal["heldout_nll", "heldout_kl"] = "heldout_nll"
    """What 'best' means: how well the text is predicted, or how close the teacher is."""
    early_stopping_patience: Positive | None = None
    """Looks in a row without a new best after which the run ends; none: it goes on to max_steps."""
    early_stopping_threshold: Share = 0.0
    """Nats per token by which a look must beat the best one to count against early_stopping_patience."""
    save_steps: Positive = 100
    """Steps between checkpoints, from which a killed run goes on."""
    save_total_limit: Positive = 2
    """Checkpoints kept; older ones are deleted."""
    save_total_gib: Annotated[float, Field(gt=0)] | None = None
    """Disk that checkpoints may take, the one being written included; fewer are kept where it is tight. None: what is free."""
    seed: int = 0
    """Student initialisation and order of the data."""
    report_to: Annotated[tuple[Reporter, ...], BeforeValidator(_as_names)] = ()
    """Trackers that get every row of metrics.jsonl too, such as 'tensorboard' or 'wandb,trackio'; they must be installed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Any other field of transformers.TrainingArguments; written train.NAME, like those above."""

    @model_validator(mode="before")
    @classmethod
    def _gather_arguments(cls, values: Any) -> Any:
        """Names that are transformers' own, not ours, find their place in `arguments`. Raises ConfigError for names of neither."""
        if not isinstance(values, dict) or not isinstance(values.get("arguments", {}), dict):
            return values
        ours = {name: value for name, value in values.items() if name in cls.model_fields}
        others = {**ours.get("arguments", {}), **{name: value for name, value in values.items() if name not in ours}}
        return ours | {"arguments": checked_arguments(others, ours=cls.model_fields)} if others else ours

    @model_validator(mode="before")
    @classmethod
    def _follow_the_length(cls, values: Any) -> Any:
        """Looks and warm-up that were not set fit into the run, however short."""
        length = str(values.get("max_steps")) if isinstance(values, dict) else ""
        return steps_that_follow(int(length)) | values if length.isdecimal() else values

    def unset_steps(self) -> list[str]:
        """Of the names in steps_that_follow those that have its value: they were not chosen, and follow a new max_steps."""
        return [name for name, steps in steps_that_follow(self.max_steps).items() if getattr(self, name) == steps]

    def length_warning(self) -> str:
        """What is wrong with the warm-up of a run that ends in it; '' where nothing is."""
        knows_warmup = self.lr_scheduler_type not in ("constant", *FOLLOWS_LOOKS)
        if self.warmup_steps < self.max_steps or "warmup_steps" in self.unset_steps() or not knows_warmup:
            return ""
        return (
            f"train.warmup_steps {self.warmup_steps} is not below train.max_steps {self.max_steps}: the learning rate rises to the end "
            f"and never falls. Leave it out (then it is {steps_that_follow(self.max_steps)['warmup_steps']}), or train longer."
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.bf16 and self.fp16:
            raise ValueError("train.bf16 and train.fp16 are both set: choose one type for autocast")
        doubled = sorted(self.arguments.keys() & type(self).model_fields.keys())
        if doubled:
            raise ValueError(f"train.arguments holds {doubled[0]}, which is a field of its own: write train.{doubled[0]}")
        return self
