"""Numbers as people read them."""

import pytest

from distill_core import units


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "unknown"), (0.4, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_time(seconds, text):
    assert units.show_time(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(820, "820"), (2_160_000, "2.16M"), (135e6, "135M"), (1.24e9, "1.24B")])
def test_count(count, text):
    assert units.show_count(count) == text


@pytest.mark.parametrize(("num_bytes", "text"), [(12, "12 bytes"), (12_300, "12.3 kB"), (330e6, "330 MB"), (33e9, "33 GB")])
def test_disk_counts_in_thousands(num_bytes, text):
    assert units.show_disk(num_bytes) == text


def test_memory_counts_in_1024():
    assert units.show_gib(1.25 * 1024**3) == "1.25 GiB"
    assert units.show_gib(10 * 1024**2) == "10.0 MiB"
