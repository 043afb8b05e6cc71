"""What others published about the same three ways, to put beside our plan: Multiverse Computing, arXiv 2608.03796 and its blog post.

Known of their setting: teacher Llama 3.1 8B Instruct, a Llama of 3.2B parameters as the student, K = 100, one H200, windows of 8,192
tokens. Not known: batch, types of the weights and moments, whether activations were recomputed. `published_config` is our nearest setting.
"""

from dataclasses import dataclass
from typing import Literal

from ..config import DistillConfig, from_dict
from ..units import gib
from .prediction import Mode

SOURCE = "Multiverse Computing, arXiv 2608.03796"


@dataclass(frozen=True)
class PublishedPoint:
    """Peak of one training iteration, as published."""

    mode: Mode
    window_tokens: int
    gigabytes: float
    """1000³ bytes."""
    kind: Literal["published", "estimated"]
    """'estimated': computed by its authors, for it fitted no GPU."""
    step_s: float | None = None

    @property
    def gib(self) -> float:
        return gib(self.gigabytes * 1e9)


PUBLISHED = (
    PublishedPoint("online", 8192, 102.8, "published", 25.9),
    PublishedPoint("offline dense", 8192, 78.3, "published", 18.5),
    PublishedPoint("offline fused", 8192, 58.3, "published", 20.2),
    PublishedPoint("offline dense", 32768, 250.0, "estimated"),
    PublishedPoint("offline fused", 32768, 128.0, "published"),
)
"""The two at 32,768 tokens are rounded in the source ('roughly 250 GB', 'about 128 GB')."""


def published_config(window_tokens: int = 8192) -> DistillConfig:
    """Our nearest setting to theirs: their teacher, Llama 3.2 3B, K = 100, one window a step, bfloat16 autocast."""
    return from_dict(
        {
            "teacher": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
            "student": {"init": "pretrained", "model": "meta-llama/Llama-3.2-3B-Instruct"},
            "text": {"window_tokens": window_tokens, "packing": False},
            "capture": {"top_k": 100},
            "train": {"per_device_train_batch_size": 1, "bf16": True},
            "device": "cuda",
        }
    )
