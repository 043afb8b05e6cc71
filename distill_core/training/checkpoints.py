"""Where a killed run goes on: the newest checkpoint that was written to its end."""

import json
from pathlib import Path


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: its trainer_state.json comes last and can be read."""
    whole = [path for path in folder.glob("checkpoint-*") if checkpoint_step(path) is not None]
    return max(whole, key=lambda path: checkpoint_step(path) or 0, default=None)


def checkpoint_step(path: Path) -> int | None:
    try:
        return int(json.loads((path / "trainer_state.json").read_text())["global_step"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None
