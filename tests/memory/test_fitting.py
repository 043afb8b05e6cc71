"""What fits where, what the page says of it, and the published points beside the plan."""

import json

import pytest

from distill_core import catalog, memory
from distill_core.charts.memory import memory_chart, top_of
from distill_core.charts.saving import saved
from distill_core.config import from_dict
from distill_core.errors import ModelError
from distill_core.language import in_language
from distill_core.memory import views
from distill_core.memory.reports import knobs

TEACHER = catalog.listed_facts("Qwen/Qwen3-8B")
STUDENT = catalog.listed_facts("Qwen/Qwen3-0.6B")
CONFIG = from_dict({"device": "cuda", "text": {"packing": False}, "train": {"per_device_train_batch_size": 1}})


def test_gpus_are_told_apart_and_sorted():
    gpus = memory.gpus()
    assert len({gpu.label for gpu in gpus}) == len(gpus)
    assert [gpu.memory_bytes for gpu in gpus] == sorted(gpu.memory_bytes for gpu in gpus)
    h200 = next(gpu for gpu in gpus if gpu.name == "H200")
    assert (h200.label, h200.memory_bytes) == ("H200, 141 GB", 141_000_000_000)


def test_the_smallest_that_holds_it_comes_first_and_too_much_fits_nowhere():
    assert memory.fitting_gpus(0)[0] == memory.gpus()[0]
    assert memory.fitting_gpus(12_000_000_001)[0].memory_bytes == 16_000_000_000
    assert memory.fitting_gpus(10**13) == []


def test_longest_windows_are_the_longest_that_the_plan_lets_in():
    limit = 24_000_000_000
    longest = memory.longest_windows(TEACHER, STUDENT, CONFIG, limit_bytes=limit)
    for mode in memory.MODES:
        for window, fits in ((longest[mode], True), (2 * longest[mode], False)):
            config = CONFIG.changed(text=CONFIG.text.changed(window_tokens=max(window, 128)))
            assert (memory.peaks(TEACHER, STUDENT, config, gpu=True)[mode] <= limit) is (fits and window > 0), (mode, window)
    assert longest["online"] < longest["offline dense"] < longest["offline fused"]
    assert memory.longest_windows(TEACHER, STUDENT, CONFIG, limit_bytes=1) == dict.fromkeys(memory.MODES, 0)


def test_windows_beyond_a_models_positions_are_not_tried():
    short = catalog.listed_facts("openai-community/gpt2")
    longest = memory.longest_windows(short, short, CONFIG, limit_bytes=10**15)
    assert set(longest.values()) == {1024}


def test_the_bars_add_up_to_the_plan():
    rows = memory.plan_over(TEACHER, STUDENT, CONFIG, windows=(512, 1024), gpu=True)
    at = CONFIG.changed(text=CONFIG.text.changed(window_tokens=1024))
    for mode, peak in memory.peaks(TEACHER, STUDENT, at, gpu=True).items():
        mine = [row["gib"] for row in rows if (row["mode"], row["window_tokens"]) == (mode, 1024)]
        assert sum(mine) * 2**30 == pytest.approx(peak)
    assert top_of(rows) == pytest.approx(1.08 * memory.peaks(TEACHER, STUDENT, at, gpu=True)["online"] / 2**30)


@pytest.mark.parametrize("mode", memory.MODES)
def test_bars_draw_with_limits_and_points(mode):
    theirs = [catalog.listed_facts(memory.published_config().teacher.model), catalog.listed_facts(memory.published_config().student.model)]
    rows = memory.plan_over(*theirs, memory.published_config(), windows=(8192, 32768), gpu=True)
    points = views.published_points(memory.published_config())
    top = top_of(rows, points)
    limits = [{"name": "small card", "gib": 22.0}, {"name": "far away", "gib": 9_000.0}]
    drawn = saved(memory_chart(rows, mode=mode, top_gib=top, limits=limits, points=points), "svg").decode()
    assert ">published<" in drawn
    assert "small card" in drawn
    assert "far away" not in drawn
    assert (">estimated<" in drawn) is (mode == "offline dense")
    assert saved(memory_chart([], mode=mode, top_gib=1.0), "svg").startswith(b"<svg")


def test_published_points_stand_only_beside_their_own_setting():
    theirs = memory.published_config()
    assert len(views.published_points(theirs)) == len(memory.PUBLISHED) == 5
    assert views.published_points(theirs.changed(train=theirs.train.changed(per_device_train_batch_size=2))) == []
    assert views.published_points(CONFIG) == []
    fused = next(point for point in memory.PUBLISHED if (point.mode, point.window_tokens) == ("offline fused", 8192))
    assert fused.gib == pytest.approx(58.3e9 / 2**30)


def test_words_name_the_card_and_the_price():
    peaks = {"online": 13_000_000_000, "offline dense": 10**13, "offline fused": 11_000_000_000}
    said = views.fit_words(peaks)
    assert "Online: about 12.11 GiB. Smallest GPU of the list that holds it: RTX 4060 Ti, 16 GB (14.9 GiB)." in said
    assert "Offline dense: about 9313.23 GiB. No single GPU" in said
    assert "RTX 3060, 12 GB" in said
    long = CONFIG.changed(text=CONFIG.text.changed(window_tokens=8192))
    savings = memory.savings(TEACHER, STUDENT, long, gpu=True)
    assert [less for less, _ in savings] == sorted((less for less, _ in savings), reverse=True)
    assert "compute activations twice (train.activation_checkpointing true): about" in views.saving_words(savings)
    assert "cerca de um terço mais lento" in views.saving_words(savings, say=in_language("pt"))
    assert "only a smaller student" in views.saving_words([])


def test_facts_from_a_config_alone(tmp_path):
    path = tmp_path / "config.json"
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, **shape}))
    facts = catalog.config_facts(path)
    # embedding; per layer four attention matrices, three of the feed-forward part, two norms; the last norm
    assert facts.num_parameters == 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    path.write_text(json.dumps({"architectures": ["BertModel"], **shape}))
    with pytest.raises(ModelError, match="not a causal language model"):
        catalog.config_facts(path)
    with pytest.raises(ModelError, match=r"not in data/models.csv. Did you mean"):
        catalog.listed_facts("Qwen/Qwen3-9B")


def test_remedies_are_named_as_the_page_and_as_the_settings_name_them():
    config = CONFIG.changed(train=CONFIG.train.changed(per_device_train_batch_size=4, bf16=False), device="cuda")
    words = [views.knob_words(knob, say=in_language("pt")) for knob in knobs(STUDENT, config)]
    assert words[1] == "calcular as ativações duas vezes (train.activation_checkpointing true)"
    assert "Janelas" in words[0] and "train.per_device_train_batch_size 2" in words[0]
    assert {key for knob in knobs(STUDENT, config) for values in knob.changes.values() for key in values} == set(views.CONTROLS)


def test_a_gpus_memory_is_said_in_the_plans_unit_too():
    a100 = next(gpu for gpu in memory.gpus() if gpu.label == "A100, 80 GB")
    assert views.sized(a100) == "A100, 80 GB (74.5 GiB)"
    assert views.sized(a100, say=in_language("pt")) == "A100, 80 GB (74,5 GiB)"
