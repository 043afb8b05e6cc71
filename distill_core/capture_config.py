"""The section 'capture': what is kept of the teacher, and how it is read."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .section import FolderName, Positive, Section

Codec = Literal["exact", "packed"]
HiddenCodec = Literal["float16", "int8"]
Select = Literal["topk", "topk+sample"]


def _as_numbers(value: Any) -> Any:
    """'2,4' and 2 as a tuple of numbers; '' as none."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if isinstance(value, int) else value


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
    context: str | None = None
    """Instruction or examples that the teacher alone reads before every document, as they stand (before chats: a system message); the
    student learns to do without. The teacher reads them again for each document."""
    context_file: str | None = None
    """The same from a file: .txt, or .jsonl with one chat message ({'role', 'content'}) per line."""
    codec: Codec = "exact"
    """'exact': plain columns that any Parquet tool reads; 'packed': two thirds of the disk, log-probabilities in 255 steps a position."""
    hidden_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_as_numbers)] = ()
    """Layers of the teacher whose hidden states are kept beside the entries, such as 2,4: 0 is its embeddings, n what layer n gives (the
    last one after the last norm). Each takes disk for its whole width at every position. None: no states."""
    hidden_codec: HiddenCodec = "float16"
    """How hidden states are stored: 'float16'; 'int8': half of that, off by at most 1/254 of each state's largest number."""
    hidden_size: Positive | None = None
    """Numbers kept of each hidden state, by a fixed random orthonormal projection; none: all of them."""
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
        if self.context is not None and self.context_file is not None:
            raise ValueError("capture.context and capture.context_file are both given: give one of them")
        if self.context is not None and not self.context.strip():
            raise ValueError("capture.context is empty: write the instruction or the examples, or leave the option out")
        if list(self.hidden_layers) != sorted(set(self.hidden_layers)):
            raise ValueError(f"capture.hidden_layers {self.hidden_layers}: name each layer once, in rising order")
        if self.hidden_size is not None and not self.hidden_layers:
            raise ValueError(f"capture.hidden_size {self.hidden_size} is only read with capture.hidden_layers, which names none")
        if self.hidden_layers and (self.context or self.context_file):
            raise ValueError(
                "capture.hidden_layers with a context: the teacher reads other tokens than the student, and their states are not aligned. "
                "Leave one of them out"
            )
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
