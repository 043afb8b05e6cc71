"""The records of a cache folder: the frozen plan, one entry per shard, the manifest that completes it."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..config import Codec, HiddenCodec
from ..errors import CacheError
from .tail import ANCHORS

FORMAT: Literal[2] = 2
MADE_BY = "made_by.json"
"""In a cache that no capture made: {'words': 'Merge again', 'command': the command that does it}."""
UNALIGNED_ROWS = "translate.unaligned"
"""Field of a translated cache's fingerprint: 'hard' where rows that the teacher has not are the text's own next token alone."""
TRANSLATED = "translate.cache"
"""In the fingerprint of a cache in another tokenizer's tokens: the cache that it was made from (translate.py)."""
CHECKSUM = b',\n  "checksum": "'
FORMAT_IN = re.compile(rb'"format": (\d+)')
Merged = Literal["mixture", "pick", "join"]
R = TypeVar("R", bound="Record")


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    def to_json(self) -> str:
        """JSON whose last field is the sha256 of all before it, so that no flipped byte passes."""
        head = self.model_dump_json(indent=2).encode().removesuffix(b"\n}")
        return (head + CHECKSUM + _seal(head)).decode()


class Fingerprint(Record):
    """Everything that changes what the teacher says; two caches with the same fingerprint hold the same numbers."""

    fields: dict[str, str]
    """Dotted name to value: 'teacher.weights_sha256', 'tokenizer.vocabulary_sha256', 'text.windows_sha256', 'capture.top_k', …"""

    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()

    def differences(self, other: "Fingerprint") -> list[str]:
        """One line per field that differs, with both values; [] when they agree."""
        names = sorted(self.fields.keys() | other.fields.keys())
        return [
            f"{name}: {self.fields.get(name, 'absent')} there, {other.fields.get(name, 'absent')} now"
            for name in names
            if self.fields.get(name) != other.fields.get(name)
        ]


class ShardPlan(Record):
    name: str
    split: str
    first_window: int
    num_windows: int


class HiddenPlan(Record):
    """Which hidden states lie beside the entries, and how they are stored: columns of their own, read only by who asks for them."""

    layers: tuple[int, ...]
    """0: the embeddings; n: what layer n gives, the last one after the last norm."""
    codec: HiddenCodec
    """'float16', or 'int8' with a float32 scale for each row."""
    width: int
    """Numbers stored per layer and position."""
    projection: Literal["none", "orthonormal"]
    """How they were made from the whole state; see hidden_states.projection."""
    seed: int = 0
    """Of the projection."""

    def column(self, layer: int) -> str:
        return f"hidden_{layer}"

    def scale_column(self, layer: int) -> str:
        return f"hidden_{layer}_scale"

    @property
    def columns(self) -> tuple[str, ...]:
        scales = [self.scale_column(layer) for layer in self.layers] if self.codec == "int8" else []
        return (*(self.column(layer) for layer in self.layers), *scales)

    @property
    def words(self) -> str:
        """What a position holds, in words: 'layers 2, 4: 192 numbers each, float16'."""
        projected = ", projected" if self.projection == "orthonormal" else ""
        return f"layers {', '.join(map(str, self.layers))}: {self.width:,} numbers each{projected}, {self.codec}"

    @property
    def bytes_per_position(self) -> int:
        """In memory, as stored."""
        return len(self.layers) * (2 * self.width if self.codec == "float16" else self.width + 4)


class Plan(Record):
    """What will be captured, frozen before the first shard is written."""

    format: Literal[2] = FORMAT
    fingerprint: Fingerprint
    top_k: int
    num_exact: int | None = None
    """Of the top_k entries, so many are the most likely ones and the tail begins after them; the others are drawn from that tail, with
    the log of their weight in place of the log-probability. None: all are the most likely ones."""
    vocab_size: int
    """Real vocabulary: highest token id of the tokenizer + 1; padded head rows are outside."""
    window_tokens: int
    packing: bool
    """Whether windows hold several documents that do not see each other."""
    codec: Codec = "exact"
    """How the entries are stored; see codecs.py."""
    temperatures: tuple[float, ...] = ANCHORS
    """Where the tail's log-sum-exp and mean log-probability are stored; the entries' log-probabilities are natural logs at T = 1."""
    merged: Merged | None = None
    """How it was made of other caches (merging/); none: a teacher was captured."""
    hidden: HiddenPlan | None = None
    """Hidden states beside the entries; none: there are none."""
    convention: str = "row t of a window is the teacher's distribution of token t+1"
    shards: tuple[ShardPlan, ...]

    @property
    def num_ranked(self) -> int:
        """Entries that are the most likely ones."""
        return self.top_k if self.num_exact is None else self.num_exact

    @property
    def stored_words(self) -> str:
        """What a position holds, in words: 'top 100', 'top 50 and 50 drawn'."""
        return f"top {self.num_ranked}" + (f" and {self.top_k - self.num_ranked} drawn" if self.num_exact is not None else "")

    def sha256(self) -> str:
        """Of all fields; one that captured caches do not use does not change the sha256 of those that are there already."""
        unused = {name for name in ("merged", "hidden") if getattr(self, name) is None}
        return hashlib.sha256(self.model_dump_json(exclude=unused).encode()).hexdigest()


class ShardEntry(Record):
    """Vouches for one shard file."""

    name: str
    plan_sha256: str
    """The plan it was written for: a shard of another capture is not taken for ours, and ours outlive a damaged plan.json."""
    sha256: str
    num_bytes: int
    num_windows: int
    num_positions: int
    """Positions that carry a distribution, that is, trained or judged tokens."""
    num_text_bytes: int
    """UTF-8 bytes of text that those positions' tokens stand for."""
    sum_kept_mass: float
    sum_gold_logprob: float
    sum_entropy: float


class Teacher(Record):
    """What stays of the teacher when it has left memory."""

    model: str
    architecture: str
    num_parameters: int
    disk_bytes: int
    dtype: str
    num_layers: int | None = None
    hidden_size: int | None = None
    license: str | None = None
    generated_tokens_per_s: float | None = None
    first_token_s: float | None = None
    """Median wait from a prompt to its first token."""
    read_tokens_per_s: float | None = None
    """Speed of the capture, writing included, of rank 0 where several shared it; none where a resumed capture had nothing left to read."""
    prompt_ids: tuple[tuple[int, ...], ...] = ()
    prompts: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()


class Manifest(Record):
    format: Literal[2] = FORMAT
    plan: Plan
    entries: tuple[ShardEntry, ...]
    teacher: Teacher
    config: dict[str, Any]
    """The DistillConfig of the capture."""
    text: dict[str, Any] = Field(default_factory=dict)
    """How the text became windows: documents, duplicates left out, notes."""
    versions: dict[str, str] = Field(default_factory=dict)

    def entries_of(self, split: str) -> list[ShardEntry]:
        names = {shard.name for shard in self.plan.shards if shard.split == split}
        return [entry for entry in self.entries if entry.name in names]

    def num_windows(self, split: str) -> int:
        return sum(entry.num_windows for entry in self.entries_of(split))

    def num_positions(self, split: str) -> int:
        return sum(entry.num_positions for entry in self.entries_of(split))

    @property
    def all_positions(self) -> int:
        """Positions of both splits."""
        return sum(entry.num_positions for entry in self.entries)

    def mean(self, quantity: str, split: str) -> float:
        """Mean per position of 'kept_mass' (T = 1), 'gold_logprob' (nats) or 'entropy' (nats)."""
        entries = self.entries_of(split)
        return sum(getattr(entry, f"sum_{quantity}") for entry in entries) / max(1, self.num_positions(split))

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.entries)

    def sha256(self) -> str:
        """Names what the cache holds: the fingerprint and every shard's checksum; times and folders do not enter."""
        parts = [self.plan.fingerprint.sha256(), *(entry.sha256 for entry in self.entries)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_record(kind: type[R], path: Path, *, cache: str) -> R:
    """A record from its file. Raises CacheError if any byte of it is not as written, or it is of another format; FileNotFoundError."""
    again = f"Finished shards are kept. {make_again(path.parent if kind is not ShardEntry else path.parent.parent)}"
    raw = path.read_bytes()
    content = unsealed(raw)
    if content is None:
        found = FORMAT_IN.search(raw)
        if found and int(found[1]) != FORMAT:
            raise CacheError(
                f"cache {cache}: {path.name} is of format {int(found[1])}, this version reads {FORMAT}. "
                "Make it again under another name, or delete the folder."
            )
        raise CacheError(f"cache {cache}: {path.name} is damaged: its checksum does not fit. {again}")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CacheError(f"cache {cache}: {path.name} is not what this version writes ({where}: {first['msg'].lower()}). {again}") from None


def make_again(folder: Path) -> str:
    """What a person does to mend a cache, in words: whole shards are kept, damaged and missing ones made again."""
    try:
        made = json.loads((folder / MADE_BY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"Capture again, with the settings kept in the cache: python -m distill_core capture --resume {folder.name}"
    return f"{made['words']}: {made['command']}"


def unsealed(raw: bytes) -> bytes | None:
    """The JSON of a record without its checksum; none where that does not fit."""
    head, mark, rest = raw.rpartition(CHECKSUM)
    return head + b"\n}" if mark and rest == _seal(head) else None


def _seal(head: bytes) -> bytes:
    """What follows the mark of the checksum, to the end of the file."""
    return hashlib.sha256(head).hexdigest().encode() + b'"\n}\n'
