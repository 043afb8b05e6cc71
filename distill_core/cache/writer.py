"""Writing a cache so that a kill at any moment loses one shard at most, and nothing half-written is ever read."""

import json
import os
import shutil
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from filelock import FileLock, Timeout

from ..errors import CacheError
from ..paths import caches_dir, checked_name, file_sha256, publish
from ..units import show_disk
from .manifest import TRANSLATED, Manifest, Plan, ShardEntry, ShardPlan, Teacher, make_again, read_record
from .shards import ShardColumns, parquet, write_durably
from .tail import AT_ONE, kept_mass


class CacheWriter:
    """Owns a cache folder while it is written. Use as a context manager.

    Raises CacheError when another process writes there, or when the folder holds the beginning of another cache.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.name = folder.name
        self.plan = plan
        self._plan_sha256 = plan.sha256()
        self._lock = FileLock(folder / "writer.lock")
        self._name_option = "--name" if plan.merged or TRANSLATED in plan.fingerprint.fields else "capture.name"

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._acquire()
        except OSError as error:
            raise self._cannot_write(error) from error
        try:
            self._freeze_plan()
            for name in ("shards", "manifest.d"):
                (self.folder / name).mkdir(exist_ok=True)
            for partial in self.folder.glob("**/*.partial"):
                partial.unlink()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        (self.folder / "writer.json").unlink(missing_ok=True)
        self._lock.release()

    def _acquire(self) -> None:
        note = self.folder / "writer.json"
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            held = json.loads(note.read_text()) if note.exists() else {}
            who = f"process {held.get('pid', '?')} on {held.get('host', '?')}"
            raise CacheError(
                f"cache {self.name}: {who} is writing it. Wait for that to end, or choose another {self._name_option}."
            ) from None
        publish(note, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started_s": time.time()}))

    def _freeze_plan(self) -> None:
        path = self.folder / "plan.json"
        try:
            frozen = read_record(Plan, path, cache=self.name)
        except FileNotFoundError:
            publish(path, self.plan.to_json())
            return
        except CacheError:
            self._quarantine(path)  # every shard names its own plan: those of this one are kept
            publish(path, self.plan.to_json())
            return
        if frozen == self.plan:
            return
        lines = frozen.fingerprint.differences(self.plan.fingerprint) or ["the split into shards differs"]
        raise CacheError(
            f"cache {self.name} was begun from something else, so this cannot go on in it:\n  "
            + "\n  ".join(lines)
            + f"\nUse the same settings, or choose another {self._name_option}."
        )

    def missing(self) -> list[ShardPlan]:
        """Planned shards that no verified file holds yet. A file that no entry vouches for is moved to quarantine/."""
        return [shard for shard in self.plan.shards if not self._is_verified(shard)]

    def _is_verified(self, shard: ShardPlan) -> bool:
        path, entry_path = self.shard_path(shard.name), self._entry_path(shard.name)
        if not path.exists():
            if entry_path.exists():
                self._quarantine(entry_path)
            return False
        entry = self._entry(shard.name)
        is_ours = entry is not None and entry.plan_sha256 == self._plan_sha256
        if entry is not None and is_ours and path.stat().st_size == entry.num_bytes and file_sha256(path) == entry.sha256:
            return True
        if entry_path.exists():
            self._quarantine(entry_path)
        self._quarantine(path)
        return False

    def has_entry(self, shard: ShardPlan) -> bool:
        """Whether the shard has been written since `missing` named it."""
        return self._entry_path(shard.name).exists()

    def _entry(self, name: str) -> ShardEntry | None:
        """The entry of a shard; none where there is none, or it is damaged."""
        try:
            return read_record(ShardEntry, self._entry_path(name), cache=self.name)
        except (CacheError, FileNotFoundError):
            return None

    def _quarantine(self, path: Path) -> None:
        """Out of the way, for a person to look at; nothing reads it again."""
        folder = self.folder / "quarantine"
        folder.mkdir(exist_ok=True)
        os.replace(path, folder / f"{path.stem}.{time.time_ns()}{path.suffix}")

    def write(self, shard: ShardPlan, columns: ShardColumns) -> ShardEntry:
        """Publish one shard, then its entry. Raises CacheError when the disk is full or refuses."""
        content = parquet(columns.series(self.plan.codec, vocab_size=self.plan.vocab_size), self.plan.window_tokens)
        try:
            self.check_space(len(content))
            write_durably(self.shard_path(shard.name), content)
            entry = _entry(shard, columns, self.shard_path(shard.name), len(content), plan=self.plan, plan_sha256=self._plan_sha256)
            publish(self._entry_path(shard.name), entry.to_json())
        except OSError as error:
            raise self._cannot_write(error) from error
        return entry

    def check_space(self, num_bytes: float) -> None:
        """Raises CacheError if the disk has not that much free, plus a reserve of 100 MB."""
        free = shutil.disk_usage(self.folder).free
        if free < num_bytes + 100e6:
            raise CacheError(
                f"cache {self.name}: needs {show_disk(num_bytes)} more and 100 MB to spare, "
                f"but the disk of {self.folder} has {show_disk(free)} free. "
                "Free some space, or set DISTILL_HOME to a larger disk, and start the same command again: it goes on where it was."
            )

    def _cannot_write(self, error: OSError) -> CacheError:
        return CacheError(
            f"cache {self.name}: cannot write in {self.folder} ({error.strerror or error}). What was finished is kept. "
            "Mend that, or set DISTILL_HOME to another disk, and start the same command again: it goes on where it was."
        )

    def finish(self, *, teacher: Teacher, config: dict[str, Any], text: dict[str, Any], versions: dict[str, str]) -> Manifest:
        """Publish the manifest. Raises CacheError if a planned shard is missing."""
        missing = self.missing()
        if missing:
            raise CacheError(
                f"cache {self.name}: {len(missing)} of {len(self.plan.shards)} shards are missing, first {missing[0].name}. "
                + make_again(self.folder)
            )
        entries = tuple(read_record(ShardEntry, self._entry_path(shard.name), cache=self.name) for shard in self.plan.shards)
        manifest = Manifest(plan=self.plan, entries=entries, teacher=teacher, config=config, text=text, versions=versions)
        try:
            publish(self.folder / "manifest.json", manifest.to_json())
        except OSError as error:
            raise self._cannot_write(error) from error
        return manifest

    def shard_path(self, name: str) -> Path:
        return self.folder / "shards" / f"{name}.parquet"

    def _entry_path(self, name: str) -> Path:
        return self.folder / "manifest.d" / f"{name}.json"


def _entry(shard: ShardPlan, columns: ShardColumns, path: Path, num_bytes: int, *, plan: Plan, plan_sha256: str) -> ShardEntry:
    targets = columns.targets_nP
    kept = kept_mass(columns.teacher_logprobs_nPK[targets][:, : plan.num_ranked], columns.tail_logsumexp_nPA[targets][:, AT_ONE], 1.0)
    return ShardEntry(
        name=shard.name,
        plan_sha256=plan_sha256,
        sha256=file_sha256(path),
        num_bytes=num_bytes,
        num_windows=len(columns.window_ids_n),
        num_positions=int(targets.sum()),
        num_text_bytes=int(columns.token_bytes_nL[:, 1:][targets].sum()),
        sum_kept_mass=float(kept.sum(dtype=np.float64)),
        sum_gold_logprob=float(columns.gold_logprob_nP[targets].sum(dtype=np.float64)),
        sum_entropy=float(columns.teacher_entropy_nP[targets].sum(dtype=np.float64)),
    )


def delete_cache(name: str) -> int:
    """Delete a cache, finished or not; returns the bytes that come back. Raises CacheError while it is written, or when there is none."""
    folder = caches_dir() / checked_name(name, "cache")
    if not folder.is_dir():
        raise CacheError(f"no cache '{name}' in {caches_dir()}. See them: python -m distill_core cache list")
    lock = FileLock(folder / "writer.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CacheError(f"cache {name} is being written. Stop that capture first: python -m distill_core runs list") from None
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        shutil.rmtree(folder)
    finally:
        lock.release()
    return num_bytes
