"""Which files of the machine a room's visitors may open, and what may stand in a config that a visitor sends."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..config import BUILTIN, DistillConfig
from ..errors import RoomError
from ..paths import caches_dir, home, local_path, runs_dir, texts_dir
from ..units import show_disk
from .policy import policy

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", flags=re.ASCII)
SOURCES = ("teacher.model", "student.model", "text.source", "text.synthetic")
"""Fields that hold 'builtin', a Hugging Face id or a path."""
PROSE = ("capture.context",)
"""Fields that hold words, whatever stands in them; no file is opened by them."""


def check_path(path: str | Path) -> None:
    """Raise RoomError, in a room, for a path outside its allowed folders; symbolic links and '..' are followed first.

    What the room itself made may be opened too: yesterday's student can teach today. Says nothing of whether the path exists.
    """
    rules = policy()
    if rules is None:
        return
    try:
        real = local_path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, no such user, a zero byte
        raise RoomError(f"'{path}' is not a path that can be opened. {_allowed_words()}") from None
    made_here = (caches_dir(), runs_dir(), texts_dir(), home() / "exports")
    if not any(real.is_relative_to(folder.resolve()) for folder in (*rules.allowed_folders, *made_here)):
        raise RoomError(f"'{path}' is outside the folders that this room opens. {_allowed_words()}")


def _allowed_words() -> str:
    rules = policy()
    folders = ", ".join(str(folder) for folder in rules.allowed_folders) if rules else ""
    opened = f"Files may come from: {folders}." if folders else "This room opens no local files."
    return f"{opened} Use one of those, 'builtin', or a Hugging Face id (owner/name)."


def check_source(source: str) -> None:
    """Raise RoomError, in a room, unless the source is 'builtin', a Hugging Face id by its syntax, or a path that may be opened."""
    if policy() is None or source == BUILTIN:
        return
    if HUB_ID.fullmatch(source) and ".." not in source and not _is_local(source):
        return
    check_path(source)


def _is_local(source: str) -> bool:
    """Whether the loaders would take it for a file or folder: it exists, or ends like one."""
    return Path(source).suffix.lower() in (".gguf", ".txt", ".jsonl", ".parquet") or Path(source).exists()


def check_config(config: DistillConfig) -> None:
    """Raise RoomError, in a room, for a config with a file that may not be opened, in whatever field it stands."""
    if policy() is None:
        return
    for name, value in _words(config):
        try:
            if name in SOURCES:
                check_source(value)
            elif name not in PROSE and (value.startswith("~") or "/" in value or "\\" in value):
                check_path(value)
        except RoomError as error:
            raise RoomError(f"{name}: {error}") from None


def _words(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a config, with its dotted name."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _words(getattr(value, field), f"{name}.{field}".lstrip("."))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _words(each, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _words(each, name)


def check_download(source: str, num_bytes: int) -> None:
    """Raise RoomError, in a room, for a model larger than it downloads."""
    rules = policy()
    if rules is not None and num_bytes > rules.max_download_gb * 1e9:
        raise RoomError(
            f"model {source} is {show_disk(num_bytes)} to download; this room takes up to {show_disk(rules.max_download_gb * 1e9)}. "
            "Choose a smaller one, or ask the presenter to put it into an allowed folder."
        )
