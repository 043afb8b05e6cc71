"""The memory plan: hand-worked figures, and activations counted again."""

import json

import polars as pl
import pytest
import torch
import transformers as tf

from distill_core import limits, memory
from distill_core.catalog import facts
from distill_core.catalog.model_facts import ModelFacts, shape_from_config
from distill_core.config import DistillConfig, from_dict
from distill_core.errors import ConfigError
from distill_core.losses import default_chunk_tokens
from distill_core.memory import prediction, reports


def model_facts(config, **more) -> ModelFacts:
    model = tf.AutoModelForCausalLM.from_config(config)
    known = {**shape_from_config(config.to_dict()), "architecture": type(model).__name__}
    return ModelFacts(source="here", kind="folder", num_parameters=model.num_parameters(), **{**known, **more})


def llama(vocab=97, hidden=64, layers=2, heads=4, ffn=160):
    return tf.LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        tie_word_embeddings=True,
        pad_token_id=None,
    )


def parts_of(rows: pl.DataFrame, mode: str) -> dict[str, int]:
    return dict(rows.filter(pl.col("mode") == mode).select("part", "bytes").iter_rows())


def on_gpu(monkeypatch, *, window=100, batch=2, **sections):
    monkeypatch.setattr(prediction, "is_gpu", lambda _: True)
    train = {"per_device_train_batch_size": batch, **sections.pop("train", {})}
    return from_dict({"text": {"window_tokens": window, "packing": False}, "train": train, "device": "cuda", **sections})


def test_plan_by_hand(monkeypatch):
    """V = 1000, D = 10, one layer of one head, I = 20, K = 100, 200 tokens, 198 positions: every part worked out on paper."""
    student = ModelFacts(
        source="s", kind="folder", architecture="LlamaForCausalLM", num_parameters=11_000, num_layers=1, hidden_size=10,
        intermediate_size=20, num_heads=1, num_kv_heads=1, head_dim=10, vocab_size_config=1000, tied_head=True,
    )  # fmt: skip
    teacher = ModelFacts(**{**vars(student), "num_parameters": 50_000, "dtype_on_disk": "bfloat16"})
    rows = memory.plan(teacher, student, on_gpu(monkeypatch, loss={"chunk_tokens": 50}))
    layer = 4 * (6 * 10 + 4 * 10 + 4 * 20)
    outside = 4 * (4 * 10 + 2 * 10)
    shared = {"program": 0, "student weights": 44_000, "optimizer": 88_000, "activations": 200 * (layer + outside)}
    assert parts_of(rows, "offline fused") == {
        **shared,
        "teacher weights": 0,
        "gradients": 40_000,  # the head's; the rest come when the activations are gone
        "logits and loss": 50 * 1000 * 4 + 198 * (4 * 10 + 44 * 100),
    }
    assert parts_of(rows, "offline dense") == {**shared, "teacher weights": 0, "gradients": 0, "logits and loss": 3 * 198_000 * 4}
    assert parts_of(rows, "online") == {**shared, "teacher weights": 100_000, "gradients": 0, "logits and loss": 5 * 198_000 * 4}
    assert rows["gib"].sum() == pytest.approx(rows["bytes"].sum() / 1024**3)


def test_the_peak_of_a_large_model_with_short_windows_is_the_end_of_the_backward_pass(monkeypatch):
    big = facts("Qwen/Qwen3-0.6B")
    rows = parts_of(memory.plan(big, big, on_gpu(monkeypatch, window=8, batch=1)), "offline fused")
    assert rows["gradients"] == 4 * big.num_parameters + 4 * 151_936 * 1024  # the embedding's part exists twice for a moment
    assert rows["activations"] == 0
    assert rows["logits and loss"] == 7 * 151_936 * 4, "the loss keeps its buffer"
    earlier = {"gradient_accumulation_steps": 2}
    rows = parts_of(memory.plan(big, big, on_gpu(monkeypatch, window=8, batch=1, train=earlier)), "offline fused")
    assert rows["gradients"] == 4 * big.num_parameters + 2 * 4 * 151_936 * 1024, "and the sum of the earlier micro-batches beside both"


def test_with_checkpointing_the_logits_and_a_whole_layer_are_never_alive_together(monkeypatch):
    """D = 100, three layers, I = 400, one head, V = 50, 300 positions of 303: the worst moment is the first recomputed layer's."""
    sizes = {"num_parameters": 500_000, "num_layers": 3, "hidden_size": 100, "intermediate_size": 400, "num_heads": 1, "num_kv_heads": 1}
    more = {"source": "s", "kind": "folder", "architecture": "LlamaForCausalLM", "head_dim": 100, "vocab_size_config": 50}
    student = ModelFacts(**sizes, **more, tied_head=True)
    short = {"activation_checkpointing": True, "gradient_accumulation_steps": 2}
    rows = memory.plan(student, student, on_gpu(monkeypatch, window=101, batch=3, train=short, loss={"top_k": 10, "chunk_tokens": 200}))
    layer = 4 * (6 * 100 + 4 * 100 + 4 * 400)
    parts = parts_of(rows, "offline fused")
    assert parts["activations"] == 303 * (3 * 400 + layer + 2 * 4 * 400 + 8 * 100)
    assert parts["gradients"] == 2_000_000 + 4 * 50 * 100
    assert parts["logits and loss"] == 150 * 50 * 4 + 300 * (400 + 12 * 10), "two even chunks of 150; the entries' scratch is gone"


def test_hidden_states_and_their_projections_are_counted():
    capture = {"hidden_layers": (2, 4), "hidden_size": 48}
    plain, deep = (memory.report(from_dict({"device": "cpu", "capture": capture, "loss": {"hidden_weight": w}})) for w in (0, 1))
    ours, theirs = parts_of(plain.rows, "offline fused"), parts_of(deep.rows, "offline fused")
    size = deep.student.hidden_size
    assert theirs["student weights"] - ours["student weights"] == 4 * 2 * 48 * size
    assert theirs["optimizer"] - ours["optimizer"] == 8 * 2 * 48 * size
    positions = 8 * 255  # windows x positions: 2 x 48 float16 stored; a student's row, its projection and the teacher's for each pair
    assert theirs["logits and loss"] - ours["logits and loss"] == positions * (2 * 2 * 48 + 2 * 4 * (size + 96))


def test_adversarial_training_holds_two_passes_at_once():
    plain, twice = (memory.report(from_dict({"device": "cpu", "loss": {"adversarial_weight": weight}})).rows for weight in (0, 1))
    ours, theirs = parts_of(plain, "offline fused"), parts_of(twice, "offline fused")
    assert theirs["activations"] == pytest.approx(2 * ours["activations"], rel=0.1)
    assert theirs["optimizer"] == ours["optimizer"] and theirs["logits and loss"] > ours["logits and loss"]
    assert parts_of(plain, "online") == parts_of(twice, "online")


def test_both_narrow_types_are_planned_alike_and_neither_is_advised_beside_the_other(monkeypatch):
    big = facts("Qwen/Qwen3-0.6B")
    kinds = [on_gpu(monkeypatch, window=2048, train={kind: True}) for kind in ("bf16", "fp16")]
    assert memory.peaks(big, big, kinds[0], gpu=True) == memory.peaks(big, big, kinds[1], gpu=True)
    monkeypatch.setattr(reports, "is_gpu", lambda _: True)
    names = [[knob.name for knob in memory.knobs(big, config)] for config in (*kinds, on_gpu(monkeypatch, window=2048))]
    assert ["train.bf16 true" in each for each in names] == [False, False, True]


def test_each_saving_saves(monkeypatch):
    big = facts("Qwen/Qwen3-0.6B")

    def peak(**sections):
        rows = memory.plan(big, big, on_gpu(monkeypatch, window=4096, **sections))
        return {mode: sum(parts_of(rows, mode).values()) for mode in memory.MODES}

    plain = peak()
    assert plain["online"] > plain["offline dense"] > plain["offline fused"]
    assert peak(batch=1)["offline fused"] < plain["offline fused"]
    assert peak(train={"activation_checkpointing": True})["offline fused"] < plain["offline fused"]
    assert peak(train={"bf16": True})["offline fused"] < plain["offline fused"]
    assert peak(loss={"chunk_tokens": 64})["offline fused"] < plain["offline fused"]
    assert peak(loss={"chunk_tokens": 64})["offline dense"] == plain["offline dense"]


@pytest.mark.parametrize("vocab", [1000, 32_000, 65_536, 65_537, 151_936, 262_144])
def test_the_chunk_is_the_one_that_the_loss_takes(vocab):
    config = DistillConfig()
    assert memory.chunk_tokens(config, vocab, gpu=False) == default_chunk_tokens(vocab, torch.device("cpu"))
    assert memory.chunk_tokens(config, vocab, gpu=True) == default_chunk_tokens(vocab, torch.device("cuda"))


def saved_bytes(config, *, packing, window=64, bf16=False) -> float:
    """Bytes per token that autograd keeps for the body's backward pass; weights and their bfloat16 copies left out."""
    model = tf.AutoModelForCausalLM.from_config(config).train()
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    weight_shapes = {tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2}
    weight_shapes |= {shape[::-1] for shape in weight_shapes}
    seen: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and not (bf16 and tuple(tensor.shape) in weight_shapes):
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor is held: its address must not be used again
        return tensor

    positions = torch.arange(window) % (window // 2) if packing else torch.arange(window)
    ids = torch.arange(2 * window).view(2, window) % config.vocab_size
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        model.base_model(input_ids=ids, position_ids=positions.expand(2, window), use_cache=False)
    return sum(size for size, _ in seen.values()) / (2 * window)


SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
NO_GROUPS = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
FAMILIES = {
    "llama": lambda layers: llama(layers=layers),
    "qwen2": lambda layers: tf.Qwen2Config(**SIZES, num_hidden_layers=layers, pad_token_id=None),
    "qwen3": lambda layers: tf.Qwen3Config(**SIZES, num_hidden_layers=layers, head_dim=32, pad_token_id=None),
    "gemma2": lambda layers: tf.Gemma2Config(**SIZES, num_hidden_layers=layers, head_dim=16),
    "gemma3": lambda layers: tf.Gemma3TextConfig(**SIZES, num_hidden_layers=layers, head_dim=16),
    "olmo2": lambda layers: tf.Olmo2Config(**SIZES, num_hidden_layers=layers, pad_token_id=None),
    "gpt_neox": lambda layers: tf.GPTNeoXConfig(**NO_GROUPS, num_hidden_layers=layers, bos_token_id=0, eos_token_id=0),
}  # fmt: skip


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_of_a_layer_are_what_autograd_keeps(family, packing):
    """The difference between three layers and two, within 4 % of the formula."""
    counted = saved_bytes(FAMILIES[family](3), packing=packing) - saved_bytes(FAMILIES[family](2), packing=packing)
    told = memory.layer_activation_bytes(model_facts(FAMILIES[family](2)), window_tokens=64, packing=packing, autocast=False)
    assert told == pytest.approx(counted, rel=0.04)


def test_activations_under_bf16():
    counted = saved_bytes(llama(layers=3), packing=True, bf16=True) - saved_bytes(llama(layers=2), packing=True, bf16=True)
    told = memory.layer_activation_bytes(model_facts(llama()), window_tokens=64, packing=True, autocast=True)
    assert told == pytest.approx(counted, rel=0.04)


def test_report_of_the_built_in_run():
    report = memory.report(from_dict({"device": "cpu"}))
    assert report.fits
    assert report.student.hidden_size == 96
    assert report.predicted_gib == pytest.approx(0.73, rel=0.05)  # runs of it peaked at 0.728 and 0.730 GiB: torch 2.13, transformers 5.24
    assert [line.split(":")[0] for line in report.lines()[:3]] == list(memory.MODES)
    assert "offline fused" in report.to_text()
    assert json.loads(json.dumps(report.to_dict()))["fits"] is True


def test_advice_names_settings_savings_and_prices(monkeypatch):
    monkeypatch.setattr(reports, "device_limit", lambda _: ("this small device", 2 * 1024**3))
    for module in (prediction, reports):
        monkeypatch.setattr(module, "is_gpu", lambda _: True)
    sections = {"teacher": {"model": "Qwen/Qwen3-8B"}, "student": {"init": "pretrained", "model": "Qwen/Qwen3-0.6B"}}
    report = memory.report(from_dict({**sections, "text": {"window_tokens": 2048}, "device": "cuda"}))
    assert not report.fits
    advice = "\n".join(report.advice)
    assert "train.per_device_train_batch_size 4 with train.gradient_accumulation_steps 2: about " in advice
    assert "train.activation_checkpointing true" in advice
    assert "about a third slower" in advice
    assert "Even all of these together would not fit: choose a smaller student" in report.advice[-1]
    reference = memory.report(from_dict({"loss": {"impl": "reference"}, "device": "cpu"}))
    assert "expect the dense figure" in reference.advice[0]


def test_bad_sizes_are_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"window_tokens 1,024.*512 positions of builtin"):
        memory.report(from_dict({"text": {"window_tokens": 1024}}))
    with pytest.raises(ConfigError, match="layers 0 to 3"):
        memory.report(from_dict({"student": {"init": "prune_layers", "keep_layers": [4]}}))


def test_device_limit(tmp_path, monkeypatch):
    name, size = limits.device_limit("cpu")
    assert size > 2**30
    small = tmp_path / "memory.max"
    monkeypatch.setattr(limits, "CONTAINER_LIMITS", (small,))
    small.write_text("max\n")
    assert limits.device_limit("cpu")[0] == "this machine's memory"
    small.write_text(f"{2**29}\n")
    assert limits.device_limit("cpu") == ("this container's memory", 2**29)
    monkeypatch.setattr(limits, "_gpus", lambda: [("A", 8), ("B", 9)])
    assert [limits.device_limit(device)[1] for device in ("cuda", "cuda:1", "cuda:2")] == [8, 9, 2**29]
    assert name.startswith("this ")
