"""The sections 'teacher' and 'text': who speaks, and of what."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .section import Positive, Section

BUILTIN = "builtin"
"""The name of the teacher and of the stories that ship with this package."""

Dtype = Literal["float32", "bfloat16", "float16"]


class TeacherConfig(Section):
    model: str = BUILTIN
    """'builtin', a Hugging Face id such as 'Qwen/Qwen3-8B', a local folder, a local .gguf file, or 'run:NAME': a student made here."""
    revision: str | None = None
    """Commit or tag of a Hugging Face model; the commit that was used is written into the cache either way."""
    dtype: Dtype | None = None
    """Type of the weights in memory; none: as stored on a GPU, float32 on a CPU. Logits are float32 always."""


class TextConfig(Section):
    source: str = BUILTIN
    """'builtin', a local .txt, .jsonl or .parquet file, a Hugging Face dataset id, or 'written:NAME': what a model wrote here."""
    subset: str | None = None
    """Name of a dataset's configuration, where it has several."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    revision: str | None = None
    """Commit or tag of a Hugging Face dataset."""
    column: str = "text"
    """Column with the text, or with chat messages (a list of {'role', 'content'})."""
    image_column: str | None = None
    """Column with the image of each text, for a teacher that sees images: the file's bytes, or its path (from the text's own folder). Local
    .parquet and .jsonl only, and one pair to a window (packing off)."""
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
    synthetic: str | None = None
    """Written text to train on as well, such as 'written:NAME'; what is held out is always of text.source."""
    synthetic_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the training windows that are of text.synthetic, where there is one; 1: all."""

    @model_validator(mode="after")
    def _one_pair_to_a_window(self) -> Self:
        if self.image_column is not None and self.packing:
            raise ValueError("text.image_column needs text.packing false: one pair of image and text to a window")
        return self
