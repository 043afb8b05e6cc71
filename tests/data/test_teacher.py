"""The teacher that ships: it is the one its record speaks of, and it keeps documents in a window apart."""
# B: windows   L: tokens in a window

import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from measure_teacher import TEACHER, heldout_examples, measure

from distill_core.config import TextConfig
from distill_core.corpus import build_windows, builtin_tokenizer

FIGURES = json.loads((TEACHER / "training.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def teacher():
    return transformers.AutoModelForCausalLM.from_pretrained(TEACHER, dtype=torch.float32).eval()


def quality_of(teacher, num_documents):
    examples, _ = heldout_examples(
        num_documents, FIGURES["recipe"]["seed"], tokenizers.Tokenizer.from_file(str(TEACHER / "tokenizer.json"))
    )
    return measure(teacher, examples)


def test_it_is_as_good_as_its_record_says(teacher):
    quality = quality_of(teacher, 150)
    assert quality.gap == pytest.approx(FIGURES["heldout"]["gap"], abs=0.01)
    assert quality.probe_accuracy == pytest.approx(FIGURES["heldout"]["probe_accuracy"], abs=0.03)


@pytest.mark.slow
def test_it_is_exactly_as_good_as_its_record_says(teacher):
    quality = quality_of(teacher, FIGURES["recipe"]["heldout_documents"])
    assert quality.loss == pytest.approx(FIGURES["heldout"]["loss"], abs=1e-4)
    assert quality.probe_accuracy == pytest.approx(FIGURES["heldout"]["probe_accuracy"], abs=1e-3)


@pytest.mark.slow
def test_its_tokenizer_is_the_one_that_the_command_makes():
    from build_teacher import Recipe, train_tokenizer

    made = json.loads(train_tokenizer(Recipe(**FIGURES["recipe"])).to_str())
    shipped = json.loads((TEACHER / "tokenizer.json").read_text(encoding="utf-8"))
    assert made["model"] == shipped["model"]


def test_it_is_worth_learning_from(teacher):
    assert FIGURES["heldout"]["gap"] < 0.05, "nats per token above the entropy of the text"
    assert FIGURES["heldout"]["probe_accuracy"] > 0.9
    assert sum(weight.numel() for weight in teacher.parameters()) == 2_164_416
    assert sum(path.stat().st_size for path in TEACHER.iterdir()) < 5e6


def test_documents_in_one_window_do_not_see_each_other(teacher):
    """Positions that restart at each document, and no mask: transformers keeps documents apart by itself."""
    windows = build_windows(TextConfig(num_windows=4, num_heldout_windows=1), builtin_tokenizer()).train
    ids_BL = torch.from_numpy(windows.input_ids_NL.astype(np.int64))
    positions_BL = torch.zeros_like(ids_BL)
    for row, lengths in enumerate(windows.doc_lens):
        positions_BL[row] = torch.cat([torch.arange(length) for length in [*lengths, ids_BL.shape[1] - sum(lengths)]])
    with torch.no_grad():
        packed = teacher(input_ids=ids_BL, position_ids=positions_BL, use_cache=False).logits
        for row, lengths in enumerate(windows.doc_lens):
            start = 0
            for length in lengths:
                here = slice(start, start + length)
                alone = teacher(input_ids=ids_BL[row : row + 1, here]).logits[0]
                torch.testing.assert_close(packed[row, here], alone, atol=1e-4, rtol=0)
                start += length


def test_row_t_is_about_token_t_plus_1(teacher):
    """On the windows' own targets the teacher is as good as its record says; one row off, it knows nothing."""
    windows = build_windows(TextConfig(num_windows=12, num_heldout_windows=1, packing=False), builtin_tokenizer()).train
    ids_BL = torch.from_numpy(windows.input_ids_NL.astype(np.int64))
    targets_BP = torch.from_numpy(windows.targets_NP)
    with torch.no_grad():
        logprobs = teacher(input_ids=ids_BL, use_cache=False).logits.log_softmax(-1)
    right = -logprobs[:, :-1][targets_BP].gather(1, ids_BL[:, 1:][targets_BP][:, None]).mean()
    wrong = -logprobs[:, :-1][targets_BP].gather(1, ids_BL[:, :-1][targets_BP][:, None]).mean()
    assert right == pytest.approx(FIGURES["heldout"]["loss"], abs=0.2)
    assert wrong > 5


def test_the_readme_tells_its_figures():
    readme = (TEACHER.parent / "README.md").read_text(encoding="utf-8")
    heldout = FIGURES["heldout"]
    row = (
        f"| {heldout['loss']:.4f} | {heldout['entropy']:.4f} | {heldout['gap']:.4f} | {heldout['probe_accuracy']:.1%}".replace("%", " %")
        + f" | {FIGURES['cpu_seconds']:,} CPU-seconds, one thread |"
    )
    assert row in readme
    for step in FIGURES["history"]:
        assert f" {step['gap']:.3f} |" in readme
        assert f" {100 * step['probe_accuracy']:.1f} % |" in readme
