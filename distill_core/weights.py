"""What weight files say about themselves: names, shapes, types, metadata and checksums, without loading a weight."""

import hashlib
import json
import mmap
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from .errors import ModelError

SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8", "F8_E5M2": "float8"}

# ggml's tensor types, from the format's public definition (ggml.h, enum ggml_type)
GGML_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K"},
    **{13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S"},
    **{22: "IQ2_S", 23: "IQ4_XS", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
GGUF_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
GGUF_STRING, GGUF_ARRAY = 8, 9
LONGEST_ARRAY = 512
"""Longer arrays (tokens, merges) are skipped: only their length is kept."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class TensorList:
    """Names with their numbers of elements, and how many elements there are of each type."""

    num_elements: dict[str, int]
    dtypes: Counter[str]
    metadata: dict[str, Any]
    """GGUF only: its key-value pairs; a long array is {'length': n}."""

    @property
    def num_parameters(self) -> int:
        return sum(self.num_elements.values())

    @property
    def main_dtype(self) -> str:
        return self.dtypes.most_common(1)[0][0] if self.dtypes else "unknown"


def weight_names(names: Iterable[str], source: str) -> list[str]:
    """The safetensors files of a model among its file names.

    Raises ModelError where there are none: other formats are pickles, which can run any code when they are opened.
    """
    top = [name for name in names if "/" not in name]
    found = sorted(name for name in top if name.endswith(".safetensors") and not name.startswith(("consolidated", "adapter_")))
    if found:
        return found
    if any(name.startswith("adapter_") for name in top):
        raise ModelError(
            f"model {source} is an adapter, not a whole model. Merge it into its base model, save that, and give the new folder."
        )
    pickles = sorted(name for name in top if name.endswith(PICKLES))
    if pickles:
        raise ModelError(
            f"model {source} has its weights only as {pickles[0]}, a pickle, which could run any code when opened. "
            "Pick a model with .safetensors files, or convert this one yourself with save_pretrained."
        )
    ggufs = sorted(name for name in top if name.endswith(".gguf"))
    if ggufs:
        raise ModelError(f"model {source} holds GGUF files ({ggufs[0]}). Download one and give the path of that file.")
    raise ModelError(f"model {source} has no .safetensors weights. Check the name, or pick another model.")


def _is_buffer(name: str, shape: list[int]) -> bool:
    """Masks and rotary tables that older checkpoints of GPT-2 and GPT-NeoX carry beside their weights; transformers leaves them aside."""
    return name.endswith(("masked_bias", "rotary_emb.inv_freq")) or (len(shape) == 4 and name.endswith((".attn.bias", ".attention.bias")))


def read_safetensors(paths: Iterable[Path]) -> TensorList:
    """The headers of safetensors files: an 8-byte length and JSON each. Raises ModelError for a file that is not one."""
    elements: dict[str, int] = {}
    dtypes: Counter[str] = Counter()
    for path in paths:
        try:
            with open(path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > path.stat().st_size:
                    raise ModelError(f"weights {path}: the file is cut short or is not safetensors. Download it again.")
                header = json.loads(file.read(length))
        except (struct.error, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ModelError(f"weights {path}: not a safetensors file ({error}). Download it again.") from None
        for name, tensor in header.items():
            if name != "__metadata__" and not _is_buffer(name, tensor["shape"]):
                elements[name] = prod(tensor["shape"])
                dtypes[SAFETENSORS_DTYPES.get(tensor["dtype"], tensor["dtype"].lower())] += elements[name]
    return TensorList(elements, dtypes, {})


class _Cursor:
    """Little-endian values, one after another, from a mapped file."""

    def __init__(self, data: mmap.mmap):
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        return self.bytes(self.scalar("Q")).decode("utf-8", errors="replace")

    def bytes(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise struct.error("the file ends too early")
        self.at += length
        return self.data[self.at - length : self.at]

    def value(self, kind: int) -> Any:
        if kind == GGUF_STRING:
            return self.string()
        if kind != GGUF_ARRAY:
            return self.scalar(GGUF_SCALARS[kind])
        inner, length = self.scalar("I"), self.scalar("Q")
        if length <= LONGEST_ARRAY:
            return [self.value(inner) for _ in range(length)]
        if inner in GGUF_SCALARS:
            self.bytes(length * struct.calcsize(f"<{GGUF_SCALARS[inner]}"))
        else:
            for _ in range(length):
                self.value(inner)
        return {"length": length}


def read_gguf(path: Path) -> TensorList:
    """Metadata and tensor names of a GGUF file (version 2 or 3, the format of llama.cpp), in well under a second.

    Raises ModelError for a file that is not one. Tensor data are not read.
    """
    if not path.is_file() or path.stat().st_size < 24:
        raise ModelError(f"model {path}: no such file, or an empty one. Give the path of a .gguf file.")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        try:
            magic, version = cursor.bytes(4), cursor.scalar("I")
            if magic != b"GGUF" or version not in (2, 3):
                raise ModelError(
                    f"model {path}: not a GGUF file of version 2 or 3 (starts with {magic!r}, version {version}). Download it again."
                )
            num_tensors, num_pairs = cursor.scalar("Q"), cursor.scalar("Q")
            metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_pairs)}
            elements: dict[str, int] = {}
            dtypes: Counter[str] = Counter()
            for _ in range(num_tensors):
                name = cursor.string()
                elements[name] = prod(cursor.scalar("Q") for _ in range(cursor.scalar("I")))
                kind = cursor.scalar("I")
                cursor.scalar("Q")  # offset of its data
                dtypes[GGML_TYPES.get(kind, f"type {kind}")] += elements[name]
        except (struct.error, KeyError, MemoryError) as error:
            raise ModelError(
                f"model {path}: the GGUF header cannot be read ({error}). The file is cut short or damaged; download it again."
            ) from None
    return TensorList(elements, dtypes, metadata)


def sha256(path: Path) -> str:
    """Checksum of a file's bytes, as hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
