"""LoRA and QLoRA students: only adapters learn, the head's gradient is never made, and what is kept is a plain model."""

import json
import sys

import numpy as np
import peft
import pytest
import torch
import transformers as tf
from architectures import SERVED, V, tiny
from siblings import save_sibling
from steps import carry_out, train_here
from torch.utils._python_dispatch import TorchDispatchMode

from distill_core import export, jobs, metrics, models, trainer
from distill_core.adapters import adapter_words, is_adapted, plain_model, quantization, with_adapter
from distill_core.config import StudentConfig, from_dict, with_overrides
from distill_core.errors import ConfigError, ModelError
from distill_core.heads import probe_head
from distill_core.runs import create_run
from distill_core.students import build_student
from distill_core.training.checkpoints import checkpoint_bytes

LORA = {"student.lora_rank": 4, "train.learning_rate": 1e-2}
STUDENTS = ("pruned", "pretrained", "8bit", "4bit")


def lora_config(small_config, tmp_path, which, **changes):
    """Of a teacher without one layer, or of a small sibling, in 32, 8 or 4 bits."""
    config = small_config.changed(student=StudentConfig(init="prune_layers", num_layers=1))
    if which != "pruned":
        folder = save_sibling(tmp_path / "sibling", hidden_size=64, num_key_value_heads=2, head_dim=32)
        config = small_config.changed(student=StudentConfig(init="pretrained", model=folder))
    bits = {"student.quantize": which} if which in ("8bit", "4bit") else {}
    return with_overrides(config, LORA | bits | changes)


def student_of(config, cache):
    tokenizer = models.load_tokenizer(str(cache.tokenizer_folder))
    return build_student(config, tokenizer=tokenizer, real_vocab_size=cache.plan.vocab_size)


def stirred(student):
    """The student with adapters that do something, as after training."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in student.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    return student


@pytest.mark.parametrize("which", ["pruned", "4bit", *(pytest.param(each, marks=pytest.mark.slow) for each in ("pretrained", "8bit"))])
def test_it_learns_in_its_adapters_alone_and_model_is_a_plain_one(small_cache, small_config, tmp_path, which):
    config = lora_config(small_config, tmp_path, which, **{"train.max_steps": 20, "train.eval_steps": 20})
    before = student_of(config, small_cache)
    assert "LoRA: " in adapter_words(before)
    base_before = plain_model(before).state_dict()
    run = train_here(config)
    looks = [row["heldout_kl"] for row in metrics.read(run.metrics_path) if "heldout_kl" in row]
    assert looks[-1] < 0.98 * looks[0], "held-out KL to the teacher falls"
    kept = tf.AutoModelForCausalLM.from_pretrained(run.model_folder, dtype=torch.float32)
    assert not is_adapted(kept)
    assert not (run.model_folder / "adapter_config.json").exists()
    assert "quantization_config" not in json.loads((run.model_folder / "config.json").read_text())
    learned = kept.state_dict()
    assert learned.keys() == base_before.keys()
    changed = {name for name in learned if not torch.equal(learned[name], base_before[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize("which", STUDENTS)
def test_what_is_exported_gives_the_logits_of_the_adapted_model(small_cache, small_config, tmp_path, which):
    student = stirred(student_of(lora_config(small_config, tmp_path, which), small_cache))
    frozen = {name: weight.clone() for name, weight in student.named_parameters() if not weight.requires_grad}
    plain_model(student).save_pretrained(tmp_path / "plain")
    loaded = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    assert all(torch.equal(weight, frozen[name]) for name, weight in student.named_parameters() if name in frozen)
    ids = torch.randint(3, 1000, (2, 40), generator=torch.Generator().manual_seed(2))
    if which == "8bit":
        student.train()  # bitsandbytes rounds the *inputs* too when a model is judged, which no plain model does
    with torch.no_grad():
        adapted, plain = student(input_ids=ids).logits, loaded(input_ids=ids).logits
        for part in student.modules():
            if hasattr(part, "lora_B"):
                part.lora_B["default"].weight.zero_()
        base = student(input_ids=ids).logits
    torch.testing.assert_close(plain, adapted, rtol=1e-4, atol=1e-4)
    assert (adapted - base).abs().max() > 0.05, "the adapters do something"


def test_export_loads_in_plain_transformers_and_the_card_names_the_adapter(small_cache, small_config, tmp_path):
    run = train_here(lora_config(small_config, tmp_path, "pruned"))
    folder = export.export_model(run, tmp_path / "exported")
    model = tf.AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.generate(torch.tensor([[5, 6]]), max_new_tokens=3, do_sample=False).shape == (1, 5)
    assert "prune_layers, LoRA of rank 4" in (folder / "README.md").read_text()


class Made(TorchDispatchMode):
    """Shapes of all that any operation returned, views of `known` left out."""

    def __init__(self, known):
        super().__init__()
        self.shapes, self.known = set(), known.untyped_storage().data_ptr()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() != self.known:
                self.shapes.add(tuple(each.shape))
        return result


@pytest.mark.parametrize("adapted", [True, False])
def test_no_gradient_of_the_head_is_made(small_cache, small_config, tmp_path, adapted):
    config = lora_config(small_config, tmp_path, "pretrained")
    if not adapted:
        config = config.changed(student=StudentConfig(init="pretrained", model=config.student.model))
    student = student_of(config, small_cache).train()
    ours = trainer.DistillTrainer(
        cache=small_cache,
        loss=config.loss,
        ops=probe_head(student),
        model=student,
        args=trainer.training_arguments(config, tmp_path / "run", torch.device("cpu")),
    )
    batch = trainer.Collate(small_cache, config.loss)([0, 1])
    head = student.get_output_embeddings().weight
    with Made(head) as made:
        ours.compute_loss(student, batch, num_items_in_batch=torch.tensor(100.0)).backward()
    assert (tuple(head.shape) in made.shapes) == (not adapted)
    learns = {name for name, weight in student.named_parameters() if weight.grad is not None}
    assert all("lora_" in name for name in learns) == adapted


@pytest.mark.parametrize("which", ["pruned", pytest.param("4bit", marks=pytest.mark.slow)])
def test_stopped_and_resumed_it_ends_as_if_undisturbed(small_cache, small_config, tmp_path, which, monkeypatch):
    config = lora_config(small_config, tmp_path, which, **{"student.lora_dropout": 0.1, "train.max_steps": 8, "train.eval_steps": 4})
    whole = train_here(config, name="whole")
    run = create_run("train", config, inputs={"cache": "small"}, name="stopped")
    log = trainer.Watch.on_log

    def log_then_ask(self, args, state, control, **others):
        log(self, args, state, control, **others)
        if state.global_step == 3 and "loss" in others["logs"]:
            run.request_stop()

    monkeypatch.setattr(trainer.Watch, "on_log", log_then_ask)
    carry_out(run)
    monkeypatch.setattr(trainer.Watch, "on_log", log)
    checkpoint = next(run.checkpoints_folder.glob("checkpoint-*"))
    stored = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    assert 0 < stored < 0.2 * sum(path.stat().st_size for path in run.model_folder.glob("*.safetensors")), "checkpoints hold adapters"
    assert "sibling" not in (checkpoint / "adapter_config.json").read_text(), "no path of this machine"
    jobs.requeue(run)
    carry_out(run)
    curves = [[(row["loss"], row["grad_norm"]) for row in metrics.read(each.metrics_path) if "loss" in row] for each in (run, whole)]
    np.testing.assert_allclose(*curves, rtol=1e-6)
    ours, theirs = (models.load_model(str(each.model_folder), dtype="float32").state_dict() for each in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_activation_checkpointing_changes_nothing(small_cache, small_config, tmp_path):
    rows = []
    for on in (False, True):
        config = lora_config(small_config, tmp_path, "pruned", **{"train.max_steps": 2, "train.activation_checkpointing": on})
        rows.append([row["grad_norm"] for row in metrics.read(train_here(config).metrics_path) if "grad_norm" in row])
    np.testing.assert_allclose(*rows, rtol=1e-5)


def test_a_checkpoint_is_counted_by_what_learns(small_cache, small_config, tmp_path):
    student = student_of(lora_config(small_config, tmp_path, "pretrained"), small_cache)
    learns = sum(weight.numel() for weight in student.parameters() if weight.requires_grad)
    assert checkpoint_bytes(student, "adamw_torch") == 12 * learns


@pytest.mark.parametrize("family", ["gpt2", "qwen3_moe", "gemma2", "falcon_h1", "phi", "mamba"])
def test_adapters_on_other_families(family):
    """Layers that are no Linear, experts, softcaps, scales, biased heads, recurrences: the probe sees through, and merging is exact."""
    model = tiny(family, SERVED[family])
    adapted = stirred(with_adapter(model, StudentConfig(init="prune_layers", lora_rank=2), seed=0))
    assert probe_head(adapted, V) == SERVED[family].ops
    ids = torch.randint(3, V, (2, 12), generator=torch.Generator().manual_seed(1))
    plain = tiny(family, SERVED[family])
    plain.load_state_dict(plain_model(adapted).state_dict())
    with torch.no_grad():
        scale = plain(input_ids=ids).logits.abs().max()
        torch.testing.assert_close(plain(input_ids=ids).logits, adapted(input_ids=ids).logits, rtol=0, atol=1e-4 * scale.item())


def test_a_head_or_a_name_that_cannot_be_adapted_is_refused():
    for names, words in ((("lm_head",), "names the head"), (("q_porj",), "q_porj"), (("embed_tokens",), "names the embeddings")):
        model = tiny("llama", SERVED["llama"])
        with pytest.raises(
            ConfigError, match=rf"lora_target_modules .*{words}.*down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
        ):
            with_adapter(model, StudentConfig(init="prune_layers", lora_rank=2, lora_target_modules=names), seed=0)
    wrapped = peft.get_peft_model(tiny("llama", SERVED["llama"]), peft.LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(ModelError, match=r"LlamaForCausalLM: its head carries an adapter.*student\.lora_target_modules"):
        probe_head(wrapped, V)


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ({"lora_alpha": 8}, "lora_alpha 8 is only read with student.lora_rank"),
        ({"init": "pretrained", "model": "x", "quantize": "4bit"}, "quantize 4bit is only read with student.lora_rank"),
        ({"lora_rank": 4}, "'pretrained' or 'prune_layers', not 'fresh'"),
        ({"init": "prune_layers", "lora_rank": 4, "quantize": "8bit"}, "needs init 'pretrained', not 'prune_layers'"),
        ({"init": "prune_layers", "lora_rank": 4, "lora_dropout": 1.0}, "lora_dropout"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(student, words):
    with pytest.raises(ConfigError, match=words):
        from_dict({"student": student})


def test_missing_packages_and_foreign_devices_are_named(small_cache, small_config, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="student.quantize '4bit' works on a CPU or a CUDA GPU, not on 'mps'"):
        quantization(StudentConfig(init="pretrained", model="x", lora_rank=2, quantize="4bit"), torch.device("mps"))
    for package in ("bitsandbytes", "peft"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ConfigError, match=rf"(?i)needs {package}.*distill-core\[lora\]"):
                student_of(lora_config(small_config, tmp_path / package, "4bit" if package == "bitsandbytes" else "pruned"), small_cache)


def test_names_of_layers_come_as_a_list_or_as_the_command_line_gives_them():
    for given in ("q_proj, v_proj", ["q_proj", "v_proj"]):
        student = from_dict({"student": {"init": "prune_layers", "lora_rank": 4, "lora_target_modules": given}}).student
        assert student.lora_target_modules == ("q_proj", "v_proj")
