"""The playground without a browser: what it shows for a cache, for none, and for what is not there."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from distill_core import jobs, paths


@pytest.fixture
def app():
    """A fresh copy of the notebook: an app keeps state between runs."""
    spec = importlib.util.spec_from_file_location("playground_app", paths.apps_dir() / "playground.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


class Form(dict):
    """Stands in for a mo.ui.dictionary: values, and something to show for each."""

    def __init__(self, **values):
        super().__init__({name: f"[{name}]" for name in values})
        self.value = values


def told(outputs):
    return " ".join(output.text for output in outputs if output is not None and hasattr(output, "text"))


def knobs(temperature=1.0, top_k=5, divergence="forward_kl"):
    return {"knobs": Form(temperature=temperature, top_k=top_k, divergence=divergence)}


def test_opening_loads_no_torch_and_shows_the_first_cache(app, small_cache):
    before = {name for name in ("torch", "transformers", "datasets") if name in sys.modules}
    outputs, defs = app.run()
    assert {name for name in ("torch", "transformers", "datasets") if name in sys.modules} == before
    assert defs["opened"].cache.name == "small"
    assert defs["belief"].temperature == 1.0
    assert set(defs["frames"].rows) == {"belief", "taught", "kept-mass"}
    assert all(defs["frames"].rows.values())
    assert "Advice from this cache" in told(outputs)


def test_the_knobs_reach_the_numbers(app, small_cache):
    _, defs = app.run(defs=knobs(temperature=2.0, top_k=3, divergence="reverse_kl"))
    assert (defs["belief"].temperature, len(defs["belief"].probabilities_K)) == (2.0, 3)
    rows = defs["frames"].rows
    (point,) = [row for row in rows["kept-mass"] if row["kind"] == "point"]
    assert (point["t"], point["k"]) == ("T = 2", 3)
    assert [row["part"] for row in rows["belief"]][:4] == ["kept", "kept", "kept", "cut"]


def test_a_click_on_a_token_moves_everything(app, small_cache):
    _, first = app.run()
    window = first["window"]
    at = [token for token in range(window.num_tokens) if window.is_asked(token)][7]
    strip = SimpleNamespace(value={"position": at}, text="strip")
    _, defs = app.run(defs={"strip": strip, "window": window})
    assert defs["place"].gold_id == window.token_ids[at]


def test_a_window_that_is_not_there_is_said(app, small_cache):
    outputs, defs = app.run(defs={"where": Form(split="train", window=99)})
    assert "no window 99 in split" in told(outputs)
    assert defs["belief"] is None


def test_without_a_cache_there_is_one_button_and_nothing_made_up(app, home, monkeypatch):
    started = []
    monkeypatch.setattr(jobs, "start", lambda run: started.append(run))
    outputs, defs = app.run()
    assert "No cache is here yet." in told(outputs)
    assert defs["belief"] is None and started == []
    app_again = app.run(defs={"capture_button": SimpleNamespace(value=True, text="<button>")})
    (run,) = started
    assert run.status().kind == "capture"
    assert run.config().teacher.model == "builtin"
    assert app_again is not None


def test_a_damaged_cache_is_said(app, small_cache):
    (small_cache.folder / "shards" / "train-00000.parquet").unlink()
    outputs, defs = app.run()
    assert "is missing" in told(outputs)
    assert defs["opened"] is None
