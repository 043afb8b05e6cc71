"""An exported student, sent to the Hugging Face Hub: into a private repository unless asked otherwise, with this machine's own login.

No token is ever typed into a page or a command line: it comes from $HF_TOKEN or from `hf auth login`.
"""

import os
import re
from pathlib import Path

from .errors import ConfigError, ModelError

REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,41}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")


def refusal() -> str:
    """Why nothing can be sent from this machine, in words; '' when it can."""
    import huggingface_hub

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "Offline mode is set (HF_HUB_OFFLINE), so nothing is sent. Unset it, and start again."
    if not huggingface_hub.get_token():
        return "No token on this machine, so nothing is sent. Run 'hf auth login' in a terminal, or set HF_TOKEN."
    return ""


def checked_repo_id(repo_id: str) -> str:
    """'owner/name' as the Hub accepts it. Raises ConfigError."""
    name = repo_id.partition("/")[2]
    if not REPO_ID.fullmatch(repo_id) or ".." in name or "--" in name or name.endswith((".git", ".", "-")):
        raise ConfigError(f"'{repo_id}' is no repository on the Hub. It is owner/name, with letters, digits, '-', '_' and '.'.")
    return repo_id


def push(folder: Path, repo_id: str, *, is_public: bool = False) -> str:
    """Send the folder; returns the repository's address.

    Raises ConfigError for a bad id, ModelError: no exported model there, no token, offline, refused by the Hub, or a repository of that
    name that is public while a private one was asked for.
    """
    import huggingface_hub
    from huggingface_hub import errors

    checked_repo_id(repo_id)
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} holds no exported student. Make it first: python -m distill_core export RUN --to {folder}")
    if why_not := refusal():
        raise ModelError(why_not)
    api = huggingface_hub.HfApi()
    try:
        address = api.create_repo(repo_id, private=not is_public, exist_ok=True)
        if not is_public and not api.repo_info(repo_id).private:
            raise ModelError(f"{repo_id} exists and everyone can read it: nothing was sent. Choose another name, or say --public.")
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="A distilled student, with its model card")
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = {401: "the token is not accepted", 403: "the token may not write there"}.get(status or 0, f"it answered {status}")
        raise ModelError(
            f"{repo_id}: the Hub refused: {why}. Check the name and 'hf auth whoami'; the folder {folder} is untouched."
        ) from None
    except (errors.HTTPError, OSError) as error:
        raise ModelError(
            f"{repo_id}: the Hub cannot be reached from here ({type(error).__name__}). The folder {folder} is untouched."
        ) from None
    return str(address)
