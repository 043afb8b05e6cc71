"""Models and tokenizers into memory: safetensors or GGUF, never pickles, never code that came with a model."""

import logging
from pathlib import Path
from typing import Any

import torch

from . import catalog
from .catalog import hub
from .catalog.weights import weight_names
from .errors import ModelError, VocabularyError
from .paths import file_sha256, local_path

NAMED_TOKENS = 3
"""How many differing tokens a refusal lists."""

log = logging.getLogger(__name__)


def _place(source: str, revision: str | None, *, weights: bool) -> tuple[Path, dict[str, Any]]:
    """Local folder, and what from_pretrained must be told besides: nothing, or the name of the GGUF file in it."""
    kind = catalog.resolve(source)
    if kind == "builtin":
        return catalog.builtin_folder(), {}
    if kind == "folder":
        return local_path(source), {}
    if kind == "gguf":
        path = local_path(source).resolve()
        return path.parent, {"gguf_file": path.name}
    return hub.snapshot(source, revision) if weights else hub.small_files(source, revision), {}


def _refusal(source: str, error: Exception) -> ModelError:
    """What transformers raised, as one message: its first line, and the way out."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if "trust_remote_code" in str(error) or "custom code" in str(error):
        return ModelError(
            f"model {source} brings its own Python code, which is never run here. "
            "Pick a model of a family that transformers itself contains."
        )
    return ModelError(
        f"model {source} cannot be loaded: {type(error).__name__}: {first}. Pick another model, or save it again with save_pretrained."
    )


def load_config(source: str, *, revision: str | None = None) -> Any:
    """The transformers config, checked to be that of a causal language model; no weights are read. Raises ModelError."""
    import transformers

    folder, extra = _place(source, revision, weights=False)
    if not extra and not (folder / "config.json").is_file():
        raise ModelError(f"model {source}: {folder} has no config.json. Give a folder that save_pretrained wrote.")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **extra)
    except (ValueError, OSError, KeyError, ImportError, TypeError) as error:
        raise _refusal(source, error) from error
    named = config.architectures or []
    causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or _sees_images(config)
    if not causal or (named and not any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in named)):
        raise ModelError(
            f"model {source} is a {named[0] if named else type(config).__name__}, not a causal language model. "
            "Pick one that predicts the next token (its class ends in ForCausalLM)."
        )
    return config


def _sees_images(config: Any) -> bool:
    """Whether transformers has a model that reads images and text from left to right for this config."""
    import transformers

    return type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not getattr(config, "is_encoder_decoder", False)


def sees_images_only(source: str, *, revision: str | None = None) -> bool:
    """Whether the model has no text-only class: image-text models of most families. Raises ModelError."""
    import transformers

    return type(load_config(source, revision=revision)) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING


def load_model(
    source: str,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    quantization: Any = None,
    sees_images: bool = False,
) -> Any:
    """A causal language model in eval mode on the device, whole and ready for save_pretrained.

    `source`: 'builtin', a Hugging Face id, a local folder, a .gguf file or 'run:NAME'. `dtype` none: float32 on a CPU, as stored
    on a GPU (a GGUF file, unpacked: bfloat16). `quantization`: transformers' config for weights in few bits, around which adapters
    learn. `sees_images`: the whole image-text model, of families that have a text-only class too.
    Raises ModelError: missing, gated, offline, pickles only, own code, not a causal model, weights that are not in the files
    (transformers would fill them with noise).
    """
    import transformers

    device = torch.device(device)
    config = load_config(source, revision=revision)
    kind: Any = transformers.AutoModelForCausalLM
    if sees_images or type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = transformers.AutoModelForImageTextToText
    folder, extra = _place(source, revision, weights=True)
    if not extra:
        weight_names((path.name for path in folder.iterdir()), source)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else (torch.bfloat16 if extra else "auto")
    if extra and quantization is not None:
        raise ModelError(
            f"model {source}: a GGUF file cannot be quantized again on loading. Take the safetensors model, or no student.quantize."
        )
    if extra:
        extra |= _unpacked_gguf()
    if quantization is not None:
        extra = {"quantization_config": quantization, "device_map": {"": str(device)}}
    try:
        loaded: Any = kind.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            config=config,
            **extra,
        )
    except (ValueError, OSError, KeyError, ImportError, RuntimeError, TypeError, NotImplementedError) as error:
        raise _refusal(source, error) from error
    model, loading = loaded
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelError(
            f"model {source}: {len(missing)} weights are not in its files, first {missing[0]}; they would be noise. "
            "Save or download it again."
        )
    if quantization is not None:
        return model.eval()  # it is where it shall be, and some kinds cannot be moved
    if extra:
        _forget_gguf(model, config)
    return model.to(device).eval()


def _unpacked_gguf() -> dict[str, Any]:
    """Ask for plain weights: where GPU kernels are installed, transformers leaves them packed, of no use for gradients or export."""
    import transformers

    asked = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": asked(dequantize=True)} if asked else {}


def _forget_gguf(model: Any, config: Any) -> None:
    """An unpacked GGUF model is an ordinary one, but transformers keeps a 'quantizer' on it that refuses save_pretrained."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
    packed = sorted({type(module).__name__ for module in model.modules() if "gguf" in type(module).__name__.lower()})
    if packed:
        raise ModelError(
            f"model: its GGUF weights stayed packed ({packed[0]}). Uninstall the 'kernels' package, or use the safetensors model."
        )
    model.config.architectures = [type(model).__name__]
    model.config._name_or_path = getattr(config, "_name_or_path", "")


def load_tokenizer(source: str, *, revision: str | None = None) -> Any:
    """The fast tokenizer of a model, or of a folder that holds only a tokenizer. Raises ModelError."""
    import transformers

    folder, extra = _place(source, revision, weights=False)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **extra)
    except Exception as error:  # the tokenizers library raises plain Exception for a damaged vocabulary
        raise ModelError(
            f"model {source}: its tokenizer cannot be loaded: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]} "
            "A tokenizer.json is needed; pick a model that has one."
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"model {source}: its tokenizer ({type(tokenizer).__name__}) cannot say which text a token covers. "
            "Pick a model with a tokenizer.json."
        )
    return tokenizer


def load_processor(source: str, *, revision: str | None = None) -> Any:
    """What turns images into a model's inputs. Raises ModelError for a model that sees none, or whose processor is of a kind that cannot be
    served (own code, no placeholder in the text)."""
    import transformers

    if not _sees_images(load_config(source, revision=revision)):
        raise ModelError(
            f"model {source} reads text only, but text.image_column gives it images. Pick an image-text model (its class ends in "
            "ForConditionalGeneration), or leave text.image_column out."
        )
    folder, _ = _place(source, revision, weights=False)
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, KeyError, ImportError, TypeError, RuntimeError) as error:
        raise _refusal(source, error) from error
    if not getattr(processor, "image_token", None):
        raise ModelError(
            f"model {source}: its processor ({type(processor).__name__}) puts no placeholder for images into the text, so an image's "
            "tokens cannot be told from the text's. Pick another model."
        )
    return processor


def weights_fingerprint(source: str, revision: str | None = None) -> dict[str, Any]:
    """What exactly the weights are: {'kind', 'commit', 'files': {name: sha256}, 'total_bytes'}; config.json is among the files.

    A downloaded Hugging Face file is stored under its own sha256, which is then read instead of the file.
    """
    kind = catalog.resolve(source)
    folder, extra = _place(source, revision, weights=True)
    if extra:
        paths = [folder / extra["gguf_file"]]
    else:
        paths = [folder / name for name in ["config.json", *weight_names((path.name for path in folder.iterdir()), source)]]
    return {
        "kind": kind,
        "commit": folder.name if kind == "hub" else None,
        "files": {path.name: _stored_sha256(path) if kind == "hub" else file_sha256(path) for path in paths},
        "total_bytes": sum(path.stat().st_size for path in paths),
    }


def _stored_sha256(path: Path) -> str:
    blob = path.resolve().name
    return blob if len(blob) == 64 and all(letter in "0123456789abcdef" for letter in blob) else file_sha256(path)


def vocabulary(tokenizer: Any) -> dict[str, int]:
    """Every token, added ones included, and its id."""
    return dict(tokenizer.get_vocab())


def real_vocab_size(model: Any, tokenizer: Any) -> int:
    """Highest token id + 1, at most the rows of the model's embedding. Rows above it are padding that no text can reach.

    The one rule for vocabulary size: capture, loss and students all use it.
    """
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    return min(max(vocabulary(tokenizer).values()) + 1, config.vocab_size)


def check_same_vocabulary(
    teacher_tokens: dict[str, int],
    student_tokens: dict[str, int],
    *,
    teacher_name: str,
    student_name: str,
    student_rows: int,
    teacher_rows: int | None = None,
) -> None:
    """Raise VocabularyError unless every id of the teacher's tokenizer is the same token in the student's, and has a row in the student.

    Sizes in configs are not compared: padded rows (151,936 against 152,064) are harmless, and equal sizes prove nothing. Tokens that
    only the student has, above the teacher's ids, are accepted: they get no probability. `teacher_rows`: ids the teacher has no row
    for are left out.
    """
    teacher = {index: token for token, index in teacher_tokens.items() if teacher_rows is None or index < teacher_rows}
    student = {index: token for token, index in student_tokens.items()}
    size = max(teacher, default=-1) + 1
    way_out = "Pick a student from the teacher's own family (data/models.csv), or start it with student.init 'prune_layers' or 'fresh'."
    different = sorted(index for index, token in teacher.items() if student.get(index) != token)
    if different:
        shown = "; ".join(f"id {index} is {teacher[index]!r} and {_shown(student.get(index))}" for index in different[:NAMED_TOKENS])
        raise VocabularyError(
            f"{teacher_name} ({len(teacher):,} tokens) and {student_name} ({len(student):,} tokens) differ in {len(different):,} tokens: "
            f"{shown}. A cache of the first would teach the second nonsense. {way_out}"
        )
    if student_rows < size:
        raise VocabularyError(
            f"{student_name} has {student_rows:,} rows in its embedding, {teacher_name} has token ids up to {size - 1:,}. {way_out}"
        )


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)
