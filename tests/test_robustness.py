"""Robustness: what the rows are measured on, against a dense truth of their own, and `evaluate --robustness` on the built-in models."""

import json
import math

import numpy as np
import pytest
import torch
from steps import train_here

from distill_core import models
from distill_core.cli import run_command_line
from distill_core.config import with_overrides
from distill_core.heads import probe_head
from distill_core.judgement import bits_per_byte
from distill_core.robustness import SHORTEST, retyped, robustness, with_typos
from distill_core.scoring import score


def test_a_tenth_of_the_letters_is_swapped_or_dropped_and_nothing_else():
    text = "one two, three. " * 400
    damaged = with_typos(text, np.random.default_rng(0))
    letters = sum(letter.isalpha() for letter in text)
    assert len(text) - len(damaged) == pytest.approx(0.05 * letters, rel=0.15), "half of the hits drop a letter"
    assert [c for c in damaged if not c.isalpha()] == [c for c in text if not c.isalpha()]
    assert with_typos("", np.random.default_rng(0)) == "" == with_typos("", np.random.default_rng(1))
    assert with_typos("12 34!", np.random.default_rng(0)) == "12 34!"


def test_a_first_special_token_outlives_the_typos():
    tokenizer = models.load_tokenizer("builtin")
    first = tokenizer.all_special_ids[0]
    ids = [first, *tokenizer("Once upon a time there was a little dog who ran away.", add_special_tokens=False)["input_ids"]]
    found = retyped(ids, tokenizer, np.random.default_rng(0))
    assert found[0] == first and found != ids
    assert retyped([first], tokenizer, np.random.default_rng(0)) == [first]


def dense_second_halves(model, cache):
    """Nats and tokens of second halves, each document alone, by the model's own logits: only the text is shared with the code."""
    nll, tokens = 0.0, 0
    for window in range(cache.num_windows("heldout")):
        row = {name: values[0] for name, values in cache.rows("heldout", [window]).items()}
        lengths = list(cache.stored("heldout", window)["doc_lens"])
        start = 0
        for length in [*lengths, len(row["input_ids"]) - sum(lengths)]:
            ids = torch.from_numpy(row["input_ids"][start : start + length])
            if length >= SHORTEST:
                logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
                for t in range(length // 2, length - 1):
                    if row["targets"][start + t]:
                        nll -= logprobs[t, ids[t + 1]].item()
                        tokens += 1
            start += length
    return nll, tokens


def test_rows_against_score_and_dense_logits(small_cache):
    tokenizer, model = models.load_tokenizer("builtin"), models.load_model("builtin", dtype="float32")
    ops = probe_head(model)
    rows = {row["input"]: row for row in robustness(model, ops, small_cache, tokenizer, radius=0.3)}
    assert list(rows) == ["clean", "noise", "worst case", "clean halves", "typos"]
    scores = score(model, ops, small_cache)
    assert rows["clean"]["kl_to_teacher"] == pytest.approx(scores.kl_to_teacher, abs=1e-6)
    assert rows["clean"]["bits_per_byte"] == pytest.approx(scores.bits_per_byte, rel=1e-6)
    with torch.no_grad():
        nll, tokens = dense_second_halves(model, small_cache)
    assert rows["clean halves"]["num_tokens"] == rows["typos"]["num_tokens"] == tokens > 0
    num_bytes = nll / math.log(2) / rows["clean halves"]["bits_per_byte"]
    assert bits_per_byte(nll, num_bytes) == pytest.approx(rows["clean halves"]["bits_per_byte"])
    assert num_bytes == pytest.approx(round(num_bytes), abs=2e-3), "a whole number of bytes, so the nats are the same"
    order = [rows[name]["kl_to_teacher"] for name in ("clean", "noise", "worst case")]
    assert order == sorted(order) and order[2] > 2 * order[1], "the worst case is far worse than chance"
    assert rows["typos"]["kl_to_teacher"] > rows["clean halves"]["kl_to_teacher"]


def test_evaluate_says_it(small_cache, small_config, capsys):
    train_here(with_overrides(small_config, {"train.max_steps": 2, "loss.adversarial_weight": 0.5}), name="tried")
    assert run_command_line(["evaluate", "tried", "--robustness"]) == 0
    said = capsys.readouterr().out
    assert "worst case" in said and "typos" in said
    from distill_core.runs import open_run

    found = json.loads(open_run("tried").evaluation_path.read_text())["robustness"]
    assert {row["who"] for row in found} == {"student"} and {row["radius"] for row in found} == {0.05}
    assert run_command_line(["evaluate", "tried", "--robustness", "--radius", "0.2"]) == 0
    further = json.loads(open_run("tried").evaluation_path.read_text())["robustness"]
    assert {row["radius"] for row in further} == {0.2}
    near, far = (next(row["kl_to_teacher"] for row in rows if row["input"] == "worst case") for rows in (found, further))
    assert far > near


def test_a_radius_that_is_none_is_refused(capsys):
    for asked, words in ((["--radius", "0.1"], "which is not asked for"), (["--robustness", "--radius", "0"], "must be above 0, got 0")):
        assert run_command_line(["evaluate", "any", *asked]) == 2
        assert words in capsys.readouterr().err
