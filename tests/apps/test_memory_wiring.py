"""The memory page without a browser: it holds together for any choice, and asks nobody."""

import importlib.util
import socket
import sys
from types import SimpleNamespace

import pytest

from distill_core import catalog, memory, paths
from distill_core.language import in_language


@pytest.fixture
def page():
    """A fresh copy of the notebook: an app keeps state between runs."""
    spec = importlib.util.spec_from_file_location("memory_app", paths.apps_dir() / "memory.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch):
    """Whoever opens a connection fails the test."""

    def refuse(*_):
        raise AssertionError("the memory page asked another machine")

    monkeypatch.setattr(socket.socket, "connect", refuse)


class Form(dict):
    """Stands in for a mo.ui.dictionary."""

    def __init__(self, **values):
        super().__init__({name: f"[{name}]" for name in values})
        self.value = values


def shape(**more):
    gpus = [gpu.label for gpu in memory.gpus()]
    return Form(
        **{"batch": 1, "accumulation": 1, "top_k": 100, "bf16": True, "checkpointing": False, "lora_rank": 0, "quantize": "", "gpus": gpus}
        | more
    )


def text_of(outputs):
    return "\n".join(output.text for output in outputs if output is not None and hasattr(output, "text"))


def test_opening_shows_the_published_setting_and_loads_no_torch(page):
    before = {name for name in ("torch", "transformers") if name in sys.modules}
    outputs, defs = page.app.run()
    assert defs["config"].student.model == memory.published_config().student.model
    assert list(defs["charts"]) == list(memory.MODES)
    assert "estimated" in str(defs["charts"]["offline dense"].to_dict())
    assert "RTX PRO 6000, 96 GB" in text_of(outputs)
    assert {name for name in ("torch", "transformers") if name in sys.modules} == before


@pytest.mark.parametrize("student", ["Qwen/Qwen3-0.6B", "google/gemma-3-270m-it", "openai/gpt-oss-20b", "openai-community/gpt2"])
def test_any_pair_of_the_list(page, student):
    chosen = {"student": catalog.listed_facts(student), "teacher": catalog.listed_facts("Qwen/Qwen3-32B"), "custom_note": ""}
    outputs, defs = page.app.run(defs=chosen | {"shape": shape(batch=8, checkpointing=True), "window": SimpleNamespace(value=2048)})
    assert student in text_of(outputs)
    assert "estimated" not in str(defs["charts"]["offline dense"].to_dict()), "their figures speak of another pair"


def test_a_look_up_that_fails_is_explained_and_the_page_stands(page, tmp_path):
    found = page.looked_up({"teacher": str(tmp_path / "no.json"), "student": " "})
    assert "missing" in found["note"]
    assert set(found) == {"note"}
    (tmp_path / "config.json").write_text((catalog.builtin_folder() / "config.json").read_text())
    found = page.looked_up({"teacher": "", "student": str(tmp_path / "config.json")})
    assert found["student"].hidden_size == 192


def test_in_portuguese(page):
    outputs, _ = page.app.run(defs={"query": {"lang": "pt"}, "say": in_language("pt")})
    assert "Para onde vai a memória" in text_of(outputs)
    assert "A GPU mais pequena da lista onde cabe" in text_of(outputs)


def test_adapters_and_fewer_bits_lower_the_bars(page):
    """LoRA: no gradient and no moments for what is frozen; bits without adapters change nothing, as in a training."""
    peaks = {}
    for rank, bits in ((0, ""), (0, "4bit"), (16, ""), (16, "4bit")):
        outputs, defs = page.app.run(defs={"shape": shape(lora_rank=rank, quantize=bits), "window": SimpleNamespace(value=2048)})
        assert (defs["config"].student.lora_rank, defs["config"].student.quantize) == (rank or None, (rank and bits) or None)
        assert ("Only the adapters learn: 24.3M parameters" in text_of(outputs)) == bool(rank)
        assert ("[quantize]" in text_of(outputs)) == bool(rank), "asked only where it is read"
        assert ("estimated" in str(defs["charts"]["offline dense"].to_dict())) == (rank == 0), "theirs trained every weight"
        peaks[rank, bits] = memory.peaks(defs["teacher"], defs["student"], defs["at_length"], gpu=True)["offline fused"]
    frozen = defs["student"].num_parameters - 24_400_000
    assert peaks[0, ""] == peaks[0, "4bit"] > peaks[16, ""] + 8 * frozen, "two float32 moments less for each that is frozen"
    assert peaks[16, ""] > peaks[16, "4bit"]
