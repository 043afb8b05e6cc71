"""The cache against its teacher, run again; and what it says when it is not its teacher any more."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch

from distill_core import models
from distill_core.cache import browse, open_cache, show_browse
from distill_core.cli import run_command_line
from distill_core.config import with_overrides
from distill_core.errors import CacheError, ConfigError
from distill_core.faithfulness import agreement, compare
from distill_core.sparse import SparseRows


def rows_of(logits_RV, *, top_k):
    logprobs_RV = logits_RV.log_softmax(-1)
    values_RK, ids_RK = logprobs_RV.topk(top_k)
    tail_R = logprobs_RV.scatter(1, ids_RK, -torch.inf).logsumexp(-1)
    nothing = torch.zeros(len(logits_RV))
    return SparseRows(ids_RK, values_RK, tail_R[:, None].expand(-1, 6), nothing[:, None], logprobs_RV[:, 0], nothing)


def test_agreement_by_hand():
    """Two of three tokens stored, no noise: the KL of the buckets is that of the distributions when the rest is one token."""
    one, other = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.4, 0.35, 0.25]]).log()
    found = agreement("other", rows_of(one, top_k=2), rows_of(other, top_k=2))
    assert found.kl == pytest.approx(0.5 * np.log(0.5 / 0.4) + 0.3 * np.log(0.3 / 0.35) + 0.2 * np.log(0.2 / 0.25), abs=1e-6)
    assert (found.top1_agreement, found.same_entries) == (1.0, 1.0)
    assert found.gold_error == pytest.approx(np.log(0.5 / 0.4), abs=1e-6)


def test_entries_that_differ_count_as_the_rest():
    one, other = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.5, 0.2, 0.3]]).log()
    found = agreement("other", rows_of(one, top_k=2), rows_of(other, top_k=2))
    assert found.same_entries == 0.5
    assert found.kl == pytest.approx(0.0, abs=1e-6), "0.5 against 0.5, and half of each is elsewhere"
    assert agreement("itself", rows_of(one, top_k=3), rows_of(one, top_k=3)).kl == pytest.approx(0.0, abs=1e-6)


def test_a_cache_is_faithful_to_its_teacher(small_cache):
    found = compare(small_cache, num_windows=6, device="cpu")
    assert found.is_faithful
    assert found.num_positions > 200
    assert found.batch_windows == (4, 1)
    assert found.stored.top1_agreement > 0.995
    assert 0 <= found.stored.kl < 2e-5
    assert found.yardstick.kl < 1e-6
    assert found.stored.gold_error < 1e-3
    assert "the cache says what its teacher says" in found.to_text()


def test_another_teacher_behind_the_same_name_is_refused(small_cache, monkeypatch):
    monkeypatch.setattr(models, "weights_fingerprint", lambda *_: {"files": {"config.json": "0" * 64}})
    with pytest.raises(
        CacheError, match=r"not the teacher it was captured from:\n  teacher.config.json: .* in the cache, 000000000000… now"
    ):
        compare(small_cache, device="cpu")


def test_a_cache_that_says_something_else_is_found(small_cache, monkeypatch):
    rows = small_cache.rows

    def shifted(split, picked, **options):
        found = rows(split, picked, **options)
        return found | {"teacher_logprobs": np.roll(found["teacher_logprobs"], 1, axis=1)}

    monkeypatch.setattr(small_cache, "rows", shifted)
    found = compare(small_cache, num_windows=3, device="cpu")
    assert not found.is_faithful
    assert "SAYS SOMETHING ELSE" in found.to_text()


def test_browse_says_what_the_rows_say(small_cache):
    table = browse(small_cache, "train", 2, num_choices=3, temperature=2.0)
    row = {name: values[0] for name, values in small_cache.rows("train", [2], temperature=2.0).items()}
    assert table["is_target"].to_list()[1:] == row["targets"][: table.height - 1].tolist()
    assert not table["is_target"][0]
    shown = table.filter(pl.col("is_target"))
    assert shown["probability"].to_list() == pytest.approx(np.exp(row["gold_logprob"][row["targets"]]).tolist(), rel=1e-5)
    assert all(0 < mass <= 1 for mass in shown["kept_mass"])
    assert all([c["probability"] for c in cell] == sorted((c["probability"] for c in cell), reverse=True) for cell in shown["choices"])
    assert "\ufffd" not in show_browse(table)
    text = "".join(table["token"].to_list())
    assert " the " in text


def test_commands(small_cache, small_config, capsys):
    assert run_command_line(["cache", "browse", "small", "--split", "heldout", "--window", "1", "--choices", "2"]) == 0
    assert "%" in capsys.readouterr().out
    assert run_command_line(["cache", "compare", "small", "--windows", "2", "--device", "cpu"]) == 0
    assert "itself, 1 window(s) at a time" in capsys.readouterr().out
    assert run_command_line(["cache", "estimate", "--text.num_windows", "10", "--capture.codec", "packed"]) == 0
    assert "break-even" in capsys.readouterr().out
    assert run_command_line(["cache", "info", "small"]) == 0
    assert "at T = 0.5" in capsys.readouterr().out
    assert run_command_line(["cache", "browse", "small", "--window", "99"]) == 2
    assert "no window 99" in capsys.readouterr().err


def test_a_capture_leaves_its_speed_for_the_next_estimate(small_cache, small_config):
    from distill_core.cache import estimate

    cost = estimate(with_overrides(small_config, {"text.num_windows": 48}), vocab_size=2048)
    assert cost.tokens_per_s == small_cache.manifest.teacher.read_tokens_per_s > 100
    assert "as in cache small" in cost.bytes_from


def test_temperature_of_browse_has_its_range(small_cache):
    with pytest.raises(ConfigError, match=r"\[0.5, 8\]"):
        browse(open_cache("small"), "train", 0, temperature=10)


def test_agreement_is_a_record():
    assert {field.name for field in dataclasses.fields(agreement("x", *[rows_of(torch.zeros(2, 5), top_k=2)] * 2))} >= {"kl", "who"}
