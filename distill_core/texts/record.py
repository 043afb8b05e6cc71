"""The folder of a written text: begun from a frozen plan, written batch by batch, published whole."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import polars as pl
from filelock import FileLock, Timeout
from pydantic import ValidationError

from ..cache.manifest import Fingerprint, Record, unsealed
from ..cache.shards import write_durably
from ..errors import TextError, did_you_mean
from ..paths import checked_name, file_sha256, publish, texts_dir
from .judge import Draw

DRAWS = {
    "number": pl.UInt32, "prompt": pl.String, "text": pl.String, "num_tokens": pl.UInt32, "is_finished": pl.Boolean, "repeated": pl.Float64,
}  # fmt: skip
EXAMPLES = 3


class Manifest(Record):
    format: Literal[1] = 1
    plan: Fingerprint
    """All that decides what is written."""
    writer: str
    """The model: 'builtin', an id, a folder, 'run:NAME'."""
    settings: dict[str, Any]
    """The section 'write' of the config."""
    source: str
    """text.source, which the beginnings are from."""
    num_texts: int
    num_tokens: int
    """Written tokens of the texts that were kept."""
    num_drawn: int
    """Texts written, up to the last one that was kept."""
    rejected: dict[str, int]
    """Reason -> how many."""
    written_tokens_per_s: float | None
    """Of this process; none where nothing was left to write."""
    num_bytes: int
    sha256: str
    """Of texts.parquet."""


@dataclass(frozen=True)
class Written:
    """A complete text."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder / "texts.parquet"

    @property
    def result(self) -> dict[str, Any]:
        """What a run says of it."""
        manifest = self.manifest
        return {"text": self.name, "num_texts": manifest.num_texts, "num_drawn": manifest.num_drawn, **manifest.rejected}

    def verify(self) -> None:
        """Raises TextError if the texts are not byte for byte what was written."""
        if not self.path.exists() or file_sha256(self.path) != self.manifest.sha256:
            again = f"Delete it (python -m distill_core texts delete {self.name}) and write it again."
            raise TextError(f"written text {self.name}: {self.path.name} is damaged, its checksum does not fit. {again}")


class TextWriter:
    """Owns the folder while the text is written. Use as a context manager.

    Raises TextError while another process writes there, and where the folder holds the beginning of another text.
    """

    def __init__(self, name: str, plan: Fingerprint) -> None:
        self.folder = texts_dir() / checked_name(name, "text")
        self.plan = plan
        self._lock = FileLock(self.folder / "writer.lock")

    def __enter__(self) -> Self:
        (self.folder / "parts").mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise TextError(
                f"written text {self.folder.name}: another process writes it. Wait for it, or choose another write.name."
            ) from None
        try:
            self._freeze_plan()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    def _freeze_plan(self) -> None:
        path = self.folder / "plan.json"
        if not path.exists():
            publish(path, self.plan.to_json())
            return
        frozen = _read(Fingerprint, path)
        if frozen != self.plan:
            lines = "\n  ".join(frozen.differences(self.plan))
            raise TextError(
                f"written text {self.folder.name} was begun from something else:\n  {lines}\n"
                "Use the same settings, or choose another write.name."
            )

    def _part(self, number: int) -> Path:
        return self.folder / "parts" / f"{number:06d}.parquet"

    def part(self, number: int) -> list[Draw] | None:
        """A batch that was written before; none where there is none."""
        path = self._part(number)
        return [Draw(**row) for row in pl.read_parquet(path).to_dicts()] if path.exists() else None

    def write_part(self, number: int, draws: list[Draw]) -> None:
        """Publish one batch. Raises TextError when the disk is full or refuses."""
        self._write(self._part(number), _frame(draws))

    def finish(self, kept: list[Draw], rejected: list[tuple[Draw, str]], **facts: Any) -> Manifest:
        """Publish texts, rejected ones, and last the manifest; the parts go."""
        reasons = [reason for _, reason in rejected]
        self._write(self.folder / "rejected.parquet", _frame([draw for draw, _ in rejected], reason=reasons))
        self._write(self.folder / "texts.parquet", _frame(kept))
        manifest = Manifest(
            plan=self.plan,
            num_texts=len(kept),
            num_tokens=sum(draw.num_tokens for draw in kept),
            num_drawn=len(kept) + len(rejected),
            rejected={reason: reasons.count(reason) for reason in sorted(set(reasons))},
            num_bytes=(self.folder / "texts.parquet").stat().st_size,
            sha256=file_sha256(self.folder / "texts.parquet"),
            **facts,
        )
        publish(self.folder / "manifest.json", manifest.to_json())
        shutil.rmtree(self.folder / "parts")
        return manifest

    def _write(self, path: Path, frame: pl.DataFrame) -> None:
        try:
            write_durably(path, _parquet(frame))
        except OSError as error:
            raise TextError(
                f"written text {self.folder.name}: cannot write in {self.folder} ({error.strerror or error}). What was finished is kept. "
                "Mend that and start the same command again: it goes on where it was."
            ) from error


def _frame(draws: list[Draw], **columns: list[str]) -> pl.DataFrame:
    frame = pl.DataFrame([vars(draw) for draw in draws], schema=DRAWS)
    return frame.with_columns(**{name: pl.Series(values, dtype=pl.String) for name, values in columns.items()})


def _parquet(frame: pl.DataFrame) -> bytes:
    import io

    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=3, statistics=False)
    return buffer.getvalue()


def open_text(name: str) -> Written:
    """A complete text by name. Raises TextError when it is absent, unfinished or damaged."""
    folder = texts_dir() / checked_name(name, "text")
    if not (folder / "manifest.json").exists():
        if (folder / "plan.json").exists():
            raise TextError(f"written text {name} is unfinished. Start the same command again (python -m distill_core write): it goes on.")
        known = [written.name for written in list_texts()]
        hint = did_you_mean(name, known) if known else " There is none yet; write one: python -m distill_core write"
        raise TextError(f"no written text '{name}' in {texts_dir()}.{hint}")
    return Written(folder, _read(Manifest, folder / "manifest.json"))


def _read(kind: Any, path: Path) -> Any:
    content = unsealed(path.read_bytes())
    try:
        if content is not None:
            return kind.model_validate_json(content)
    except ValidationError:
        pass
    name = path.parent.name
    raise TextError(
        f"written text {name}: {path.name} is damaged, or of another version. Delete the text (python -m distill_core texts delete {name}) "
        "and write it again."
    )


def check_written(source: str) -> None:
    """Raise TextError unless 'written:NAME' is complete and byte for byte as written; any other source passes."""
    kind, _, name = source.partition(":")
    if kind == "written":
        open_text(name).verify()


def list_texts() -> list[Written]:
    """Complete texts whose manifest can be read, by name."""
    if not texts_dir().is_dir():
        return []
    found = []
    for folder in sorted(texts_dir().iterdir()):
        try:
            found.append(Written(folder, _read(Manifest, folder / "manifest.json")))
        except (TextError, FileNotFoundError, NotADirectoryError):
            continue
    return found


def rejected_examples(written: Written) -> pl.DataFrame:
    """[reason, text]: a few of each, for people to look at."""
    frame = pl.read_parquet(written.folder / "rejected.parquet")
    return frame.group_by("reason", maintain_order=True).head(EXAMPLES).select("reason", "text")


def delete_text(name: str) -> int:
    """Delete a text, finished or not; returns the bytes that come back. Raises TextError while it is written, or when there is none."""
    folder = texts_dir() / checked_name(name, "text")
    if not folder.is_dir():
        open_text(name)
    lock = FileLock(folder / "writer.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TextError(f"written text {name} is being written. Stop that run first: python -m distill_core runs list") from None
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    gone = folder.with_name(f".{name}.{os.getpid()}.gone")
    os.replace(folder, gone)  # at once: nobody reads what is half deleted
    lock.release()
    shutil.rmtree(gone)
    return num_bytes
