"""Documents from built-in stories, local files and Hugging Face datasets, one after the other, never all at once."""

import hashlib
import importlib.util
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import paths
from ..config import BUILTIN, TextConfig
from ..errors import TextError, did_you_mean
from ..room import check_path, check_source
from ..texts import check_written

ROWS_AT_ONCE = 1024
"""Parquet rows in memory at one time."""

LONGEST_TEXT = 100_000
"""Characters after which a .txt document without a blank line is read on as the next one: memory stays bounded."""

_LOADING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text or one conversation, never both."""

    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    """Chat messages in order, each with at least 'role' and 'content'."""
    image: bytes | None = None
    """The file of the image that belongs to it."""

    def __post_init__(self) -> None:
        assert (self.text is None) != (self.messages is None), "a document is either text or messages"

    @property
    def is_blank(self) -> bool:
        """Nothing to read in it: white space only, or no message."""
        return not self.messages if self.text is None else not self.text.strip()


def documents(text: TextConfig) -> Iterator[Document]:
    """The documents of text.source in their own order; memory stays bounded. Blank ones are passed on, to be counted.

    Built-in stories never end; text.seed chooses which. Raises TextError for a file, dataset, split or column that is not there,
    for bytes that are not UTF-8, and for rows that hold neither text nor chat messages;
    RoomError, in a room, for a file outside its folders.
    """
    check_source(text.source)
    check_written(text.source)
    if text.source == BUILTIN and text.image_column is None:
        return _stories(text.seed)
    path = paths.local_path(text.source)
    if path.suffix.lower() in READERS or path.exists():
        return _read_file(path, text.column, text.image_column)
    if text.image_column is not None:
        raise TextError(f"text.image_column is for local .parquet and .jsonl files, not for '{text.source}'. Save the pairs as one.")
    return _read_hub(text)


def is_known(document: Document, seen: set[bytes]) -> bool:
    """Was the very same document there before? Remembers 16 bytes of it."""
    content = document.text if document.messages is None else json.dumps(document.messages, sort_keys=True, default=str)
    assert content is not None
    digest = hashlib.blake2b((document.image or b"") + content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    was_there = digest in seen
    seen.add(digest)
    return was_there


# ---------------------------------------------------------------- built-in stories
def storytelling() -> ModuleType:
    """The package data/storytelling, which stands outside this one because `python data/stories.py` runs alone."""
    name = "distill_storytelling"
    with _LOADING:  # a shared app has many threads, and none may see half a module
        if name not in sys.modules:
            folder = paths.data_dir() / "storytelling"
            spec = importlib.util.spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)  # before it runs, so that it can import its own parts
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]


def _stories(seed: int) -> Iterator[Document]:
    story = storytelling().story
    return (Document(text=story(f"text-{seed}-{number}").text) for number in itertools.count())


# ---------------------------------------------------------------- local files
def _read_file(path: Path, column: str, image_column: str | None = None) -> Iterator[Document]:
    if not path.exists():
        raise TextError(f"text {path}: no such file.{_near_files(path)}")
    if path.is_dir() or path.suffix.lower() not in READERS:
        kind = "a folder" if path.is_dir() else f"a '{path.suffix}' file"
        raise TextError(f"text {path}: is {kind}; readable are {', '.join(READERS)}. Give one such file, or a Hugging Face dataset id.")
    return READERS[path.suffix.lower()](path, column, image_column)


def _near_files(path: Path) -> str:
    """' Did you mean …?' for a slip of the pen, else what to do."""
    near = [each.name for each in path.parent.iterdir() if each.suffix.lower() in READERS] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, near)
    return hint if hint.startswith(" Did") else f" Looked in {path.parent.absolute()}."


def _read_txt(path: Path, column: str, image_column: str | None) -> Iterator[Document]:
    """Documents are separated by blank lines; there are no columns to choose from."""
    del column
    if image_column is not None:
        raise TextError(f"text {path}: a .txt file has no column '{image_column}' with images. Give a .parquet or .jsonl file of pairs.")
    text = ""
    for line in utf8_lines(path, longest=LONGEST_TEXT):
        if text and (not line.strip() or len(text) + len(line) > LONGEST_TEXT):
            yield Document(text=text.rstrip("\n"))
            text = ""
        text += line if line.strip() else ""
    if text:
        yield Document(text=text.rstrip("\n"))


def _read_jsonl(path: Path, column: str, image_column: str | None) -> Iterator[Document]:
    for number, line in enumerate(utf8_lines(path), 1):
        if not line.strip():
            continue
        place = f"text {path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TextError(f"{place}: not JSON ({error.msg} at column {error.colno}). Write one JSON object per line.") from None
        if not isinstance(row, dict):
            raise TextError(f'{place}: holds a {type(row).__name__}, not an object such as {{"{column}": "…"}}.')
        document = _from_row(row, column, place)
        yield document if image_column is None else replace(document, image=_image(row, image_column, place, path.parent))


def _read_parquet(path: Path, column: str, image_column: str | None) -> Iterator[Document]:
    import polars as pl

    try:
        scan = pl.scan_parquet(path)
        names = scan.collect_schema().names()
    except pl.exceptions.PolarsError as error:
        raise TextError(f"text {path}: not a readable Parquet file ({error}). Write it again, or use .jsonl.") from None
    columns = [column] if image_column is None else [column, image_column]
    for asked, setting in zip(columns, ("text.column", "text.image_column"), strict=False):
        _check_column(asked, names, f"text {path}", setting)
    for first in itertools.count(0, ROWS_AT_ONCE):
        rows = scan.select(columns).slice(first, ROWS_AT_ONCE).collect()
        if not rows.height:
            return
        for number, row in enumerate(rows.iter_rows(named=True), first + 1):
            place = f"text {path}, row {number}"
            document = _from_value(row[column], column, place)
            yield document if image_column is None else replace(document, image=_image(row, image_column, place, path.parent))


Reader = Callable[[Path, str, str | None], Iterator[Document]]
READERS: dict[str, Reader] = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
"""What each ending is read with."""


def utf8_lines(path: Path, longest: int = -1) -> Iterator[str]:
    """Lines with their end, those with more characters than `longest` in parts; a byte order mark is dropped."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            while line := file.readline(longest):
                yield line
    except UnicodeDecodeError as error:
        raise TextError(f"text {path}: not UTF-8 ({error.reason}: byte 0x{error.object[error.start]:02x}). Save it as UTF-8.") from None
    except OSError as error:
        raise TextError(f"text {path}: cannot be read ({error.strerror}). Check its permissions.") from None


# ---------------------------------------------------------------- Hugging Face datasets
def _read_hub(text: TextConfig) -> Iterator[Document]:
    """Rows of a streamed dataset: only what is read is downloaded."""
    place = f"dataset {text.source}, split {text.split}"
    rows = _hub_errors(lambda: iter(_open_hub(text)), text)
    for number in itertools.count(1):
        row = _hub_errors(lambda: next(rows, None), text)
        if row is None:
            return
        yield _from_row(row, text.column, f"{place}, row {number}")


def _open_hub(text: TextConfig) -> Iterable[Mapping[str, Any]]:
    import datasets

    return datasets.load_dataset(text.source, name=text.subset, split=text.split, revision=text.revision, streaming=True)


def _hub_errors(step: Callable[[], Any], text: TextConfig) -> Any:
    """The step's result; what goes wrong on the way to a dataset is told in words."""
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HTTPError  # of the HTTP library it uses, whichever that is

    try:
        return step()
    except (OSError, ValueError, RuntimeError, DatasetsError, HTTPError) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        subset = f"subset {text.subset}, " if text.subset else ""
        raise TextError(
            f"text '{text.source}' is no local file, and no Hugging Face dataset that can be read ({subset}split {text.split}): {cause}. "
            "Check id, text.subset and text.split, and log in if it is gated. "
            f"Without network: 'builtin', or a local {', '.join(READERS)} file."
        ) from None


# ---------------------------------------------------------------- one row
def _check_column(column: str, names: Iterable[str], place: str, setting: str = "text.column") -> None:
    if column not in names:
        raise TextError(f"{place}: no column '{column}'.{did_you_mean(column, names)} Set {setting}.")


def _image(row: Mapping[str, Any], column: str, place: str, folder: Path) -> bytes:
    """The image file of a row: its bytes, its path, or both as the datasets library writes them. Raises TextError, RoomError."""
    _check_column(column, row.keys(), place, "text.image_column")
    value = row[column]
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return value
    if not isinstance(value, str) or not value:
        raise TextError(
            f"{place}: column '{column}' holds {_shown(row[column])}, not an image file's bytes or path. Mend or remove the row."
        )
    path = folder / paths.local_path(value)
    check_path(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise TextError(f"{place}: image {path} cannot be read ({error.strerror}). Mend or remove the row.") from None


def _from_row(row: Mapping[str, Any], column: str, place: str) -> Document:
    _check_column(column, row.keys(), place)
    return _from_value(row[column], column, place)


def _from_value(value: Any, column: str, place: str) -> Document:
    """Text, a conversation, or nothing (a blank document); all else is refused."""
    if value is None or isinstance(value, str):
        return Document(text=value or "")
    if isinstance(value, list) and all(is_message(each) for each in value):
        return Document(messages=tuple(value))
    raise TextError(
        f"{place}: column '{column}' holds {_shown(value)}. It must hold text, or chat messages: a list of "
        "{'role': 'user' or 'assistant', 'content': 'text'}. Choose another column with text.column."
    )


def is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _shown(value: Any) -> str:
    written = repr(value)
    return f"a {type(value).__name__}: {written if len(written) <= 80 else written[:79] + '…'}"
