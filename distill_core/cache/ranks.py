"""Several processes, one cache: each captures its share of what the frozen plan still lacks, and the folder is all they share.

A launcher (`accelerate launch`, `torchrun`) numbers them in RANK and WORLD_SIZE. Rank 0 owns the writer's lock, looks at what is there, and
says in ranks/0.json which shards are missing; rank r of n writes every n-th of these, from the r-th on, and says in ranks/r.json which
process it is. A shard does not depend on who writes it. Rank 0 publishes the manifest when all are there, or names who is gone.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import CacheError, ConfigError
from ..paths import publish
from ..processes import is_alive
from ..progress import Progress
from .manifest import Plan, ShardEntry, ShardPlan
from .shards import ShardColumns
from .writer import CacheWriter

POLL_S = 0.2
JOIN_S = 600.0
"""How long the processes of one launch wait for each other to begin: all read the same text first, some on a slower disk."""


@dataclass(frozen=True)
class Rank:
    """Which of the processes of one launch this is; 0 of 1 without a launcher."""

    number: int = 0
    count: int = 1
    gpu: int = 0
    """Number of the GPU that is this process's own, where there are GPUs."""

    @classmethod
    def from_environment(cls) -> Self:
        """As the launcher says. Raises ConfigError for numbers that cannot be, and for processes on several machines."""
        names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": os.environ.get("RANK", "0")}
        names["LOCAL_WORLD_SIZE"] = os.environ.get("WORLD_SIZE", "1")
        given = {name: os.environ.get(name, default) for name, default in names.items()}
        if not all(value.isdecimal() for value in given.values()) or int(given["RANK"]) >= int(given["WORLD_SIZE"]):
            raise ConfigError(f"no such place among processes: {given}. Unset RANK and WORLD_SIZE, or let accelerate launch set them.")
        if given["LOCAL_WORLD_SIZE"] != given["WORLD_SIZE"]:
            raise ConfigError(
                f"a capture by {given['WORLD_SIZE']} processes on several machines: they cannot see each other's processes, so a death "
                "would go unseen. Launch on one machine (accelerate launch --num_machines 1)."
            )
        return cls(int(given["RANK"]), int(given["WORLD_SIZE"]), int(given["LOCAL_RANK"]))

    def device(self, device: str, *, has_gpu: bool) -> str:
        """The device that the config names; where it leaves open which GPU, this process's own."""
        is_open = self.count > 1 and has_gpu and device in ("auto", "cuda")
        return f"cuda:{self.gpu}" if is_open else device

    def queue(self, key: str) -> str:
        """Name of the queue to wait in for a device: processes of one launch that share it do not wait for each other."""
        return key if self.number == 0 or key == f"cuda-{self.gpu}" else f"{key}-rank-{self.number}"

    def share(self, missing: list[ShardPlan]) -> list[ShardPlan]:
        return missing[self.number :: self.count]

    @property
    def words(self) -> str:
        return f", rank {self.number} of {self.count}" if self.count > 1 else ""


class Note(BaseModel):
    """What a process says of itself to the others."""

    model_config = ConfigDict(frozen=True)

    pid: int
    process_start_s: float
    plan_sha256: str
    missing: tuple[str, ...] = ()
    """Rank 0: the shards to be written, by all."""
    leader: tuple[int, float] | None = None
    """The others: pid and start of the rank 0 that they joined."""

    def is_alive(self) -> bool:
        return is_alive(self.pid, self.process_start_s)


def _publish_note(folder: Path, number: int, plan: Plan, *, missing: tuple[str, ...] = (), leader: tuple[int, float] | None = None) -> Note:
    start_s = psutil.Process().create_time()
    note = Note(pid=os.getpid(), process_start_s=start_s, plan_sha256=plan.sha256(), missing=missing, leader=leader)
    (folder / "ranks").mkdir(exist_ok=True)
    publish(folder / "ranks" / f"{number}.json", note.model_dump_json() + "\n")
    return note


def _note(folder: Path, number: int | str) -> Note | None:
    """What that rank says; none where it says nothing."""
    try:
        return Note.model_validate_json((folder / "ranks" / f"{number}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


@contextmanager
def leading(writer: CacheWriter, rank: Rank) -> Iterator[list[ShardPlan]]:
    """All missing shards, and while they are written the word to the other ranks. For rank 0, which holds the lock.

    Raises CacheError while a process of an earlier launch still writes its last shard there.
    """
    for path in (writer.folder / "ranks").glob("*.json"):
        note = _note(writer.folder, path.stem)
        if note is not None and note.pid != os.getpid() and note.is_alive():
            raise CacheError(
                f"cache {writer.name}: process {note.pid}, rank {path.stem} of an earlier capture, has not ended yet. "
                "Wait until it has, which is a shard at most, and start again."
            )
    shutil.rmtree(writer.folder / "ranks", ignore_errors=True)
    missing = writer.missing()
    if rank.count == 1:
        yield missing
        return
    _publish_note(writer.folder, 0, writer.plan, missing=tuple(shard.name for shard in missing))
    try:
        yield missing
    except BaseException:
        (writer.folder / "ranks" / "0.json").unlink(missing_ok=True)  # the others' notes stay: they may write a last shard
        raise
    shutil.rmtree(writer.folder / "ranks", ignore_errors=True)


def await_others(writer: CacheWriter, rank: Rank, missing: list[ShardPlan], progress: Progress) -> None:
    """Return when every missing shard is there. Raises CacheError that names a rank that is gone, and what is still missing."""
    if rank.count == 1:
        return
    progress.phase(f"waiting for the other {rank.count - 1} processes")
    started = time.monotonic()
    while True:
        progress.stop_if_asked()
        may_be_late = time.monotonic() - started < JOIN_S
        gone = {number: who for number in range(1, rank.count) if (who := _gone(writer.folder, number, may_be_late=may_be_late))}
        lacking = [shard for shard in missing if not writer.has_entry(shard)]  # after the look at processes: a last shard may have come
        progress.at(len(missing) - len(lacking), len(missing), "shards")
        if not lacking:
            return
        for number, who in gone.items():
            if any(shard in lacking for shard in Rank(number, rank.count).share(missing)):
                names = ", ".join(shard.name for shard in lacking)
                raise CacheError(
                    f"cache {writer.name}: rank {number} {who}, and these shards are still missing: {names}. What was finished is kept. "
                    f"Go on with it, by one process or several: python -m distill_core capture --resume {writer.name}"
                )
        time.sleep(POLL_S)


def _gone(folder: Path, number: int, *, may_be_late: bool) -> str:
    """What became of the rank, in words; '' while it works or may still come."""
    note, leader = _note(folder, number), _note(folder, 0)
    if note is None or leader is None or note.leader != (leader.pid, leader.process_start_s):
        return "" if may_be_late else f"did not begin within {JOIN_S:.0f} s"
    return "" if note.is_alive() else f"(process {note.pid}) is gone"


class JoinedWriter(CacheWriter):
    """Writes one rank's share of a cache whose lock rank 0 holds; writes nothing once rank 0 is gone. Not a context manager."""

    def __init__(self, folder: Path, plan: Plan, rank: Rank, leader: Note) -> None:
        super().__init__(folder, plan)
        self._leader = leader
        planned = {shard.name: shard for shard in plan.shards}
        self.share = rank.share([planned[name] for name in leader.missing])
        """The shards to write."""
        _publish_note(folder, rank.number, plan, leader=(leader.pid, leader.process_start_s))

    def _is_led(self) -> bool:
        return self._leader.is_alive() and _note(self.folder, 0) == self._leader

    def write(self, shard: ShardPlan, columns: ShardColumns) -> ShardEntry:
        """As CacheWriter.write. Raises CacheError when rank 0 is gone, and with it the lock."""
        if not self._is_led():
            raise CacheError(
                f"cache {self.name}: rank 0 (process {self._leader.pid}) is gone, so this process stops too. What was finished is kept. "
                f"Go on with it, by one process or several: python -m distill_core capture --resume {self.name}"
            )
        return super().write(shard, columns)

    def await_manifest(self, progress: Progress) -> None:
        """Return when rank 0 has ended its work, well or not."""
        progress.phase("its share is done; rank 0 waits for the others")
        while self._is_led():
            progress.stop_if_asked()
            time.sleep(POLL_S)


def join(folder: Path, plan: Plan, rank: Rank, progress: Progress, *, is_finished: Callable[[], bool]) -> JoinedWriter | None:
    """This rank's place in the capture that rank 0 has begun; none where rank 0 has finished it meanwhile.

    Raises CacheError when rank 0 does not begin.
    """
    progress.phase("waiting for rank 0 to open the cache")
    deadline, looked_at = time.monotonic() + JOIN_S, None
    while time.monotonic() < deadline:
        progress.stop_if_asked()
        leader = _note(folder, 0)
        if leader is not None and leader.plan_sha256 == plan.sha256() and leader.is_alive():
            return JoinedWriter(folder, plan, rank, leader)
        manifest = folder / "manifest.json"
        stamp = manifest.stat().st_mtime_ns if manifest.exists() else None
        if stamp != looked_at:  # reading all of a damaged cache once is enough
            looked_at = stamp
            if is_finished():
                return None
        time.sleep(POLL_S)
    raise CacheError(
        f"cache {folder.name}: rank 0 has not begun this capture within {JOIN_S:.0f} s, so rank {rank.number} ends. See what rank 0 says: "
        "python -m distill_core runs list"
    )
