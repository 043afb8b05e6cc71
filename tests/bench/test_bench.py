"""The benchmark on shapes of nothing: what it measures is right, and a wrong implementation gets no speed."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from distill_core import bench
from distill_core.bench import cases, implementations, measure
from distill_core.multipliers import is_onednn_faster

TINY = cases.Shape(40, 512, 16)


@pytest.fixture
def no_peaks(monkeypatch):
    """Peaks take processes of their own; one test is enough for them."""
    monkeypatch.setattr(bench, "measure_peaks", lambda chosen, *_: [measure.Peak()] * len(chosen))


def test_rows_and_table(no_peaks):
    said = []
    rows = bench.bench_loss((TINY,), repeats=1, top_k=20, progress=said.append)
    floors, ours = [row for row in rows if row["tail"] is None], [row for row in rows if row["tail"]]
    assert [row["implementation"] for row in floors] == list(bench.FLOORS[: 1 + is_onednn_faster()])
    assert floors[0]["ratio_to_floor"] == 1.0
    assert all(row["is_right"] and row["median_s"] > 0 for row in ours)
    assert all(row["loss_error"] < 1e-2 and row["hidden_grad_error"] < 3e-3 for row in ours)
    assert [json.loads(line) for line in bench.json_lines(rows).splitlines()] == rows
    table = bench.bench_table(rows)
    assert "40 tokens, vocabulary 512, hidden 16, top 20, 1 thread(s), float32" in table
    assert {len(line) for line in table.splitlines() if line.startswith("  ")} == {len(bench.TABLE_HEAD)}, "columns line up"
    assert said == [f"40 tokens, vocabulary 512, hidden 16: {what}" for what in ("error against float64", "memory", "time")]


def test_wrong_code_gets_no_speed(no_peaks, monkeypatch):
    """A loss that is off by a ten-thousandth is fast for nothing."""

    def rounded(case, chunk_tokens):
        return implementations.sparse_autograd(case, chunk_tokens) * 1.0001

    bad = cases.Candidate(name="rounded", tail="renormalize", run=rounded)
    monkeypatch.setattr(bench, "candidates", lambda _: (*implementations.candidates()[:1], bad))
    rows = bench.bench_loss((TINY,), repeats=1, top_k=20)
    good, wrong = [row for row in rows if row["tail"]]
    assert (good["is_right"], wrong["is_right"]) == (True, False)
    assert wrong["median_s"] is None
    assert wrong["ratio_to_floor"] is None
    line = next(line for line in bench.bench_table(rows).splitlines() if "rounded" in line)
    assert "wrong" in line


def test_threads_are_put_back(no_peaks, monkeypatch):
    monkeypatch.setattr(bench, "candidates", lambda _: implementations.candidates()[:1])
    before = torch.get_num_threads()
    bench.bench_loss((TINY,), repeats=1, top_k=20, threads=2)
    assert torch.get_num_threads() == before


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's high-water mark")


@on_linux
def test_peaks_tell_chunks_from_dense_code():
    """2,048 tokens x 4,096: 32 MiB a logits tensor, 8 MiB a chunk. What the table says by arithmetic is what was measured."""
    shape = cases.Shape(2048, 4096, 16)
    chosen = [candidate for candidate in implementations.candidates() if candidate.logits_copies]
    chunked, *dense = bench.measure_peaks([implementations.candidates()[0], *chosen], shape, 20, threads=1)
    assert chunked.measured_bytes < 0.5 * min(peak.measured_bytes for peak in dense)
    assert chunked.wanted_bytes is None
    for candidate, peak in zip(chosen, dense, strict=True):
        assert peak.measured_bytes == pytest.approx(peak.wanted_bytes, rel=0.15), candidate.name


def killed_where_measured(case, chunk_tokens):
    """As if memory ended: right, until it is tried in a process of its own, beyond the few tokens of the first call there."""
    if multiprocessing.parent_process() is not None and case.hidden_ND.shape[0] > 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return implementations.sparse_autograd(case, chunk_tokens)


def refused_where_measured(case, chunk_tokens):
    """The allocator's own words, under a limit on this process's addresses."""
    import resource  # not on Windows

    if multiprocessing.parent_process() is not None and case.hidden_ND.shape[0] > 8:
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**28,) * 2)
        torch.empty(2**30)
    return implementations.sparse_autograd(case, chunk_tokens)


@on_linux
@pytest.mark.parametrize("dies", [killed_where_measured, refused_where_measured])
def test_the_table_goes_on_without_what_is_killed(monkeypatch, dies):
    bad = cases.Candidate(name="greedy", tail="renormalize", run=dies)
    first = implementations.candidates()[0]
    monkeypatch.setattr(bench, "candidates", lambda _: (first, bad, first))
    rows = bench.bench_loss((TINY,), repeats=1, top_k=20)
    ours = [row for row in rows if row["tail"]]
    assert [(row["is_right"], row["fits"]) for row in ours] == [(True, True), (True, False), (True, True)]
    assert [row["median_s"] is None for row in ours] == [False, True, False]
    assert ours[2]["peak_bytes"] >= 0
    line = next(line for line in bench.bench_table(rows).splitlines() if "greedy" in line)
    assert re.search(r"greedy +renormalize +does not fit +- ", line)
    assert len(line) == len(bench.TABLE_HEAD)


def test_what_wants_more_than_is_free_is_not_tried(monkeypatch):
    """2,048 x 151,936 x 4 bytes x 5 copies, the gradients of 2,048 + 151,936 rows of 16, and twice these: 5.84 GiB."""
    shape, dense = cases.Shape(2048, 151_936, 16), next(one for one in implementations.candidates() if one.name == "dense kl_div")
    wanted = 4 * (5 * 2048 * 151_936 + (2048 + 151_936) * 16)
    assert dense.wanted_bytes(shape, torch.float32) == wanted
    free = psutil.virtual_memory()._replace(available=wanted)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(measure, "peak_bytes_of", None)  # calling it would fail
    (peak,) = measure.measure_peaks([dense], shape, 100, threads=1)
    assert peak == measure.Peak(None, fits=False, wanted_bytes=wanted)


def test_a_row_says_what_it_would_want(monkeypatch):
    dense = next(one for one in implementations.candidates() if one.name == "dense kl_div")
    monkeypatch.setattr(bench, "candidates", lambda _: (dense,))
    monkeypatch.setattr(bench, "measure_peaks", lambda *_: [measure.Peak(None, fits=False, wanted_bytes=5 * 2**30)])
    rows = bench.bench_loss((TINY,), repeats=1, top_k=20)
    assert re.search(r"dense kl_div +renormalize +does not fit +~5120 MiB ", bench.bench_table(rows))
    assert json.loads(bench.json_lines(rows).splitlines()[-1])["wanted_bytes"] == 5 * 2**30


def ends_itself():
    os._exit(3)


@on_linux
def test_a_process_that_ends_otherwise_is_an_error():
    with pytest.raises(RuntimeError, match="exit code 3"):
        measure.in_own_process(multiprocessing.get_context("forkserver"), ends_itself)


def full_kl_by_hand(case):
    """Sum over tokens and vocabulary of q (ln q - ln p), over N, in numpy's float64."""
    hidden, teacher, head = (tensor.double().numpy() for tensor in (case.hidden_ND, case.teacher_hidden_ND, case.lm_head_VD))
    logs = []
    for inputs in (hidden, teacher):
        logits = inputs @ head.T
        logs.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    return float((np.exp(logs[1]) * (logs[1] - logs[0])).sum() / len(hidden))


def test_definitions_of_the_others():
    case = cases.check_case(TINY, 20)
    assert implementations.full_kl(case, None).item() == pytest.approx(full_kl_by_hand(case), rel=1e-9)
    logits = (case.hidden_ND @ case.lm_head_VD.T).numpy()
    picked = logits[np.arange(len(logits)), case.labels_N.numpy()]
    assert implementations.hard_labels(case, None).item() == pytest.approx((np.log(np.exp(logits).sum(-1)) - picked).sum(), rel=1e-9)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="torch 2.13 has linear_cross_entropy")
def test_torch_has_a_row():
    assert "torch linear_cross_entropy" in [row.name for row in implementations.peers(is_gpu=False)]


@pytest.mark.skipif(find_spec("liger_kernel") is None, reason="liger-kernel is not installed")
def test_liger_has_a_row_and_is_held_to_its_own_definition():
    (liger,) = (row for row in implementations.peers(is_gpu=False) if row.name.startswith("Liger"))
    case = cases.check_case(TINY, 20)
    _, is_right = cases.errors(liger, case, torch.float32, {})
    assert is_right
    off = cases.Candidate(name="off", tail=liger.tail, run=lambda *of: liger.run(*of) * 1.0001, definition=liger.definition)
    assert not cases.errors(off, case, torch.float32, {})[1]


def test_no_row_for_what_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    assert implementations.peers(is_gpu=True) == []


INTERPRETED = """
import torch
from distill_core.bench import cases, implementations
case = cases.check_case(cases.Shape(40, 512, 16), 20)
for row in implementations.peers(is_gpu=True):
    if row.run in (implementations.liger_linear_kl, implementations.liger_linear_ce):
        print(row.name, cases.errors(row, case, torch.float32, {})[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("liger_kernel") is None or find_spec("triton") is None, reason="liger-kernel and triton are not installed")
def test_ligers_triton_rows_in_the_interpreter():
    """Their arithmetic; on a GPU they have not been run."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["Liger fused linear CE True", "Liger fused linear KL True"], done.stderr
