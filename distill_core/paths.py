"""Where things are: what ships with the package, and the folder in which the user's work lives."""

import hashlib
import os
import re
from pathlib import Path

from .errors import ConfigError

PACKAGE = Path(__file__).resolve().parent
RUN = "run"
WRITTEN = "written"
"""'run:NAME' is a model, 'written:NAME' a text: work of this machine, by its name."""


def _shipped(name: str) -> Path:
    """A top-level folder of the checkout, or its copy inside an installed wheel."""
    inside = PACKAGE / f"_{name}"
    return inside if inside.is_dir() else PACKAGE.parent / name


def data_dir() -> Path:
    """The model catalogue, the story generator and the built-in teacher."""
    return _shipped("data")


def apps_dir() -> Path:
    """The marimo notebooks."""
    return _shipped("apps")


def home() -> Path:
    """Caches and runs live here: $DISTILL_HOME, else ~/distill. Nothing is created by asking."""
    chosen = os.environ.get("DISTILL_HOME")
    return Path(chosen).expanduser().resolve() if chosen else Path.home() / "distill"


def caches_dir() -> Path:
    return home() / "caches"


def runs_dir() -> Path:
    return home() / "runs"


def texts_dir() -> Path:
    """Texts that a model wrote."""
    return home() / "texts"


def local_path(source: str | Path) -> Path:
    """The path that a name stands for: 'run:NAME' the student of a run here, 'written:NAME' what `write` put into texts/NAME, '~' the
    user's folder; anything else is taken as it is. Says nothing of whether it exists. Raises ConfigError for a NAME that cannot be one.
    """
    kind, colon, name = str(source).partition(":")
    if colon and kind == RUN:
        return runs_dir() / checked_name(name, "run") / "model"
    if colon and kind == WRITTEN:
        return texts_dir() / checked_name(name, "text") / "texts.parquet"
    return Path(source).expanduser()


def locks_dir() -> Path:
    return home() / "locks"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


def checked_name(name: str, what: str) -> str:
    """A name that is safe as a folder name, or ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{what} '{name}' cannot be a folder name. Use letters, digits, '.', '_' and '-', at most 120, starting with a letter or digit."
        )
    return name


def publish(path: Path, text: str) -> None:
    """Replace the file in one step, so no reader ever sees half of it; on disk before this returns."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename inside the folder survive a power cut; a no-op where folders cannot be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Checksum of a file's bytes, as hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
