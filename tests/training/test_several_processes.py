"""Several processes train what one process trains: DDP and FSDP2 over gloo, stopped, resumed, killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load_file
from steps import train_here
from transformers import LlamaConfig, LlamaForCausalLM

from distill_core import metrics, models
from distill_core.cli import run_command_line
from distill_core.config import DistillConfig, with_overrides
from distill_core.errors import ConfigError
from distill_core.group import Group
from distill_core.runs import create_run, open_run
from distill_core.scoring import shares
from distill_core.training.arguments import training_arguments
from distill_core.training.launch import check_launch, check_sharding

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
FSDP |= {"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_RESHARD_AFTER_FORWARD": "true"}
CURVE = ("loss", "kl", "ce", "floor", "teacher_nll", "top1_agreement", "learning_rate", "grad_norm", "heldout_nll", "heldout_kl")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


@pytest.fixture
def launch(tmp_path):
    """launch(mode, *words) -> two processes of the command line under a launcher."""
    started = []

    def start(mode, *words):
        python = Path(sys.executable)
        if mode == "accelerate":
            command = [str(python.with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
            command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", free_port(), "-m", "distill_core"]
        else:
            command = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
            command += [str(Path(__file__).with_name("fsdp_on_cpu.py"))] if mode == "fsdp" else ["-m", "distill_core"]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(FSDP if mode == "fsdp" else {})}
        started.append(subprocess.Popen([*command, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # the launcher ends its own
        process.communicate(timeout=60)


def student_with_own_head(folder):
    """Settings for a small Llama of two layers whose head is not its embedding, made in the folder."""
    if not folder.exists():
        models.load_tokenizer("builtin").save_pretrained(folder)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 2048}
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False)).save_pretrained(folder)
    rest = dict.fromkeys(("student.num_layers", "student.hidden_size", "student.num_attention_heads", "student.intermediate_size"))
    return {"student.init": "pretrained", "student.model": str(folder), **rest}


@pytest.fixture
def settings(small_config, tmp_path):
    """settings(**train) -> config, and its file. The text's own tokens count too, and gradients are cut.

    own_head: the student's head is a weight of its own; otherwise it is the embedding's.
    """

    def write(*, own_head=False, **train):
        pairs = {"loss.ce_weight": 0.3, "loss.temperature": 2.0, "train.max_grad_norm": 0.6, "train.warmup_steps": 1}
        config = with_overrides(small_config, pairs | {f"train.{name}": value for name, value in train.items()})
        if own_head:
            config = with_overrides(config, student_with_own_head(tmp_path / "own-head"))
        path = tmp_path / f"{len(list(tmp_path.glob('*.json')))}.json"
        path.write_text(config.to_json())
        return config, str(path)

    return write


def same_curve(run_id, other_id):
    """Every figure of metrics.jsonl within 1e-5, relative; the times differ."""
    ours, theirs = (
        [[row.get(name, 0.0) for name in CURVE] for row in metrics.read(open_run(name).metrics_path)] for name in (run_id, other_id)
    )
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-5, atol=1e-7)


def same_weights(run_id, other_id):
    ours, theirs = (load_file(open_run(name).model_folder / "model.safetensors") for name in (run_id, other_id))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert np.linalg.norm(ours[name] - weight) <= 1e-5 * np.linalg.norm(weight), name


def losses(run_id):
    """Step -> loss."""
    return {row["step"]: row["loss"] for row in metrics.read(open_run(run_id).metrics_path) if "loss" in row}


FIVE = {"max_steps": 5, "eval_steps": 5, "save_steps": 5, "per_device_train_batch_size": 2}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "own_head"),
    [
        ("accelerate", False),
        *(pytest.param(mode, own_head, marks=SLOW) for mode, own_head in (("ddp", True), ("fsdp", False), ("fsdp", True))),
    ],
)
def test_two_processes_train_what_one_does(launch, settings, small_cache, mode, own_head):
    """Five steps of 8 windows whose numbers of learned tokens differ: 1 process x 4 micro-batches, 2 processes x 2."""
    alone, _ = settings(own_head=own_head, **FIVE, gradient_accumulation_steps=4)
    _, path = settings(own_head=own_head, **FIVE, gradient_accumulation_steps=2)
    process = launch(mode, "train", "--cache", "small", "--config", path, "--train.name", "both")
    said = process.communicate(timeout=400)[0]
    assert process.returncode == 0, said
    train_here(alone, name="alone")
    same_curve("both", "alone")
    same_weights("both", "alone")
    assert said.count("training for 5 steps") == said.count("Judge it") == 1, "the first process speaks for both"
    assert open_run("both").status().state == "done"
    assert not open_run("both").checkpoints_folder.exists()
    if mode == "fsdp":
        assert said.count("gathered by the loss: 0 times") == 2, said


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_stopped_together_and_resumed_as_if_undisturbed(launch, settings, small_cache, mode):
    steps = {"max_steps": 40, "eval_steps": 10, "save_steps": 7, "per_device_train_batch_size": 2}
    alone, _ = settings(**steps, gradient_accumulation_steps=2)
    _, path = settings(**steps)
    process = launch(mode, "train", "--cache", "small", "--config", path, "--train.name", "both")
    run = None
    while run is None or len(metrics.read(run.metrics_path)) < 4:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
        names = [path.name for path in Path(os.environ["DISTILL_HOME"]).glob("runs/*")]
        run = open_run("both") if "both" in names and (Path(os.environ["DISTILL_HOME"]) / "runs/both/status.json").exists() else None
    run.request_stop()
    said = process.communicate(timeout=300)[0]
    assert run.status().state == "stopped", said
    assert (run.model_folder / "model.safetensors").exists()
    assert max(row["step"] for row in metrics.read(run.metrics_path)) < 40
    process = launch(mode, "train", "--resume", "both")
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert ", from step" in said
    train_here(alone, name="alone")
    both, undisturbed = losses("both"), losses("alone")
    assert both.keys() == undisturbed.keys() == set(range(1, 41))
    for step, loss in undisturbed.items():
        assert both[step] == pytest.approx(loss, rel=1e-4), step


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_process_ends_all_and_the_run_goes_on(launch, settings, small_cache):
    _, path = settings(max_steps=100_000, eval_steps=50_000, save_steps=2, per_device_train_batch_size=2)
    process = launch("ddp", "train", "--cache", "small", "--config", path, "--train.name", "both")
    folder = Path(os.environ["DISTILL_HOME"]) / "runs" / "both"
    while not (folder / "checkpoints" / "checkpoint-2" / "trainer_state.json").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    first = open_run("both").status().pid
    second = next(child for child in psutil.Process(process.pid).children() if child.pid != first and "train" in child.cmdline())
    second.kill()
    said = process.communicate(timeout=300)[0]
    assert process.returncode != 0
    status = open_run("both").status()
    assert not status.is_active, said
    assert status.state in ("failed", "stopped"), "the launcher asks the others to stop; the first may see the lost connection before"
    _, path = settings(max_steps=100_000)
    resumed = launch("ddp", "train", "--resume", "both")
    while not (open_run("both").status().state == "running" and open_run("both").status().done > 3):
        assert resumed.poll() is None, resumed.communicate()[0]
        time.sleep(0.1)
    open_run("both").request_stop()
    resumed.communicate(timeout=300)
    assert open_run("both").status().state == "stopped"


@pytest.mark.slow
def test_what_the_first_refuses_ends_all_with_its_words(launch, small_config, small_cache):
    create_run("train", small_config, inputs={"cache": "small"}, name="both").update(state="done")
    process = launch("ddp", "train", "--cache", "small", "--train.name", "both", "--train.max_steps", "3")
    said = process.communicate(timeout=300)[0]
    assert process.returncode != 0
    assert said.count("error: run both: the name is taken") == 2


def test_several_processes_stay_in_front(small_cache, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert run_command_line(["train", "--cache", "small", "--background"]) == 2
    assert "stay in front" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed is not served"),
        ({"ACCELERATE_USE_FSDP": "true"}, "FSDP version 1"),
        ({"ACCELERATE_USE_FSDP": "True", "FSDP_VERSION": "1"}, "FSDP version 1"),
    ],
)
def test_ways_to_share_that_are_refused(monkeypatch, asked, words):
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        check_launch(Group(0, 2), DistillConfig())


def test_what_would_be_done_without_a_word_is_refused(monkeypatch):
    seeking = with_overrides(DistillConfig(), {"train.auto_find_batch_size": True})
    check_launch(Group(), seeking)
    with pytest.raises(ConfigError, match="for one process"):
        check_launch(Group(0, 2), seeking)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(ConfigError, match="lora_rank under FSDP"):
        check_launch(Group(0, 2), with_overrides(DistillConfig(), {"student.init": "prune_layers", "student.lora_rank": 4}))
    check_sharding(Group(0, 2), True)
    with pytest.raises(ConfigError, match="on GPUs only"):
        check_sharding(Group(0, 2), False)


@pytest.mark.parametrize(("total", "batch", "count"), [(1, 8, 1), (6, 4, 2), (9, 2, 3), (1, 4, 4), (64, 8, 5)])
def test_every_window_is_scored_once_and_all_processes_as_often(total, batch, count):
    parts = [shares(total, batch, Group(number, count)) for number in range(count)]
    assert sorted(window for part in parts for windows, counts in part if counts for window in windows) == list(range(total))
    assert len({len(part) for part in parts}) == 1, "a model in pieces is put together by all at once"


@pytest.mark.parametrize("given", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}])
def test_numbers_that_cannot_be(monkeypatch, given):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="no such place"):
        Group.from_environment()


def test_one_process_alone_speaks_to_nobody():
    alone = Group.from_environment()
    assert (alone.count, alone.is_first) == (1, True)
    assert alone.agreed({"a": 1}) == {"a": 1}
    assert alone.gathered([3, 1]) == [3, 1]
    assert alone.any(True) and not alone.any(False)
    assert json.dumps(alone.device_name("cpu")) == '"cpu"'


def test_what_is_for_one_process_is_refused_in_a_launch(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_command_line(["evaluate", "any"]) == 2
    assert "Start this one without a launcher" in capsys.readouterr().err


def test_one_process_keeps_to_its_gpu_where_there_are_more(small_config, tmp_path, monkeypatch):
    """As on a machine with two GPUs: transformers would take both, and the first for everything."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    arguments = training_arguments(small_config, tmp_path, torch.device("cuda:1"))
    assert (arguments.device, arguments.n_gpu, str(chosen[-1])) == (torch.device("cuda:1"), 1, "cuda:1")
