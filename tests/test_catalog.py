"""Facts before weights: from headers, from a stand-in for the Hub, from the list; and every refusal in words."""

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from distill_core import catalog
from distill_core.catalog import lookup
from distill_core.catalog.model_facts import ModelFacts, dense_parameters, dtype_in_memory, shape_from_config
from distill_core.catalog.weights import read_gguf, read_safetensors, weight_names
from distill_core.errors import ModelError
from distill_core.paths import file_sha256

from .hub_stand_in import COMMIT, hub_with

ROOT = Path(__file__).parent.parent


def write_gguf(path, *tensors, architecture="llama"):
    """A tiny llama in GGUF, by the library that defines the format; tensors are (name, shape)."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_license("mit")
    writer.add_block_count(2)
    writer.add_embedding_length(4)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_context_length(64)
    writer.add_token_list([f"t{i}" for i in range(5)])
    writer.add_array("scores", [float(i) for i in range(600)])
    for name, shape in tensors:
        writer.add_tensor(name, np.ones(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def folder_with(tmp_path, name="model", *, config=None, files=()):
    """The built-in model's folder with changes."""
    folder = tmp_path / name
    shutil.copytree(catalog.builtin_folder(), folder)
    if config is not None:
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, **config}))
    for file in files:
        (folder / file).write_bytes(b"x")
    return folder


def test_builtin_by_hand():
    """2,048 x 192 embedding, tied; 4 layers of 4 x 192² + 3 x 192 x 512 + 2 x 192; a last norm of 192."""
    known = catalog.facts("builtin")
    assert known.num_parameters == 2048 * 192 + 4 * (4 * 192**2 + 3 * 192 * 512 + 2 * 192) + 192 == 2_164_416
    assert (known.kind, known.tied_head, known.dtype_on_disk, known.vocab_size_tokenizer) == ("builtin", True, "float16", 2048)
    assert known.memory_bytes == {"float32": 8_657_664, "bfloat16": 4_328_832, "float16": 4_328_832}
    assert known.disk_bytes == (catalog.builtin_folder() / "model.safetensors").stat().st_size


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from distill_core import catalog, memory; catalog.facts('builtin'); catalog.models_table();"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub', 'gguf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_list_agrees_with_its_own_sizes():
    """Parameters were counted from transformers' configs; the closed formula, which knows no biases, must come within 1 %."""
    table = catalog.models_table()
    assert table["id"].is_unique().all()
    assert table.null_count().drop("gated").sum_horizontal().item() == 0
    for name in table["id"]:
        row = lookup.row_facts(name)
        assert dense_parameters(row) == pytest.approx(row.num_parameters, rel=0.01), name


def test_the_list_knows_published_totals():
    published = {
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
        "openai-community/gpt2": 124_439_808,
        "EleutherAI/pythia-70m": 70_426_624,
        "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    }
    rows = {row["id"]: row for row in catalog.models_table().to_dicts()}
    assert {name: rows[name]["num_parameters"] for name in published} == published
    assert rows["Qwen/Qwen2.5-7B-Instruct"]["vocab_size"] == 152_064
    assert rows["Qwen/Qwen2.5-0.5B-Instruct"]["vocab_size"] == 151_936  # the pair whose padding differs
    for family in {row["family"] for row in rows.values()}:
        assert any(row["role"] in ("teacher", "both") for row in rows.values() if row["family"] == family)


def test_parameters_in_the_list_are_counted():
    """By transformers itself, from each row's sizes, without weights."""
    spec = importlib.util.spec_from_file_location("count_models", ROOT / "data" / "count_models.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.counted_table() == script.TABLE.read_text(encoding="utf-8")


def test_a_listed_model_is_known_without_a_network():
    known = catalog.facts("google/gemma-2-9b-it")
    assert (known.num_parameters, known.hidden_size, known.gated) == (9_241_705_984, 3584, True)
    assert any("terms count a model distilled from Gemma" in note for note in known.notes)
    assert any("list that ships with this package" in note for note in known.notes)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nobody/nothing", "not on this machine.*HF_HUB_OFFLINE.*'builtin'"),
        ("/no/such/folder", "no such folder"),
        ("two words", "not a Hugging Face id"),
        ("a/b/c", "not a Hugging Face id"),
        ("missing.gguf", "no such file"),
        (str(ROOT / "pyproject.toml"), "is a file, but not a .gguf one"),
        ("", "has no name"),
    ],
)
def test_names_that_lead_nowhere_are_refused(source, words):
    with pytest.raises(ModelError, match=words):
        catalog.facts(source)


def test_a_folder_like_the_built_in_one(tmp_path):
    folder = folder_with(tmp_path)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: llama3.1\n---\n# Card\n")
    known = catalog.facts(str(folder))
    assert (known.kind, known.license, known.num_layers) == ("folder", "llama3.1", 4)
    assert any("begin with 'Llama'" in note for note in known.notes)


def test_folders_that_cannot_be_used_are_refused(tmp_path):
    folder = folder_with(tmp_path, "pickle", files=["pytorch_model.bin"])
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"pytorch_model.bin, a pickle, which could run any code"):
        catalog.facts(str(folder))
    (folder / "pytorch_model.bin").rename(folder / "model.gguf")
    with pytest.raises(ModelError, match=r"holds GGUF files \(model.gguf\)"):
        catalog.facts(str(folder))
    bert = folder_with(tmp_path, "bert", config={"architectures": ["BertForMaskedLM"]})
    with pytest.raises(ModelError, match="is a BertForMaskedLM, not a causal language model"):
        catalog.facts(str(bert))
    (bert / "config.json").unlink()
    with pytest.raises(ModelError, match="config.json is missing"):
        catalog.facts(str(bert))
    broken = folder_with(tmp_path, "broken")
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match="config.json is not JSON"):
        catalog.facts(str(broken))


def test_weights_that_are_cut_short_are_refused(tmp_path):
    folder = folder_with(tmp_path)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    with pytest.raises(ModelError, match="cut short or is not safetensors"):
        catalog.facts(str(folder))
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"1 of 2 weight files are missing.*model-00002"):
        catalog.facts(str(folder))


def test_masks_in_old_checkpoints_are_no_parameters(tmp_path):
    header = {
        "h.0.attn.bias": {"dtype": "F32", "shape": [1, 1, 8, 8], "data_offsets": [0, 0]},
        "h.0.attn.c_attn.bias": {"dtype": "F32", "shape": [12], "data_offsets": [0, 0]},
        "attention.masked_bias": {"dtype": "F32", "shape": [1], "data_offsets": [0, 0]},
    }
    body = json.dumps(header).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(body)) + body)
    assert read_safetensors([tmp_path / "w.safetensors"]).num_elements == {"h.0.attn.c_attn.bias": 12}


def test_gguf_by_hand(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", ("token_embd.weight", (5, 4)), ("blk.0.ffn_up.weight", (8, 4)))
    header = read_gguf(path)
    assert header.num_elements == {"token_embd.weight": 20, "blk.0.ffn_up.weight": 32}
    assert header.metadata["scores"] == {"length": 600}
    known = catalog.facts(str(path))
    assert (known.kind, known.num_parameters, known.dtype_on_disk, known.license) == ("gguf", 52, "F16", "mit")
    assert (known.hidden_size, known.num_kv_heads, known.head_dim, known.vocab_size_tokenizer) == (4, 2, 2, 5)
    assert known.tied_head
    assert not catalog.facts(str(write_gguf(tmp_path / "untied.gguf", ("token_embd.weight", (5, 4)), ("output.weight", (5, 4))))).tied_head


DAMAGES = {
    "header cut": lambda whole: whole[:40],
    "tensors cut": lambda whole: whole[:-60],
    "another magic": lambda whole: b"GGML" + whole[4:],
    "empty": lambda whole: b"",
    "version 1": lambda whole: whole[:4] + b"\1" + whole[5:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_and_old_gguf_files_are_refused(tmp_path, damage):
    path = write_gguf(tmp_path / "bad.gguf", ("token_embd.weight", (5, 4)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        catalog.facts(str(path))


def test_which_files_are_weights():
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors", "sub/model.safetensors"]
    assert weight_names(names, "m") == names[:2]
    with pytest.raises(ModelError, match="is an adapter, not a whole model"):
        weight_names(["adapter_model.safetensors", "adapter_config.json"], "m")


def test_sizes_under_other_names():
    gpt2 = shape_from_config({"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 61, "n_positions": 64})
    assert (gpt2["hidden_size"], gpt2["intermediate_size"], gpt2["head_dim"], gpt2["tied_head"]) == (32, 128, 8, True)
    nested = shape_from_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 8, "vocab_size": 5}})
    assert (nested["hidden_size"], nested["vocab_size_config"], nested["tied_head"]) == (8, 5, True)


def test_type_in_memory():
    quantized = catalog.facts("builtin").noting("x")
    assert dtype_in_memory(quantized, None, "cpu") == "float32"
    assert dtype_in_memory(quantized, None, "cuda:0") == "float16"
    assert dtype_in_memory(quantized, "bfloat16", "cpu") == "bfloat16"
    q4 = ModelFacts(**{**vars(quantized), "dtype_on_disk": "Q4_K"})
    assert dtype_in_memory(q4, None, "cuda") == "bfloat16"


ASK = """
import json, sys
from distill_core import catalog
from distill_core.catalog import hub
out = []
for what, source, revision in json.loads(sys.argv[1]):
    try:
        found = getattr(catalog if what == "facts" else hub, what)(source, revision)
        out.append(str(found) if what != "facts" else [found.num_parameters, found.license, found.gated, found.commit, *found.notes])
    except hub.ModelError as error:
        out.append(f"{type(error).__name__}: {error}")
print(json.dumps(out))
"""


def ask(hub_home, questions, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK, json.dumps(questions)],
        env={**os.environ, "HF_HOME": str(hub_home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_hub_that_answers_and_then_does_not(tmp_path):
    pickle = folder_with(tmp_path, "pickle", files=["pytorch_model.bin"])
    (pickle / "model.safetensors").unlink()
    open_repo = {"folder": catalog.builtin_folder(), "gated": False, "license": "mit"}
    repos = {
        "good/one": open_repo,
        "facts/only": open_repo,
        "gated/one": {**open_repo, "gated": True},
        "google/gemma-2-2b-it": {**open_repo, "gated": True, "license": "gemma"},
        "pickle/one": {**open_repo, "folder": pickle},
    }
    with hub_with(repos) as (address, asked):
        answers = ask(
            tmp_path / "hf",
            [
                ("facts", "good/one", None),
                ("snapshot", "good/one", None),
                ("facts", "facts/only", None),
                ("facts", "gated/one", None),
                ("snapshot", "gated/one", None),
                ("facts", "google/gemma-2-2b-it", None),
                ("snapshot", "pickle/one", None),
                ("facts", "nobody/here", None),
                ("facts", "Qwen/Qwen3-8", None),
                ("facts", "good/one", "no-such-tag"),
            ],
            HF_ENDPOINT=address,
            HF_HUB_OFFLINE="0",
        )
    good, snapshot, only, gated, gated_snapshot, listed, pickled, nobody, near, tag = answers
    assert good == [2_164_416, "mit", False, COMMIT]
    assert only == good
    assert file_sha256(Path(snapshot) / "model.safetensors") == file_sha256(catalog.builtin_folder() / "model.safetensors")
    assert "gated" in gated
    assert "hf auth login" in gated_snapshot
    assert listed[:4] == [2_614_341_888, "gemma", True, COMMIT]
    assert "pytorch_model.bin, a pickle" in pickled
    assert not any("pytorch_model.bin" in line for line in asked)  # refused before anything large was fetched
    assert "no model of that name" in nobody
    assert "Known:" not in nobody
    assert "Did you mean 'Qwen/Qwen3-8B'?" in near
    assert "no revision 'no-such-tag'" in tag

    again = [("facts", "good/one", None), ("snapshot", "good/one", None), ("snapshot", "facts/only", None)]
    offline = ask(tmp_path / "hf", again, HF_HUB_OFFLINE="1")
    assert offline[0][0] == 2_164_416
    assert "earlier download" in offline[0][-1]
    assert offline[1] == snapshot
    assert offline[2].startswith("UnreachableError: model facts/only is not on this machine, or only in part, and offline mode is set")
    dead = ask(tmp_path / "hf", [*again[1:], ("facts", "other/one", None)], HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    assert dead[0] == snapshot
    assert "only in part, and the Hub cannot be reached" in dead[1]
    assert "the Hub cannot be reached" in dead[2]
