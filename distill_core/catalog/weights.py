"""What weight files say about themselves: names, shapes, types, metadata and checksums, without loading a weight."""

import json
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from ..errors import ModelError

SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8", "F8_E5M2": "float8"}

LONGEST_ARRAY = 512
"""Of longer arrays in a GGUF file (tokens, merges) only the length is kept."""

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


def read_gguf(path: Path) -> TensorList:
    """Metadata and tensor names of a GGUF file; no tensor is read. Seconds for a large vocabulary, so it is done once per file.

    Raises ModelError for a file that is not one.
    """
    if not path.is_file() or path.stat().st_size < 24:
        raise ModelError(f"model {path}: no such file, or an empty one. Give the path of a .gguf file.")
    return _read_gguf(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read_gguf(path: Path, _changed_ns: int) -> TensorList:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = reader.fields.items()
        metadata = {name: {"length": len(field.data)} if len(field.data) > LONGEST_ARRAY else field.contents() for name, field in fields}
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ModelError(
            f"model {path}: not a whole GGUF file ({error or type(error).__name__}). It is cut short, damaged or of an old version; "
            "download it again."
        ) from None
    dtypes: Counter[str] = Counter()
    for tensor in reader.tensors:
        dtypes[tensor.tensor_type.name] += int(tensor.n_elements)
    return TensorList({tensor.name: int(tensor.n_elements) for tensor in reader.tensors}, dtypes, metadata)
