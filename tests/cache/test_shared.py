"""One opened cache for everybody in a process, and a new one as soon as its files are others."""

import numpy as np
import pytest
from made import make

from distill_core.cache import delete_cache, open_cache, shared_cache
from distill_core.cache import shared as module
from distill_core.errors import CacheError


def test_all_who_look_share_one():
    make("made")
    one = shared_cache("made")
    assert shared_cache("made") is one
    np.testing.assert_array_equal(one.kept_mass(2.0), open_cache("made").kept_mass(2.0))


def test_another_capture_of_that_name_is_another_cache():
    make("made", num_windows=24)
    before = shared_cache("made")
    delete_cache("made")
    with pytest.raises(CacheError, match="no cache 'made'"):
        shared_cache("made")
    make("made", num_windows=29)
    assert shared_cache("made") is not before
    assert shared_cache("made").num_windows("train") == 25


def test_few_are_kept_and_each_holds_little(monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    names = ("a", "b", "c")
    for name in names:
        make(name, num_windows=9)
    first = shared_cache("a")
    for name in names:
        shared_cache(name)
    assert shared_cache("a") is not first
    assert len(module._opened) == 2
    monkeypatch.setattr(module, "BUDGET_BYTES", 1)
    module._opened.clear()
    small = shared_cache("b")
    for index in range(5):
        small.rows("train", [index])
    assert len(small._groups) == 1
