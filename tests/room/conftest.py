"""A room for a test: its policy file, named by the environment as the server does it."""

import json

import pytest

from distill_core.room import POLICY_VARIABLE


@pytest.fixture
def a_room(tmp_path, monkeypatch):
    """a_room(**rules) makes this process part of a room with these rules."""

    def make(**rules):
        path = tmp_path / "policy.json"
        path.write_text(json.dumps(rules, default=str))
        monkeypatch.setenv(POLICY_VARIABLE, str(path))

    return make
