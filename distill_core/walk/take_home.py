"""Taking the student home: export and push in processes of their own, watched while they work, and the folder as one file."""

import io
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import RunError
from ..language import ENGLISH, Say
from ..runs import open_run
from ..units import show_time
from .place import export_folder

START_S = 10.0
"""Until a process has loaded torch and transformers, on two busy cores; 4 s on quiet ones."""
WRITE_BYTES_PER_S, SEND_BYTES_PER_S = 50e6, 2e6
"""For the guess of the time left only."""
POLL_S = 0.5


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder, 0 where it is not there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def export_s(run_id: str) -> float:
    """Seconds an export will take, guessed."""
    return START_S + folder_bytes(open_run(run_id).model_folder) / WRITE_BYTES_PER_S


def exporting(run_id: str) -> Iterator[float]:
    """Export a trained student into export_folder (it needs torch); yields the seconds gone until it is there. Raises RunError."""
    folder = export_folder(run_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return _working(["export", run_id, "--to", str(folder)])


def push_s(folder: Path) -> float:
    """Seconds a push will take, guessed."""
    return START_S + folder_bytes(folder) / SEND_BYTES_PER_S


def pushing(folder: Path, repo_id: str) -> Iterator[float]:
    """Send an exported folder to the Hub, into a private repository; yields the seconds gone until it is there. Raises RunError."""
    return _working(["push", str(folder), repo_id])


def left(gone_s: float, expected_s: float, *, say: Say = ENGLISH) -> str:
    """How long it will still take, in words."""
    if gone_s > expected_s:
        return say("It takes longer than was thought; it goes on.")
    return say("about {time} left", time=show_time(max(1.0, expected_s - gone_s)))


def _working(arguments: Sequence[str]) -> Iterator[float]:
    """Run a command of this program; seconds gone, twice a second. Raises RunError with its last words when it fails."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "distill_core", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while True:
        try:
            _, errors = process.communicate(timeout=POLL_S)
            break
        except subprocess.TimeoutExpired:
            yield time.monotonic() - started
    if process.returncode != 0:
        said = errors.strip().removeprefix("error: ")
        raise RunError(
            said or f"'{arguments[0]}' ended with code {process.returncode} and said nothing. Try it in a terminal, with --debug."
        )


def zipped(folder: Path) -> bytes:
    """The folder as one .zip file, in memory."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, Path(folder.name) / path.relative_to(folder))
    return into.getvalue()
