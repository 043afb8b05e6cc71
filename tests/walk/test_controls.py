"""Controls to config and back, the costs named before anything is spent, and the preview."""

import io
import json
import math
import zipfile

import pytest

from distill_core import catalog
from distill_core.cache import open_cache
from distill_core.cache.estimate import CPU_FLOPS
from distill_core.config import DistillConfig, from_dict
from distill_core.errors import CacheError, ConfigError, TextError
from distill_core.walk import controls, facts, lookups, take_home

PLAIN = DistillConfig()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"teacher": {"model": "Qwen/Qwen3-8B", "revision": "abc"}, "text": {"source": "owner/name", "subset": "en", "column": "messages"}},
        {"student": {"init": "prune_layers", "keep_layers": [0, 3]}, "train": {"learning_rate": 0.003, "max_steps": 40, "eval_steps": 7}},
        {"student": {"init": "pretrained", "model": "Qwen/Qwen3-0.6B", "revision": "abc"}, "loss": {"kl_weight": 1.0, "ce_weight": 0.5}},
        {"student": {"num_layers": 3, "hidden_size": 64, "num_attention_heads": 2}, "loss": {"temperature": 1.3, "tail": "drop"}},
        {"student": {"init": "prune_layers", "lora_rank": 8, "lora_alpha": 4, "lora_dropout": 0.1, "lora_target_modules": ["q_proj"]}},
        {"student": {"init": "pretrained", "model": "Qwen/Qwen3-0.6B", "lora_rank": 16, "quantize": "4bit"}, "train": {"bf16": True}},
        {"student": {"init": "prune_layers", "layer_choice": "importance", "intermediate_size": 200}},
        {"loss": {"divergence": "jsd", "jsd_weight": 0.3, "z_loss_weight": 2e-4, "top_k": 7}, "train": {"gradient_accumulation_steps": 4}},
        {
            "capture": {"hidden_layers": [1, 2], "hidden_codec": "int8", "hidden_size": 9},
            "loss": {"hidden_weight": 2, "layer_map": [[1, 2]]},
        },
        {"loss": {"adversarial_weight": 0.7, "adversarial_radius": 0.2, "adversarial_steps": 3}},
        {"text": {"num_windows": 60, "num_heldout_windows": 16, "packing": False}, "capture": {"top_k": 33, "batch_windows": 2}},
        {"capture": {"context": "Be brief.\n"}},
        {"capture": {"context_file": "examples.txt"}},
    ],
)
def test_a_config_survives_the_controls(values):
    """What a visitor comes back to is what the run was made with, also where the controls do not show it."""
    config = from_dict(values)
    assert controls.config_from(config, controls.control_values(config)) == config


def changed(section, **values):
    shown = controls.control_values(PLAIN)
    return controls.config_from(PLAIN, shown | {section: shown[section] | values})


def test_a_context_that_is_typed_takes_the_place_of_a_file_and_costs_are_shown():
    base = from_dict({"capture": {"context_file": "examples.txt"}})
    shown = controls.control_values(base)
    typed = controls.config_from(base, shown | {"capture": shown["capture"] | {"context": "Be brief. " * 40}})
    assert (typed.capture.context, typed.capture.context_file) == ("Be brief. " * 40, None)
    assert changed("capture", context="  ").capture.context is None
    cost = lookups.estimate_cache(typed, catalog.facts("builtin"))
    plain = lookups.estimate_cache(PLAIN, catalog.facts("builtin"))
    assert cost.num_tokens > 1.5 * plain.num_tokens
    assert "context is read before every document" in facts.cost(cost)
    assert "context" not in facts.cost(plain)


def test_what_follows_from_a_control():
    assert changed("text", num_windows=100).text.num_heldout_windows == 25
    assert changed("text", num_windows=12800).text.num_heldout_windows == 64
    assert (changed("train", max_steps=40).train.eval_steps, changed("train", max_steps=40).train.warmup_steps) == (4, 3)
    assert (changed("loss", hard_share=0.25).loss.kl_weight, changed("loss", hard_share=0.25).loss.ce_weight) == (0.75, 0.25)
    assert changed("student", init="prune_layers").train.learning_rate == controls.LEARNING_RATES["prune_layers"]
    assert changed("teacher", kind="hub", model=" Qwen/Qwen3-8B ").teacher.model == "Qwen/Qwen3-8B"


def test_adapters_belong_to_trained_weights():
    adapted = changed("student", init="prune_layers", lora_rank=8, quantize="4bit").student
    assert (adapted.lora_rank, adapted.quantize) == (8, None), "only stored weights are quantized"
    assert changed("student", init="fresh", lora_rank=8).student == PLAIN.student
    stored = from_dict({"student": {"init": "prune_layers", "lora_rank": 8, "lora_alpha": 4}})
    values = controls.control_values(stored)
    assert controls.config_from(stored, values | {"student": values["student"] | {"lora_rank": 0}}).student.lora_alpha is None


def test_layers_by_importance_replace_those_that_were_named():
    stored = from_dict({"student": {"init": "prune_layers", "keep_layers": [0, 3], "intermediate_size": 64}})
    values = controls.control_values(stored)
    student = controls.config_from(stored, values | {"student": values["student"] | {"layer_choice": "importance"}}).student
    assert (student.keep_layers, student.layer_choice, student.intermediate_size) == (None, "importance", 64)


def test_a_value_that_cannot_be_is_explained():
    with pytest.raises(ConfigError, match="student.model"):
        changed("student", init="pretrained")


def test_tried_gives_words_for_the_users_errors_only():
    def refuse():
        raise ConfigError("words")

    assert controls.tried(refuse) == (None, "words")
    assert controls.tried(int, "3") == (3, "")
    with pytest.raises(ValueError, match="invalid literal"):
        controls.tried(int, "x")


def test_estimate_by_hand():
    model = catalog.facts("builtin")
    config = from_dict({"text": {"num_windows": 10, "num_heldout_windows": 2, "window_tokens": 100}, "train": {"max_steps": 5}})
    cost = lookups.estimate_cache(config, model)
    assert cost.num_tokens == 1200
    assert cost.readings == 5 * 8 / 10
    assert cost.capture_s == pytest.approx(2 * model.num_parameters * 1200 / CPU_FLOPS)
    assert "guess" in cost.speed_from


def test_the_estimate_learns_from_a_cache_of_the_same_teacher(small_cache):
    cost = lookups.estimate_cache(from_dict(small_cache.manifest.config), catalog.facts("builtin"))
    assert 0.8 * cost.disk_bytes < small_cache.manifest.num_bytes <= 1.2 * cost.disk_bytes
    assert cost.speed_from == "measured by cache small"


def test_differences_from_the_cache(small_cache):
    made = from_dict(small_cache.manifest.config)
    assert controls.differences(made, small_cache) == []
    other = made.changed(capture=made.capture.changed(top_k=5), text=made.text.changed(num_windows=99))
    assert controls.differences(other, small_cache) == [
        "text.num_windows: 24 in the cache, now 99",
        "capture.top_k: 20 in the cache, now 5",
    ]
    assert controls.for_cache(PLAIN, small_cache).text == made.text
    assert controls.for_cache(PLAIN, small_cache).train == PLAIN.train


def test_kept_mass_falls_with_temperature(small_cache):
    masses = [row["kept_mass"] for row in lookups.kept_mass_rows(small_cache)]
    assert masses == sorted(masses, reverse=True)
    assert masses[2] == pytest.approx(open_cache("small").kept_mass(1.0).mean(), abs=1e-4)


def test_kept_mass_at_a_temperature_has_its_bounds(small_cache):
    for temperature in (1.0, 1.7, 6.0):
        kept = lookups.kept_mass_at(small_cache, temperature)
        assert kept["lowest"] <= kept["kept_mass"] <= kept["highest"] < kept["lowest"] + 0.01
        assert f"at T = {temperature:g} is in the top 20, at most 0." in facts.cache_facts(small_cache, kept)
    assert "top 20, at most 0.2500% off" in facts.cache_facts(small_cache, kept | {"lowest": kept["kept_mass"] - 0.0025})


def test_a_window_to_look_at(small_cache):
    rows = lookups.window_rows(small_cache, {"split": "heldout", "window": 5}, 2.0)
    assert any(row["is_target"] and len(row["choices"]) == 5 for row in rows)
    assert lookups.window_rows(small_cache, {"split": "train", "window": None}, 1.0)[0]["position"] == 0
    with pytest.raises(CacheError, match="no window 6 in split 'heldout', which has 6"):
        lookups.window_rows(small_cache, {"split": "heldout", "window": 6}, 1.0)


def test_teacher_line_is_what_the_judge_says(small_cache):
    from distill_core.evaluate import teacher_row

    assert lookups.teacher_bits_per_byte(small_cache) == pytest.approx(teacher_row(small_cache)["bits_per_byte"])


def test_preview_in_this_process_and_in_one_of_its_own_agree(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"text": "Once upon a time <b>there</b> was a boy."}) + "\n")
    shown = controls.control_values(PLAIN)
    here = lookups.preview(PLAIN, shown["teacher"], shown["text"] | {"kind": "local", "source": str(file)})
    assert "".join(row["token"] for row in here[1:-1]) == "Once upon a time <b>there</b> was a boy."
    teacher = {"kind": "local", "model": str(catalog.builtin_folder())}  # a folder is read by transformers, in another process
    there = lookups.preview(PLAIN, teacher, shown["text"] | {"kind": "local", "source": str(file)})
    assert [row["token_id"] for row in there] == [row["token_id"] for row in here]
    with pytest.raises(TextError, match="no such file"):
        lookups.preview(PLAIN, teacher, shown["text"] | {"kind": "local", "source": str(tmp_path / "none.txt")})


def test_siblings_share_a_family_and_are_smaller():
    table = catalog.models_table()
    teacher = next(row for row in table.sort("num_parameters", descending=True).iter_rows(named=True) if row["role"] != "student")
    found = lookups.siblings(catalog.facts(teacher["id"]))
    assert found
    assert all(size < teacher["num_parameters"] for _, size in found)
    assert lookups.siblings(catalog.facts("builtin")) == []


def test_zip_holds_the_folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.txt").write_text("hello")
    with zipfile.ZipFile(io.BytesIO(take_home.zipped(tmp_path / "model"))) as archive:
        assert archive.read("model/a.txt") == b"hello"


def test_rates_cover_every_way_to_begin():
    assert set(controls.LEARNING_RATES) == {"fresh", "prune_layers", "pretrained"}
    assert all(math.isfinite(rate) for rate in controls.LEARNING_RATES.values())


@pytest.mark.parametrize(
    ("changes", "is_alone"),
    [
        ({}, True),
        ({"temperature": 2.0}, False),
        ({"temperature": 2.0, "kl_weight": 0.25}, True),
        ({"z_loss_weight": 1e-4}, False),
        ({"adversarial_weight": 0.1}, False),
        ({"hidden_weight": 0.1}, False),
    ],
)
def test_when_the_loss_is_the_kl_alone(changes, is_alone):
    assert lookups.is_kl_alone(DistillConfig().loss.changed(**changes)) == is_alone
