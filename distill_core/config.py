"""One config for the app, a notebook, the command line and every run's `config.json`; bad values never get past it.

Each section has a file of its own: text_config (teacher, text), capture_config, student_config, loss_config, train_config,
chain_config, write_config.
"""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from .capture_config import CaptureConfig, Codec, HiddenCodec, Select
from .chain_config import ChainConfig, ChainKind
from .errors import ConfigError, did_you_mean
from .faults import explain
from .loss_config import Divergence, Impl, LossConfig, Tail
from .section import Section
from .student_config import Quantize, StudentConfig, StudentInit
from .text_config import BUILTIN, Dtype, TeacherConfig, TextConfig
from .train_config import TrainConfig
from .write_config import WriteConfig

__all__ = [
    "BUILTIN", "CaptureConfig", "ChainConfig", "ChainKind", "Codec", "DistillConfig", "Divergence", "Dtype", "HiddenCodec", "Impl",
    "LossConfig", "Quantize", "Select", "StudentConfig", "StudentInit", "Tail", "TeacherConfig", "TextConfig", "TrainConfig",
    "WriteConfig", "from_dict", "hard_label_twin", "read_config", "with_overrides", "without_unset_steps",
]  # fmt: skip


class DistillConfig(Section):
    teacher: TeacherConfig = Field(default_factory=TeacherConfig)
    text: TextConfig = Field(default_factory=TextConfig)
    capture: CaptureConfig = Field(default_factory=CaptureConfig)
    student: StudentConfig = Field(default_factory=StudentConfig)
    loss: LossConfig = Field(default_factory=LossConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    chain: ChainConfig = Field(default_factory=ChainConfig)
    write: WriteConfig = Field(default_factory=WriteConfig)
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
    return config.changed(
        loss=config.loss.changed(
            kl_weight=0.0,
            ce_weight=1.0,
            adversarial_weight=0.0,
            hidden_weight=0.0,
            layer_map=(),
            positions="all",
            position_share=1.0,
        ),
        train=config.train.changed(name=name),
    )
