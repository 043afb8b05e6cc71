"""The Hugging Face Hub, with every refusal put in words. huggingface_hub is imported when a function is called."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import ModelError, did_you_mean
from ..room import check_download
from .weights import weight_names

SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "README.md", "LICENSE*"]
"""Config, tokenizer and licence."""
NOT_WANTED = ["*/*", "consolidated*", "adapter_*", "*.bin", "*.onnx"]
"""Other copies of the same weights."""
TIMEOUT_S = 10.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class RepoInfo:
    """What the Hub says about a model repository."""

    commit: str
    gated: bool
    license: str | None
    file_bytes: dict[str, int]
    num_parameters: dict[str, int]
    """By safetensors type; empty where the Hub has not counted."""


class UnreachableError(ModelError):
    """The Hub did not answer, or offline mode is set."""


def in_words(call: Callable[[], Result], source: str, revision: str | None, known: Iterable[str] = ()) -> Result:
    """The call's result. Raises ModelError (UnreachableError where it is the network), saying what to do next."""
    from huggingface_hub import errors

    try:
        return call()
    except errors.GatedRepoError:
        raise ModelError(
            f"model {source} is gated: its owner wants terms accepted first. Accept them on the model's page on the Hub, "
            "run 'hf auth login', and try again; or pick an open model."
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(
            f"model {source} has no revision '{revision}'. Give a branch, a tag or a full commit that its page lists."
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"model {source}: the Hub has no model of that name, or it is private.{_near(source, known)} "
            "For a private one, run 'hf auth login' first."
        ) from None
    except errors.HFValidationError:
        raise ModelError(f"model '{source}' is not a Hugging Face id (owner/name), a folder or a .gguf file. Correct the name.") from None
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", "an error")
        raise UnreachableError(f"model {source}: the Hub answered with {status}. Try again later, or use a local folder.") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HTTPError, ConnectionError, TimeoutError) as error:
        raise UnreachableError(_unreachable_words(source, error)) from None


def _near(source: str, known: Iterable[str]) -> str:
    """A near miss among the models that this package lists; never the whole list."""
    words = did_you_mean(source, known)
    return words if words.startswith(" Did") else ""


def _unreachable_words(source: str, error: Exception) -> str:
    offline = "offline mode" in f"{error} {error.__cause__}" or type(error).__name__ == "OfflineModeIsEnabled"
    why = "offline mode is set (HF_HUB_OFFLINE)" if offline else "the Hub cannot be reached from here"
    return (
        f"model {source} is not on this machine, or only in part, and {why}. "
        "Download it once where there is a network, or use 'builtin', a local folder or a .gguf file."
    )


def info(source: str, revision: str | None, known: Iterable[str] = ()) -> RepoInfo:
    """One question to the Hub; nothing is downloaded. Raises ModelError, UnreachableError where it is the network."""
    import huggingface_hub

    found = in_words(
        lambda: huggingface_hub.HfApi().model_info(source, revision=revision, files_metadata=True, timeout=TIMEOUT_S),
        source,
        revision,
        known,
    )
    said = found.card_data.get("license_name") or found.card_data.get("license") if found.card_data else None
    counted = dict(found.safetensors.parameters) if found.safetensors else {}
    files = {file.rfilename: file.size or 0 for file in found.siblings or []}
    return RepoInfo(found.sha or "", bool(found.gated), str(said) if said else None, files, counted)


def cached_folder(source: str, revision: str | None) -> Path | None:
    """The folder of a model's files that an earlier download left on this machine; it may hold only some of them."""
    import huggingface_hub

    found = in_words(lambda: huggingface_hub.try_to_load_from_cache(source, "config.json", revision=revision), source, revision)
    return Path(found).parent if isinstance(found, str) else None


def small_files(source: str, revision: str | None) -> Path:
    """A local folder with the model's config and tokenizer; from this machine where they are here already and the Hub is not there."""
    return _download(source, revision, SMALL_FILES)


def snapshot(source: str, revision: str | None) -> Path:
    """A local folder with the whole model. Pickles are refused before anything large is downloaded.

    Raises ModelError: gated, missing, unreachable, pickles only; RoomError, in a room, for one that is too large.
    """
    with contextlib.suppress(UnreachableError):  # then what is on this machine decides, below
        file_bytes = info(source, revision).file_bytes
        check_download(source, sum(file_bytes[name] for name in weight_names(file_bytes, source)))
    folder = _download(source, revision, [*SMALL_FILES, "*.safetensors"])
    try:
        weight_names((path.name for path in folder.iterdir()), source)
    except ModelError:
        raise UnreachableError(_unreachable_words(source, OSError())) from None
    return folder


def _download(source: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub

    def call() -> str:
        return huggingface_hub.snapshot_download(source, revision=revision, allow_patterns=patterns, ignore_patterns=NOT_WANTED)

    return Path(in_words(call, source, revision))
