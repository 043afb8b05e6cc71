"""What each technique gained over plain KL, as measured when this version was made: data/techniques.jsonl, one row to a line.

The file is what `python -m distill_core bench techniques --json` prints.
"""

import json
from typing import Any

from ..paths import data_dir

Row = dict[str, Any]


def measured() -> dict[str, Row]:
    """Technique -> its row; those that were not measured are not there."""
    path = data_dir() / "techniques.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.strip()]
    return {row["technique"]: row for row in rows}


def verdict(row: Row) -> int:
    """1: it helped beyond its 95 % interval; -1: it did harm beyond it; 0: neither, or one seed only."""
    width = row["gain_half_width"]
    if width is None or abs(row["gain"]) <= width:
        return 0
    return 1 if row["gain"] > 0 else -1
