"""The rules of a room: a json file, named by an environment variable so that every process of the room finds the same one."""

import json
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError, did_you_mean
from ..paths import publish

POLICY_VARIABLE = "DISTILL_ROOM"


class Policy(BaseModel):
    """What visitors of a room may do; the presenter may also stop and delete what is not their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    allowed_folders: tuple[Path, ...] = ()
    """Folders whose files may be named as teacher, student or text. Nothing else can be opened, beside what the room made."""
    max_active_runs: Annotated[int, Field(ge=1)] = 4
    """Queued and running runs of one visitor: a student, its twin, and one more of each."""
    max_download_gb: Annotated[float, Field(gt=0)] = 8.0
    """Weights of the largest model that may be downloaded."""
    disk_gb: Annotated[float, Field(gt=0)] = 50.0
    """All caches, runs and written texts together."""
    visitor_disk_gb: Annotated[float, Field(gt=0)] = 5.0
    """Caches and runs of one visitor."""


def read_policy(path: Path) -> Policy:
    """The policy in a json file. Raises ConfigError: no such file, not JSON, unknown keys or bad values, a folder that is not there."""
    try:
        found = Policy.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"room policy {path}: cannot be read ({error.strerror}). Name a json file such as {Policy().model_dump_json()}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        known = ", ".join(Policy.model_fields)
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"room policy {path}: no rule '{place}'.{did_you_mean(place, Policy.model_fields)}") from None
        raise ConfigError(f"room policy {path}: {place}: {first['msg']}. It is a json object with: {known}.") from None
    absent = [str(folder) for folder in found.allowed_folders if not folder.expanduser().is_dir()]
    if absent:
        raise ConfigError(f"room policy {path}: allowed_folders: no folder {', '.join(absent)}. Create it, or take it out of the list.")
    return found


_read: dict[tuple[str, int], Policy] = {}


def policy() -> Policy | None:
    """The rules of this process's room; None at home. Raises ConfigError as `read_policy` does: a broken policy is not a free house."""
    named = os.environ.get(POLICY_VARIABLE)
    if not named:
        return None
    path = Path(named)
    try:
        key = (named, path.stat().st_mtime_ns)
    except OSError:
        return read_policy(path)
    if key not in _read:
        _read[key] = read_policy(path)
    return _read[key]


def write_policy(path: Path, rules: Policy) -> None:
    """Write the rules where `policy` reads them, folders as absolute paths."""
    plain = rules.model_dump(mode="json")
    plain["allowed_folders"] = [str(folder.expanduser().resolve()) for folder in rules.allowed_folders]
    path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, json.dumps(plain, indent=2) + "\n")
