"""What a cut student keeps: layers left out against models rebuilt without them, units cut against the same weights set to zero."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as tf
from steps import train_here

from distill_core import models, students
from distill_core.catalog import facts
from distill_core.catalog.shapes import student_facts
from distill_core.charts.structure import layers_chart, points_of
from distill_core.cli import run_command_line
from distill_core.config import DistillConfig, StudentConfig, from_dict
from distill_core.errors import ConfigError, ModelError
from distill_core.heads import probe_head
from distill_core.structure import (
    Sample,
    Structure,
    choose,
    find_mlp,
    layer_list,
    left_out,
    measure_layers,
    measure_units,
    order_of_removal,
)
from distill_core.structure.report import table
from distill_core.structure.units import most_important

V = 61
PLAIN = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = tf.LlamaConfig(**PLAIN, intermediate_size=48, mlp_bias=True)
TYPES = ["sliding_attention", "full_attention"] * 2
FAMILIES = [
    LLAMA,
    tf.Qwen3Config(**PLAIN, intermediate_size=64, head_dim=16, num_key_value_heads=2),  # the feed-forward part as wide as attention
    tf.Gemma3TextConfig(**PLAIN, intermediate_size=48, num_key_value_heads=2, head_dim=8, sliding_window=4, layer_types=TYPES),
    tf.GPT2Config(vocab_size=V, n_embd=32, n_layer=4, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
    tf.OPTConfig(vocab_size=V, hidden_size=32, ffn_dim=48, num_hidden_layers=4, num_attention_heads=4, word_embed_proj_dim=32),
    tf.GPTNeoXConfig(**PLAIN, intermediate_size=48),
    tf.SmolLM3Config(**PLAIN, intermediate_size=48, num_key_value_heads=2, pad_token_id=0),  # a list says which layers turn positions
    tf.Cohere2Config(**PLAIN, intermediate_size=48, num_key_value_heads=2, sliding_window=4, pad_token_id=0),  # both parts side by side
]  # fmt: skip
by_family = pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)


@pytest.fixture
def teacher(tmp_path):
    """teacher(config) -> folder of a model with random weights, large enough that every layer matters."""

    def make(config):
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        model.save_pretrained(tmp_path / config.model_type)
        return str(tmp_path / config.model_type)

    return make


def built(source, structure=None, **student):
    config = from_dict({"teacher": {"model": source}, "text": {"window_tokens": 16}, "student": {"init": "prune_layers"} | student})
    return students.build_student(config, tokenizer=None, real_vocab_size=V, structure=structure)


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 15)[None]).logits


def layers_of(model):
    count = model.config.num_hidden_layers
    return list(model.get_submodule(layer_list(model, count, "x")))


def mlp_of(layer, hidden_size=32):
    return find_mlp(layer, hidden_size, place=2, source="x")


@by_family
def test_a_layer_left_out_is_a_model_rebuilt_without_it(teacher, config):
    source = teacher(config)
    model = models.load_model(source)
    for gone in ((1,), (0, 3)):
        with left_out([layers_of(model)[layer] for layer in gone]):
            without = logits(model)
        kept = [layer for layer in range(4) if layer not in gone]
        torch.testing.assert_close(without, logits(built(source, keep_layers=kept)), rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(model), logits(built(source, keep_layers=range(4)))), "nothing is left behind"


@by_family
def test_a_narrower_student_is_the_teacher_with_those_units_silenced(teacher, config, tmp_path):
    source = teacher(config)
    model = models.load_model(source)
    layers, units = layers_of(model), [(0, 2, 5, 31), (1, 3, 4, 30), (7, 8, 9, 10), (0, 1, 2, 3)]
    width = mlp_of(layers[0]).num_units
    student = built(source, Structure((0, 1, 2, 3), tuple(units)), keep_layers=range(4), intermediate_size=4)
    with torch.no_grad():
        for layer, kept in zip(layers, units, strict=True):
            mlp = mlp_of(layer)
            silenced = [unit for unit in range(width) if unit not in kept]
            weight = layer.get_submodule(mlp.down).weight
            (weight.T if not mlp.is_transposed else weight)[silenced] = 0
    torch.testing.assert_close(logits(student), logits(model), rtol=1e-4, atol=1e-4)
    assert mlp_of(layers_of(student)[0]).num_units == 4
    student.save_pretrained(tmp_path / "student")
    again = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "student").eval()
    assert torch.equal(logits(again), logits(student)), "plain transformers loads it"
    told = student_facts(from_dict({"student": {"init": "prune_layers", "keep_layers": range(4), "intermediate_size": 4}}), facts(source))
    assert told.intermediate_size == 4
    if config.model_type in ("qwen3", "gemma3_text"):  # no biases
        assert told.num_parameters == student.num_parameters()


def test_all_units_kept_is_the_same_model(teacher):
    source = teacher(LLAMA)
    everything = Structure((0, 1, 2, 3), (tuple(range(48)),) * 4)
    assert torch.equal(logits(built(source, everything, keep_layers=range(4), intermediate_size=48)), logits(models.load_model(source)))


def by_hand(model, cache, split, num_windows):
    """KL over the cached entries and the tail as one bucket, from whole logits in float64."""
    total, count = 0.0, 0
    for window in range(num_windows):
        rows = cache.rows(split, [window])
        with torch.no_grad():
            ids, positions = (torch.from_numpy(rows[name]) for name in ("input_ids", "position_ids"))
            logprobs = torch.log_softmax(
                model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, :-1, : cache.plan.vocab_size].double(), -1
            ).numpy()
        for place in np.flatnonzero(rows["targets"][0]):
            entries, said = rows["teacher_ids"][0, place], rows["teacher_logprobs"][0, place].astype(np.float64)
            ours = logprobs[place, entries]
            tail, our_tail = np.exp(rows["teacher_tail"][0, place].astype(np.float64)), 1 - np.exp(ours).sum()
            total += (np.exp(said) * (said - ours)).sum() + tail * (np.log(tail) - np.log(our_tail))
            count += 1
    return total / count


@pytest.fixture
def measured(small_cache):
    model = models.load_model("builtin")
    return model, layers_of(model), probe_head(model, small_cache.plan.vocab_size), Sample(small_cache, "heldout", 3)


def without(layers):
    config = DistillConfig(student=StudentConfig(init="prune_layers", keep_layers=tuple(layers)))
    return students.build_student(config, tokenizer=models.load_tokenizer("builtin"), real_vocab_size=2048)


def test_importance_is_that_of_rebuilt_models(measured):
    model, layers, ops, sample = measured
    costs = measure_layers(model, layers, ops, sample)
    assert [cost.layer for cost in costs] == [0, 1, 2, 3]
    for cost in costs:
        rebuilt = without(layer for layer in range(4) if layer != cost.layer)
        assert cost.kl == pytest.approx(by_hand(rebuilt, sample.cache, "heldout", 3), rel=1e-4)
    assert sample.kl(model, ops) < 0.01 * min(cost.kl for cost in costs), "with all layers it is the teacher"


def test_block_influence_is_that_of_the_models_own_hidden_states(measured):
    model, layers, ops, sample = measured
    rows = sample.cache.rows("heldout", [0, 1, 2])
    with torch.no_grad():
        ids, positions = (torch.from_numpy(rows[name]) for name in ("input_ids", "position_ids"))
        states = model(input_ids=ids, position_ids=positions, output_hidden_states=True, use_cache=False).hidden_states
    learned = torch.from_numpy(np.pad(rows["targets"], ((0, 0), (0, 1))))
    for place in range(3):  # transformers norms the last state
        truth = 1 - torch.cosine_similarity(states[place], states[place + 1], dim=-1)[learned].mean()
        assert measure_layers(model, layers, ops, sample)[place].influence == pytest.approx(float(truth), rel=1e-4)


def test_the_order_of_removal_is_the_best_at_each_step(measured):
    model, layers, ops, sample = measured
    removals = order_of_removal(model, layers, ops, sample)
    assert [removal.num_left for removal in removals] == [3, 2, 1]
    gone = set()
    for removal in removals:
        truths = {
            layer: by_hand(without(sorted(set(range(4)) - gone - {layer})), sample.cache, "heldout", 3) for layer in set(range(4)) - gone
        }
        assert removal.layer == min(truths, key=truths.get)
        assert removal.kl == pytest.approx(truths[removal.layer], rel=1e-4)
        gone.add(removal.layer)


def test_importance_of_a_unit_by_hand(measured):
    """Mean absolute activation times the norm of its column, from the layer's own parts."""
    model, layers, _, sample = measured
    mlp = mlp_of(layers[1], 192)
    assert (set(mlp.up), mlp.down, mlp.num_units) == ({"mlp.gate_proj", "mlp.up_proj"}, "mlp.down_proj", 512)
    seen = []
    hook = layers[1].mlp.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    found = measure_units(model, [layers[1]], [mlp], sample)[0]
    hook.remove()
    learned = torch.from_numpy(np.concatenate([sample.cache.rows("heldout", [window])["targets"] for window in range(3)]))
    part = layers[1].mlp
    with torch.no_grad():
        given = torch.cat(seen)[:, :-1][learned]
        truth = (torch.nn.functional.silu(part.gate_proj(given)) * part.up_proj(given)).abs().mean(0) * part.down_proj.weight.norm(dim=0)
    torch.testing.assert_close(found, truth.double(), rtol=1e-4, atol=1e-7)
    assert most_important(torch.tensor([0.1, 3.0, 0.5, 3.0, 0.5]), 3) == (1, 2, 3), "of equal ones the first"


def test_a_student_keeps_what_matters_most_and_the_same_every_time(small_cache):
    config = from_dict({"student": {"init": "prune_layers", "num_layers": 2, "layer_choice": "importance", "intermediate_size": 128}})
    said = []
    one, two = (choose(config, small_cache, torch.device("cpu"), said.append) for _ in range(2))
    assert one == two == Structure.from_dict(json.loads(json.dumps(one.to_dict())))
    assert len(one.layers) == len(one.units) == 2
    assert {len(units) for units in one.units} == {128}
    assert "which 2 of 4 layers can go" in said[0]
    model = models.load_model("builtin")
    sample, ops = Sample(small_cache), probe_head(model, 2048)
    removed = [removal.layer for removal in order_of_removal(model, layers_of(model), ops, sample, until=2)]
    assert set(one.layers) == set(range(4)) - set(removed)
    pairs = {kept: by_hand(without(kept), small_cache, "train", sample.count) for kept in itertools.combinations(range(4), 2)}
    assert pairs[one.layers] <= pairs[0, 3], "no worse than the first and the last, before training"


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ({"layer_choice": "importance"}, "init 'prune_layers', not 'fresh'"),
        ({"init": "prune_layers", "layer_choice": "importance", "keep_layers": [0, 1]}, "both choose the layers"),
        ({"init": "prune_layers", "layer_choice": "best"}, "'even' or 'importance'"),
    ],
)
def test_settings_that_contradict_are_refused(student, words):
    with pytest.raises(ConfigError, match=words):
        from_dict({"student": student})


def test_more_than_there_is_is_refused_before_anything_is_loaded():
    for student, words in (({"intermediate_size": 513}, "have 512 feed-forward units.*1 to 512"), ({"num_layers": 5}, "has 4 layers")):
        config = from_dict({"student": {"init": "prune_layers", "layer_choice": "importance"} | student})
        with pytest.raises(ConfigError, match=words):
            student_facts(config, facts("builtin"))


def test_feed_forward_parts_that_are_not_known_are_refused_by_name():
    phi3 = tf.AutoModelForCausalLM.from_config(tf.Phi3Config(**PLAIN, intermediate_size=48, pad_token_id=0))
    mixtral = tf.AutoModelForCausalLM.from_config(
        tf.MixtralConfig(**PLAIN, intermediate_size=48, num_key_value_heads=2, num_local_experts=2)
    )
    for model, words in ((phi3, "layer 2.*mlp has gate and up in one matrix"), (mixtral, "layer 2.*experts")):
        with pytest.raises(ModelError, match=words):
            mlp_of(layers_of(model)[2])
    twice = torch.nn.ModuleDict({"a": torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))})
    twice["b"] = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
    with pytest.raises(ModelError, match="2 of its parts could be it"):
        mlp_of(twice, 4)
    with pytest.raises(ModelError, match="no part of it is"):
        mlp_of(torch.nn.LayerNorm(3))
    with pytest.raises(ConfigError, match="8 experts"):
        student_facts(
            from_dict({"student": {"init": "prune_layers", "intermediate_size": 8}}),
            replace(facts("builtin"), num_experts=8),
        )


def test_the_command_on_the_built_in_teacher(small_cache, small_config, tmp_path, capsys):
    run = train_here(from_dict(small_config.model_dump() | {"student": {"init": "prune_layers", "keep_layers": [0, 1, 3]}}))
    assert (
        run_command_line(["students", "importance", "--cache", "small", "--windows", "2", "--json", "--chart", str(tmp_path / "a.json")])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["num_layers"], found["num_windows"], [row["num_left"] for row in found["removal"]]) == (4, 2, [3, 2, 1])
    assert found["removal"][0]["kl"] == min(row["kl"] for row in found["layers"])
    assert [(row["run"], row["num_left"], row["choice"]) for row in found["trained"]] == [(run.id, 3, "even")]
    assert (tmp_path / "a.json").exists()
    assert [point["name"] for point in points_of(found) if point["series"] == "after training"] == [run.id]
    assert layers_chart().to_dict()["layer"], "a chart of nothing is one"
    text = table(found)
    assert f"({run.id})" in text
    assert "after training" not in table(found | {"trained": []})


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "needs --cache"), (["--cache", "no"], "no cache 'no'"), (["--cache", "small", "--windows", "0"], "at least one")],
)
def test_the_command_refuses(small_cache, capsys, words, said):
    assert run_command_line(["students", "importance", *words]) == 2
    assert said in capsys.readouterr().err
