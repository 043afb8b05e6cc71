"""What all tests share: a home folder of their own, and one thread, so that numbers do not depend on the machine."""

import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
from steps import capture_here


@pytest.fixture(autouse=True)
def distill_home(tmp_path, monkeypatch):
    """Every test works in its own, empty home."""
    home = tmp_path / "home"
    monkeypatch.setenv("DISTILL_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def small_config():
    """The whole path in seconds: short windows of the built-in stories, a student of two thin layers."""
    from distill_core.config import from_dict

    return from_dict(
        {
            "text": {"window_tokens": 64, "num_windows": 24, "num_heldout_windows": 6},
            "capture": {"name": "small", "windows_per_shard": 8, "batch_windows": 4, "num_samples": 2, "sample_tokens": 8, "top_k": 20},
            "student": {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
            "train": {"max_steps": 8, "per_device_train_batch_size": 4, "warmup_steps": 2, "eval_steps": 4, "save_steps": 3},
            "device": "cpu",
        }
    )


@pytest.fixture(scope="session")
def captured_once(small_config, tmp_path_factory):
    """The small cache, captured once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("captured")
        patch.setenv("DISTILL_HOME", str(home))
        capture_here(small_config)
        return home


@pytest.fixture
def small_cache(captured_once, distill_home):
    """The small cache, in this test's own home."""
    shutil.copytree(captured_once / "caches", distill_home / "caches")
    from distill_core.cache import open_cache

    return open_cache("small")
