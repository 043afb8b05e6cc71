"""Facts about a model before its weights: a name becomes sizes, vocabulary, memory and licence. No torch, no transformers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import BUILTIN
from ..errors import ModelError
from ..paths import RUN, data_dir, local_path
from ..room import check_source
from . import hub
from .listed import listed_facts, models_table, row_facts, table, with_notes
from .model_facts import DTYPE_BYTES, Kind, ModelFacts, dense_parameters, dtype_in_memory, shape_from_config
from .weights import SAFETENSORS_DTYPES, read_gguf, read_safetensors, weight_names

__all__ = [
    "DTYPE_BYTES",
    "Kind",
    "ModelFacts",
    "builtin_folder",
    "config_facts",
    "dtype_in_memory",
    "facts",
    "listed_facts",
    "models_table",
    "resolve",
]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HEAD_NAMES = ("lm_head.weight", "embed_out.weight", "output.weight", "language_model.lm_head.weight")
SIZES = ("num_layers", "hidden_size", "num_heads", "vocab_size_config")


def builtin_folder() -> Path:
    """The teacher that ships with the package."""
    return data_dir() / "teacher"


def resolve(source: str) -> Kind:
    """What kind of thing a model's name is. Raises ModelError for a path that is not there and a name that cannot be an id."""
    check_source(source)  # in a room a path outside its folders is refused
    path = local_path(source)
    if not source.strip():
        raise ModelError("the model has no name. Give 'builtin', a Hugging Face id, a folder or a .gguf file.")
    if source == BUILTIN:
        return "builtin"
    if source.lower().endswith(".gguf"):
        if path.is_file():
            return "gguf"
        raise ModelError(f"model {source}: no such file. Give the path of a .gguf file on this machine.")
    if path.is_dir():
        return "folder"
    if source.startswith(f"{RUN}:"):
        raise ModelError(f"model {source}: there is no run of that name with a student. See: python -m distill_core runs list")
    if path.is_file():
        raise ModelError(f"model {source} is a file, but not a .gguf one. Give a .gguf file, or the folder that holds config.json.")
    if HUB_ID.fullmatch(source):
        return "hub"
    raise ModelError(f"model '{source}': no such folder, and not a Hugging Face id (owner/name). Correct the path or the name.")


def facts(source: str, revision: str | None = None) -> ModelFacts:
    """What is known about a model without loading it.

    Local files are read (headers only). For a Hugging Face id the Hub is asked and config and tokenizer, a few MB, are downloaded; where
    it cannot be reached, an earlier download or data/models.csv answers, and a note says so. Raises ModelError in words.
    """
    kind = resolve(source)
    if kind == "builtin":
        return replace(_folder_facts(source, builtin_folder(), "builtin"), license="Apache-2.0", gated=False)
    if kind == "folder":
        return _folder_facts(source, local_path(source), "folder")
    if kind == "gguf":
        return _gguf_facts(source, local_path(source))
    return _hub_facts(source, revision)


def _read_json(path: Path, source: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"model {source}: {path.name} is missing in {path.parent}. Give a folder that save_pretrained wrote.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"model {source}: {path.name} is not JSON ({error}). Save or download the model again.") from None
    if not isinstance(values, dict):
        raise ModelError(f"model {source}: {path.name} holds a {type(values).__name__}, not an object. Save or download the model again.")
    return values


def _checked_shape(config: dict[str, Any], source: str) -> dict[str, Any]:
    """Sizes, or ModelError: not a language model, or one with sizes under names that are not known here."""
    architectures = config.get("architectures") or []
    if architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in architectures):
        raise ModelError(
            f"model {source} is a {architectures[0]}, not a causal language model. "
            "Pick one that predicts the next token (its class ends in ForCausalLM)."
        )
    shape = shape_from_config(config)
    absent = [name for name in SIZES if name not in shape]
    if absent:
        raise ModelError(f"model {source}: its config ({shape['architecture']}) does not give {', '.join(absent)}. Pick another model.")
    return shape


def _tokenizer_size(folder: Path) -> int | None:
    """Highest token id + 1 from tokenizer.json; None where there is no such file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    return max(token_of_id(_read_json(path, str(folder))), default=-1) + 1


def token_of_id(tokenizer: dict[str, Any]) -> dict[int, str]:
    """Id -> token, added ones included, of what a tokenizer.json holds."""
    tokens = tokenizer.get("model", {}).get("vocab", {})
    pairs = tokens.items() if isinstance(tokens, dict) else ((str(token[0]), index) for index, token in enumerate(tokens))
    return {index: token for token, index in pairs} | {added["id"]: added["content"] for added in tokenizer.get("added_tokens", [])}


def _license_in_card(folder: Path) -> str | None:
    """'license' of the front matter of README.md."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    front = re.match(r"---\n(.*?)\n---", card.read_text(encoding="utf-8", errors="replace"), flags=re.DOTALL)
    said = dict(re.findall(r"^(license|license_name):\s*['\"]?([\w.-]+)", front.group(1), flags=re.MULTILINE)) if front else {}
    return said.get("license_name") or said.get("license")


def _checked_weights(folder: Path, source: str) -> list[Path]:
    """The safetensors files of a folder, all that its index names. Raises ModelError."""
    names = weight_names((path.name for path in folder.iterdir()), source)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        wanted = sorted(set(_read_json(index, source).get("weight_map", {}).values()))
        absent = [name for name in wanted if name not in names]
        if absent:
            raise ModelError(
                f"model {source}: {len(absent)} of {len(wanted)} weight files are missing in {folder}, first {absent[0]}. "
                "Download it again."
            )
        names = wanted
    return [folder / name for name in names]


def _folder_facts(source: str, folder: Path, kind: Kind) -> ModelFacts:
    config = _read_json(folder / "config.json", source)
    shape = _checked_shape(config, source)
    weights = _checked_weights(folder, source)
    tensors = read_safetensors(weights)
    head = next((tensors.num_elements[name] for name in HEAD_NAMES if name in tensors.num_elements), 0)
    if "tie_word_embeddings" not in config and "text_config" not in config:
        shape["tied_head"] = head == 0
    known = ModelFacts(
        source=source,
        kind=kind,
        num_parameters=tensors.num_parameters - (head if shape["tied_head"] else 0),
        vocab_size_tokenizer=_tokenizer_size(folder),
        dtype_on_disk=tensors.main_dtype,
        disk_bytes=sum(path.stat().st_size for path in weights),
        license=_license_in_card(folder),
        **shape,
    )
    return with_notes(known, config)


def _gguf_facts(source: str, path: Path) -> ModelFacts:
    tensors = read_gguf(path)
    said = tensors.metadata
    architecture = said.get("general.architecture", "unknown")
    words = {
        **{"num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length"},
        **{"num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv"},
        **{"head_dim": "attention.key_length", "max_position_embeddings": "context_length", "vocab_size": "vocab_size"},
        **{"num_experts": "expert_count", "moe_intermediate_size": "expert_feed_forward_length"},
    }
    config = {name: said[f"{architecture}.{word}"] for name, word in words.items() if f"{architecture}.{word}" in said}
    tokens = said.get("tokenizer.ggml.tokens")
    num_tokens = tokens["length"] if isinstance(tokens, dict) else len(tokens or [])
    config.setdefault("vocab_size", num_tokens)
    shape = _checked_shape(
        {**config, "model_type": architecture, "tie_word_embeddings": "output.weight" not in tensors.num_elements}, source
    )
    return with_notes(
        ModelFacts(
            source=source,
            kind="gguf",
            num_parameters=tensors.num_parameters,
            vocab_size_tokenizer=num_tokens or None,
            dtype_on_disk=tensors.main_dtype,
            disk_bytes=path.stat().st_size,
            license=said.get("general.license"),
            **shape,
        ).noting("A GGUF file is unpacked to full precision when it is loaded: it takes the memory of its parameters, not of the file."),
        {},
    )


def _hub_facts(source: str, revision: str | None) -> ModelFacts:
    row = row_facts(source)
    try:
        repo = hub.info(source, revision, known=table()["id"])
    except hub.UnreachableError as unreachable:
        return _offline_facts(source, revision, row, unreachable)
    weights = weight_names(repo.file_bytes, source)
    try:
        folder = hub.small_files(source, repo.commit)
    except ModelError as refused:
        if row is None:
            raise
        return replace(row, gated=repo.gated, license=repo.license, commit=repo.commit).noting(
            f"Sizes are from this package's list: {refused}"
        )
    config = _read_json(folder / "config.json", source)
    known = ModelFacts(
        source=source,
        kind="hub",
        num_parameters=sum(repo.num_parameters.values()),
        vocab_size_tokenizer=_tokenizer_size(folder),
        dtype_on_disk=_main_dtype(repo.num_parameters),
        disk_bytes=sum(repo.file_bytes[name] for name in weights),
        license=repo.license,
        gated=repo.gated,
        commit=repo.commit,
        **_checked_shape(config, source),
    )
    if row is not None:  # counted from the config; the Hub counts masks and packed weights as parameters
        known = replace(known, num_parameters=row.num_parameters)
    elif known.num_parameters == 0 or config.get("quantization_config"):
        known = replace(known, num_parameters=dense_parameters(known)).noting(
            "The number of parameters is computed from the model's sizes."
        )
    return with_notes(known, config)


def _main_dtype(counted: dict[str, int]) -> str:
    if not counted:
        return "unknown"
    name = max(counted, key=lambda dtype: counted[dtype])
    return SAFETENSORS_DTYPES.get(name, name.lower())


def _offline_facts(source: str, revision: str | None, row: ModelFacts | None, unreachable: hub.UnreachableError) -> ModelFacts:
    folder = hub.cached_folder(source, revision)
    if folder is not None:
        try:
            return replace(_folder_facts(source, folder, "hub"), commit=folder.name).noting(
                "Read from an earlier download: the Hub cannot be reached."
            )
        except ModelError:
            if row is None:
                raise
    if row is None:
        raise unreachable
    return row.noting("From the list that ships with this package: the Hub cannot be reached, so the weights cannot be downloaded either.")


def config_facts(path: Path) -> ModelFacts:
    """Facts from a model's config.json alone, parameters computed from its sizes. Raises ModelError where it is none, or lacks a size."""
    config = _read_json(path, str(path))
    known = ModelFacts(source=str(path), kind="folder", num_parameters=0, **_checked_shape(config, str(path)))
    return replace(known, num_parameters=dense_parameters(known)).noting("The number of parameters is computed from the model's sizes.")
