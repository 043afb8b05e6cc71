"""What all tests share: a home folder of their own, and one thread, so that numbers do not depend on the machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest


@pytest.fixture(autouse=True)
def distill_home(tmp_path, monkeypatch):
    """Every test works in its own, empty home."""
    home = tmp_path / "home"
    monkeypatch.setenv("DISTILL_HOME", str(home))
    return home
