"""Hidden states in the cache and in the loss: against plain transformers, bounds, refusals, resume, the model taken home."""

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from steps import broken_off_and_resumed, capture_here, carry_out, train_here
from transformers import AutoModelForCausalLM

from distill_core import jobs, metrics, models, refusals
from distill_core.batches import Collate
from distill_core.cache import HiddenPlan, open_cache
from distill_core.cache.shards import read_rows
from distill_core.cli import run_command_line
from distill_core.config import DistillConfig, from_dict, hard_label_twin, with_overrides
from distill_core.errors import CacheError, ConfigError
from distill_core.hidden_states import decode, encode, projection
from distill_core.layer_map import layer_pairs
from distill_core.losses import IGNORE_INDEX
from distill_core.merging import Merge
from distill_core.paths import caches_dir
from distill_core.training import hidden_states as term_module
from distill_core.training.terms import MicroBatch

LAYERS = {"capture.name": "deep", "capture.hidden_layers": (0, 2, 4)}


@pytest.fixture
def deep_config(small_config):
    return with_overrides(small_config, {**LAYERS, "text.num_windows": 8, "text.num_heldout_windows": 4})


@pytest.fixture
def deep(deep_config):
    capture_here(deep_config)
    return open_cache("deep")


def teachers_states(cache, window):
    """[layers + 1, L, D] of one training window, each document read alone by plain transformers."""
    model = models.load_model("builtin", dtype="float32")
    row = {name: values[0] for name, values in cache.rows("train", [window]).items()}
    starts = [*np.flatnonzero(row["position_ids"] == 0), len(row["input_ids"])]
    parts = []
    for start, end in itertools.pairwise(starts):
        with torch.no_grad():
            out = model(input_ids=torch.from_numpy(row["input_ids"][start:end])[None], output_hidden_states=True)
        parts.append(torch.stack(out.hidden_states)[:, 0])
    return torch.cat(parts, 1), torch.from_numpy(row["targets"])


def test_what_is_stored_is_what_transformers_gives(deep):
    for column in deep.plan.hidden.columns:
        deep.read_also(column)
    row = deep.rows("train", [3])
    truth, targets = teachers_states(deep, 3)
    for layer in (0, 2, 4):
        stored = torch.from_numpy(row[f"hidden_{layer}"][0])
        assert stored.dtype == torch.float16 and not stored[~targets].any(), "nothing where nothing is learned"
        torch.testing.assert_close(stored[targets].float(), truth[layer, :-1][targets], rtol=2e-3, atol=2e-3)


def test_the_entries_are_those_of_a_cache_without_and_are_read_without_the_states(deep, deep_config):
    plain_config = with_overrides(deep_config, {"capture.name": "plain", "capture.hidden_layers": ()})
    capture_here(plain_config)
    plain = open_cache("plain")
    ours, theirs = deep.rows("train", [0, 5]), plain.rows("train", [0, 5])
    assert ours.keys() == theirs.keys(), "who does not ask for states gets none"
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert not [name for name in plain.plan.fingerprint.fields if "hidden" in name], "the fingerprint of plain caches is as ever"
    assert plain.plan.sha256() != deep.plan.sha256()
    assert "hidden" not in json.loads(plain.plan.model_dump_json(exclude={"hidden"})) and plain.plan.hidden is None
    carry_out(jobs.new_merge(Merge(caches=("deep", "plain"), name="both", by="pick")))
    both = open_cache("both")
    assert both.plan.hidden is None
    assert "hidden states are not merged: those of deep are left out" in both.manifest.text["notes"]


def test_a_damaged_state_is_found_and_a_broken_capture_goes_on(deep, deep_config):
    path = deep.shard_path(deep.manifest.entries[0])
    before = path.read_bytes()
    content = bytearray(before)
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CacheError, match=r"shard train-00000 is damaged"):
        deep.verify()
    (caches_dir() / "deep" / "manifest.json").unlink()
    capture_here(deep_config)
    assert path.read_bytes() == before


@pytest.mark.parametrize("width", [48, 192])
def test_the_projection_keeps_lengths(width):
    matrix_DW = projection(192, width, seed=0)
    gram_WW = matrix_DW.T @ matrix_DW
    torch.testing.assert_close(gram_WW, 192 / width * torch.eye(width), atol=1e-4, rtol=0)
    state_RD = torch.randn(4000, 192, generator=torch.Generator().manual_seed(1))
    ratio = ((state_RD @ matrix_DW).square().sum(1) / state_RD.square().sum(1)).numpy()
    if width == 192:
        np.testing.assert_allclose(ratio, 1, atol=1e-4)
    else:
        assert ratio.mean() == pytest.approx(1, abs=0.02) and ratio.std() < 0.25
    assert torch.equal(matrix_DW, projection(192, width, seed=0)) and not torch.equal(matrix_DW, projection(192, width, seed=1))


def test_int8_columns_come_back_from_disk_within_half_a_step(deep, deep_config):
    capture_here(with_overrides(deep_config, {"capture.name": "narrow", "capture.hidden_codec": "int8"}))
    narrow = open_cache("narrow")
    for column in ("hidden_4", "hidden_4_scale"):
        narrow.read_also(column)
    deep.read_also("hidden_4")
    ours, theirs = narrow.rows("train", [2, 6]), deep.rows("train", [2, 6])["hidden_4"].astype(np.float32)
    scale = ours["hidden_4_scale"][..., None]
    assert ours["hidden_4"].dtype == np.int8
    assert (np.abs(ours["hidden_4"] * scale - theirs) <= scale / 2 + 1e-3 * np.abs(theirs)).all()
    assert narrow.manifest.num_bytes < deep.manifest.num_bytes


def hidden_plan(codec):
    return HiddenPlan(layers=(1,), codec=codec, width=5, projection="none")


def test_int8_is_off_by_half_a_step_at_most():
    state_RW = torch.randn(300, 5, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 300)[:, None]
    state_RW[7] = 0
    kept = encode(hidden_plan("int8"), 1, state_RW)
    assert kept["hidden_1"].dtype == torch.int8 and kept["hidden_1"].abs().max() == 127
    columns = {name: part[None] for name, part in kept.items()}
    again_RW = decode(hidden_plan("int8"), 1, columns, torch.arange(300))
    half_step_R1 = state_RW.abs().amax(1, keepdim=True) / 127 / 2
    assert ((again_RW - state_RW).abs() <= half_step_R1 * (1 + 1e-4)).all()
    assert not again_RW[7].any()


def test_what_float16_cannot_hold_is_refused_with_the_way_out():
    with pytest.raises(CacheError, match=r"after layer 1 reaches 1e\+05.*hidden_codec int8"):
        encode(hidden_plan("float16"), 1, torch.tensor([[1e5, 0, 0, 0, 0]]))


def dense_term(model, cache, inputs, pairs, projections, kind):
    """Token by token, from plain transformers' hidden states and the shard's own columns as Polars reads them."""
    out = model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"], output_hidden_states=True, use_cache=False)
    total = 0.0
    stored = read_rows(cache.shard_path(cache.manifest.entries_of("train")[0]), 0, 8, [f"hidden_{teacher}" for _, teacher in pairs])
    for b, t in (inputs["labels"] != IGNORE_INDEX).nonzero().tolist():
        for (student, teacher), weight in zip(pairs, projections, strict=True):
            ours = weight @ out.hidden_states[student][b, t]
            target = torch.from_numpy(stored[f"hidden_{teacher}"][b, t].astype(np.float32))
            if kind == "cosine":
                total = total + (1 - (ours @ target) / (ours.norm() * target.norm())) / len(pairs)
            else:
                total = total + ((ours - target) ** 2).mean() / len(pairs)
    return total


@pytest.mark.parametrize(("kind", "layer_map"), [("cosine", "1:4,0:2"), ("mse", "")])
def test_value_and_gradients_equal_brute_force(deep, deep_config, kind, layer_map):
    loss = with_overrides(deep_config, {"loss.hidden_weight": 1.0, "loss.hidden_loss": kind, "loss.layer_map": layer_map}).loss
    student = AutoModelForCausalLM.from_config(models.load_model("builtin").config)
    term = term_module.HiddenStates(student, deep, loss, seed=0)
    assert term.pairs == (((1, 4), (0, 2)) if layer_map else ((0, 0), (2, 2), (4, 4)))
    inputs = Collate(deep, loss)([0, 1])
    from distill_core.heads import run_body

    body = run_body(student, with_layers=True, input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])
    value = term.value(MicroBatch(model=student, inputs=inputs, body=body, num_valid=None, number=(0, 0, 0)))
    weights = [projection.weight for projection in term.projections]
    truth = dense_term(student, deep, inputs, term.pairs, weights, kind)
    assert value.item() == pytest.approx(truth.item(), rel=1e-4)
    learned = [*weights, student.model.embed_tokens.weight, student.model.layers[0].mlp.up_proj.weight]
    ours, theirs = (torch.autograd.grad(each, learned, allow_unused=True) for each in (value, truth))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


CURVE = ("step", "loss", "kl", "hidden", "grad_norm", "heldout_nll")


def curve(run):
    return [[row.get(name) for name in CURVE] for row in metrics.read(run.metrics_path)]


def with_hidden(config, **more):
    pairs = {"loss.hidden_weight": 2.0, "train.max_steps": 6, "train.save_steps": 2, "train.eval_steps": 3}
    return with_overrides(config, pairs | {f"train.{name}": value for name, value in more.items()})


def test_a_run_resumes_bit_for_bit_learns_and_takes_home_a_plain_model(deep, deep_config, monkeypatch):
    config = with_hidden(deep_config)
    whole = train_here(config, cache="deep", name="whole")
    rows = [row for row in metrics.read(whole.metrics_path) if "loss" in row]
    assert rows[0]["loss"] == pytest.approx(rows[0]["kl"] + 2 * rows[0]["hidden"], rel=1e-6)
    assert rows[-1]["hidden"] < rows[0]["hidden"]
    again = broken_off_and_resumed(config, at_step=5, monkeypatch=monkeypatch, cache="deep")
    assert curve(again) == curve(whole)
    with safe_open(whole.model_folder / "model.safetensors", "pt") as stored:
        assert not [name for name in stored.keys() if term_module.MODULE in name]  # noqa: SIM118 - safe_open is no dict
    _, said = AutoModelForCausalLM.from_pretrained(whole.model_folder, output_loading_info=True)
    assert not said["unexpected_keys"] and not said["missing_keys"]


def test_checkpointed_activations_give_the_same_numbers(deep, deep_config):
    plain = train_here(with_hidden(deep_config, max_steps=2), cache="deep", name="kept")
    again = train_here(with_hidden(deep_config, max_steps=2, activation_checkpointing=True), cache="deep", name="recomputed")
    ours, theirs = ([row[1:5] for row in curve(run) if row[1] is not None] for run in (plain, again))
    assert len(ours) == 2
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_an_adapted_student_learns_its_projections_too(deep, deep_config, monkeypatch):
    pairs = {"student.init": "prune_layers", "student.num_layers": 2, "student.lora_rank": 2, "student.hidden_size": None}
    pairs |= {"student.num_attention_heads": None, "student.intermediate_size": None}
    config = with_hidden(with_overrides(deep_config, pairs))
    whole = train_here(config, cache="deep", name="whole")
    saved = []
    save = term_module.HiddenStates.save

    def noted(self, folder):
        save(self, folder)
        saved.append(load_file(folder / term_module.FILE))

    monkeypatch.setattr(term_module.HiddenStates, "save", noted)
    again = broken_off_and_resumed(config, at_step=5, monkeypatch=monkeypatch, cache="deep")
    assert curve(again) == curve(whole)
    assert not torch.equal(saved[0]["0.weight"], saved[-1]["0.weight"]), "they learn"


def test_zero_weight_is_the_plain_run_byte_for_byte(deep, deep_config):
    base = with_overrides(deep_config, {"train.max_steps": 2})
    plain_config = with_overrides(base, {"capture.name": "plain", "capture.hidden_layers": ()})
    capture_here(plain_config)
    ours, theirs = train_here(base, cache="deep", name="ours"), train_here(plain_config, cache="plain", name="theirs")
    assert curve(ours) == curve(theirs)
    assert (ours.model_folder / "model.safetensors").read_bytes() == (theirs.model_folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_layers": (5,)}, r"capture\.hidden_layers 5: teacher builtin has 4 layers"),
        ({"hidden_layers": (2,), "hidden_size": 999}, r"capture\.hidden_size 999 is more than the \d+ numbers"),
    ],
)
def test_layers_and_sizes_that_are_not_there_are_refused_before_the_teacher_is_loaded(small_config, monkeypatch, values, words):
    monkeypatch.setattr(models, "load_model", lambda *a, **k: pytest.fail("the teacher was loaded"))
    with pytest.raises(ConfigError, match=words):
        capture_here(with_overrides(small_config, {f"capture.{name}": value for name, value in values.items()}))


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("capture", {"hidden_layers": "4,2"}, "each layer once, in rising order"),
        ("capture", {"hidden_layers": "-1"}, r"capture\.hidden_layers"),
        ("capture", {"hidden_size": 8}, r"only read with capture\.hidden_layers"),
        ("capture", {"hidden_layers": 2, "context": "Be brief."}, "not aligned"),
        ("loss", {"hidden_weight": -1}, r"loss\.hidden_weight"),
        ("loss", {"layer_map": "1:2"}, r"only read with loss\.hidden_weight"),
        ("loss", {"layer_map": "1-2", "hidden_weight": 1}, r"loss\.layer_map"),
    ],
)
def test_bad_values_are_refused_by_name(section, values, words):
    with pytest.raises(ConfigError, match=words):
        from_dict({section: values})


def test_words_and_numbers_are_the_same_layers():
    assert from_dict({"capture": {"hidden_layers": "2, 4"}}).capture.hidden_layers == (2, 4)
    loss = from_dict({"loss": {"hidden_weight": 1, "layer_map": "1:2, 2:4"}}).loss
    assert loss.layer_map == ((1, 2), (2, 4))
    assert DistillConfig(**json.loads(DistillConfig(loss=loss).to_json())).loss == loss
    assert hard_label_twin(DistillConfig(loss=loss)).loss.hidden_weight == 0


def test_maps_are_held_against_cache_and_student(small_cache, deep, deep_config):
    def refused(config, cache, words):
        with pytest.raises(ConfigError, match=words):
            refusals.check_training(config, cache)

    asked = with_overrides(deep_config, {"loss.hidden_weight": 1.0})
    refusals.check_training(asked, "deep")
    refused(with_overrides(asked, {"loss.layer_map": "1:3"}), "deep", "holds the teacher's layers 0, 2, 4")
    refused(with_overrides(asked, {"loss.layer_map": "2:4"}), "deep", "the student has 1 layers")
    refused(asked, "small", "holds no hidden states")
    spread = layer_pairs(asked.loss, deep.manifest, cache="deep", num_layers=2)
    assert spread == ((0, 0), (1, 2), (2, 4))


def test_the_command_line_captures_and_trains(small_config, tmp_path, capsys):
    small = {**small_config.model_dump(mode="json"), "text": {"window_tokens": 64, "num_windows": 6, "num_heldout_windows": 2}}
    (tmp_path / "c.json").write_text(json.dumps(small))
    words = ["--config", str(tmp_path / "c.json"), "--capture.name", "deep", "--capture.hidden_layers", "2,4"]
    asked = ["--capture.hidden_codec", "int8", "--capture.hidden_size", "24"]
    assert run_command_line(["capture", *words, *asked]) == 0
    assert "layers 2, 4" in capsys.readouterr().out
    assert run_command_line(["cache", "verify", "deep"]) == 0
    train = ["train", "--cache", "deep", "--train.max_steps", "1", "--loss.hidden_weight", "0.5", "--loss.layer_map", "1:4"]
    assert run_command_line([*train, "--loss.hidden_loss", "mse"]) == 0
    assert run_command_line([*train[:-1], "9:4"]) == 2
    assert "9:4" in capsys.readouterr().err
