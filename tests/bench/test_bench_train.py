"""One training step measured: the losses agree, wrong code gets no speed, and what does not fit is refused before it is tried."""

import json

import psutil
import pytest

from distill_core.bench import steps
from distill_core.bench.measure import Peak
from distill_core.cli import run_command_line
from distill_core.errors import ConfigError

TINY = steps.Size(num_windows=2, window_tokens=16, vocab_size=512, hidden_size=32, num_layers=1, top_k=8)


@pytest.fixture
def no_peaks(monkeypatch):
    monkeypatch.setattr(steps, "_peak", lambda *_: Peak())


def test_the_command(no_peaks, monkeypatch, capsys):
    monkeypatch.setattr(steps, "QUICK", TINY)
    assert run_command_line(["bench", "train", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["methods"]] == list(steps.METHODS)
    assert all(row["is_right"] and row["median_s"] > 0 and row["fused_over_it"] > 0 for row in found["methods"])
    assert found["data_share"] > 0
    assert found["metrics_share"] > 0
    table = steps.train_table(found)
    assert "2 x 16 tokens, vocabulary 512, top 8, 1 thread(s)" in table
    assert {len(line) for line in table.splitlines() if line.startswith("  ")} == {64}, "columns line up"


def test_losses_that_disagree_get_no_speed(no_peaks, monkeypatch):
    real = steps.Bench.gathered
    monkeypatch.setattr(steps.Bench, "gathered", lambda self, batch: real(self, batch) * 1.001)
    found = steps.bench_train(TINY, repeats=1)
    assert [row["is_right"] for row in found["methods"]] == [True, False, True]
    assert found["methods"][1]["median_s"] is None
    assert found["methods"][1]["fused_over_it"] is None
    assert "wrong" in steps.train_table(found)


def test_what_would_not_fit_is_refused(monkeypatch):
    """8 x 512 tokens of 151,936: 4.5 tensors of 2.3 GiB."""
    free = psutil.virtual_memory()._replace(available=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(ConfigError, match=r"8 x 512 tokens want about 10\.43 GiB, 1\.00 GiB are free"):
        steps.bench_train()


def test_a_step_that_is_killed_gets_no_time(monkeypatch):
    """The arithmetic let it pass, the machine did not."""
    monkeypatch.setattr(steps, "_peak", lambda method, *_: Peak(fits=method != steps.METHODS[1]))
    found = steps.bench_train(TINY, repeats=1)
    assert [row["fits"] for row in found["methods"]] == [True, False, True]
    assert [row["median_s"] is None for row in found["methods"]] == [False, True, False]
    table = steps.train_table(found)
    assert "does not fit" in table
    assert {len(line) for line in table.splitlines() if line.startswith("  ")} == {64}, "columns line up"


def test_a_fused_step_that_is_killed_is_refused(monkeypatch):
    monkeypatch.setattr(steps, "in_own_process", lambda *_: None)
    monkeypatch.setattr(steps, "can_reset_peak", lambda: True)
    with pytest.raises(ConfigError, match="not even the fused step of 2 windows"):
        steps.bench_train(TINY, repeats=1)


@pytest.mark.slow
def test_peaks_in_processes_of_their_own():
    fused, gathered, hard = (row["peak_bytes"] for row in steps.bench_train(steps.QUICK, repeats=1)["methods"])
    assert fused < min(gathered, hard)


@pytest.mark.parametrize("words", ["1,2", "1,2,x", "0,5,5"])
def test_a_shape_that_is_none(words, capsys):
    with pytest.raises(SystemExit):
        run_command_line(["bench", "loss", "--shape", words])
    assert words in capsys.readouterr().err
