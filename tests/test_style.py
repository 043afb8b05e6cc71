"""Everything that a tool can check, so that one command, pytest, runs all checks."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECKS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "notebooks": ["marimo", "check", "--strict", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "apps").glob("*.py"))],
}


@pytest.mark.parametrize("name", CHECKS)
def test_check(name):
    done = subprocess.run([sys.executable, "-m", *CHECKS[name]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(CHECKS[name])}\n{done.stdout}\n{done.stderr}"
