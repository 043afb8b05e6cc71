"""The benchmark on shapes of nothing: what it measures is right, and a wrong implementation gets no speed."""

import json
import sys

import pytest
import torch

from distill_core import bench
from distill_core.bench import cases

TINY = cases.Shape(40, 512, 16)


@pytest.fixture
def no_peaks(monkeypatch):
    """Peaks take processes of their own; one test is enough for them."""
    monkeypatch.setattr(bench, "measure_peaks", lambda indices, *_: [None] * len(indices))


def test_rows_and_table(no_peaks):
    said = []
    rows = bench.bench_loss((TINY,), repeats=1, top_k=20, progress=said.append)
    assert rows[0]["implementation"] == bench.FLOOR
    assert all(row["is_right"] and row["median_s"] > 0 for row in rows[1:])
    assert all(row["loss_error"] < 1e-2 and row["hidden_grad_error"] < 3e-3 for row in rows[1:])
    assert [json.loads(line) for line in bench.json_lines(rows).splitlines()] == rows
    table = bench.bench_table(rows)
    assert "40 tokens, vocabulary 512, hidden 16, top 20, 1 thread(s), float32" in table
    assert {len(line) for line in table.splitlines() if line.startswith("  ")} == {len(bench.TABLE_HEAD)}, "columns line up"
    assert said == [f"40 tokens, vocabulary 512, hidden 16: {what}" for what in ("error against float64", "memory", "time")]


def test_wrong_code_gets_no_speed(no_peaks, monkeypatch):
    """A loss that is off by a ten-thousandth is fast for nothing."""

    def rounded(case, chunk_tokens):
        return cases.sparse_autograd(case, chunk_tokens) * 1.0001

    bad = cases.Candidate(name="rounded", tail="renormalize", run=rounded)
    monkeypatch.setattr(bench, "candidates", lambda _: (*cases.candidates()[:1], bad))
    rows = bench.bench_loss((TINY,), repeats=1, top_k=20)
    assert (rows[1]["is_right"], rows[2]["is_right"]) == (True, False)
    assert rows[2]["median_s"] is None
    assert rows[2]["ratio_to_floor"] is None
    assert "rounded" in (line := bench.bench_table(rows).splitlines()[4])
    assert "wrong" in line


def test_threads_are_put_back(no_peaks, monkeypatch):
    monkeypatch.setattr(bench, "candidates", lambda _: cases.candidates()[:1])
    before = torch.get_num_threads()
    bench.bench_loss((TINY,), repeats=1, top_k=20, threads=2)
    assert torch.get_num_threads() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's high-water mark")
def test_peaks_tell_chunks_from_dense_code():
    """2,048 tokens x 4,096: 32 MiB a logits tensor, 8 MiB a chunk."""
    chunked, dense = bench.measure_peaks([0, 8], cases.Shape(2048, 4096, 16), 20, threads=1)
    assert chunked < 0.5 * dense
    assert dense > 64 * 2**20
