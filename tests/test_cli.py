"""The command line: help for newcomers, one plain message for an error, the same names as the config."""

import json
import os
import subprocess
import sys
import time

import pytest

from distill_core.cli import build_parser, run_command_line
from distill_core.config import DistillConfig, with_overrides
from distill_core.paths import runs_dir
from distill_core.runs import create_run, list_runs, open_run

COMMANDS = ("demo", "data", "capture", "cache", "train", "evaluate", "plan", "bench", "runs", "export")


def refused(capsys, *arguments):
    """(exit code, what stands on the error stream)"""
    try:
        code = run_command_line(arguments)
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        run_command_line([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "usage: distill " + command in text
    assert len(text) > 200


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit):
        run_command_line(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n    {command}" in text for command in COMMANDS)


def test_every_setting_is_an_option_of_the_demo(capsys):
    with pytest.raises(SystemExit):
        run_command_line(["demo", "--help"])
    text = capsys.readouterr().out
    of_other_commands = ("chain", "write")
    for section, field in DistillConfig.model_fields.items():
        assert section not in of_other_commands or f"--{section}." not in text
        for name in () if section in of_other_commands else getattr(field.annotation, "model_fields", {}):
            assert f"--{section}.{name}" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--loss.temprature", "2"], "Did you mean '--loss.temperature'?"),
        (["demo", "--print-config", "--loss.temperature", "0"], "loss.temperature: input should be greater than or equal to 0.5, got '0'"),
        (["demo", "--print-config", "--device", "gpu"], "device 'gpu' is not one of 'auto', 'cpu'"),
        (["train"], "train needs --cache NAME. There is none yet; make one: python -m distill_core capture"),
        (["train", "--cache", "none"], "no cache 'none'"),
        (["evaluate", "none"], "no run 'none'"),
        (["cache", "info"], "needs the name of a cache"),
        (["cache", "info", "../etc"], "cannot be a folder name"),
        (["runs", "show", "none"], "no run 'none'"),
        (["export", "none", "--to", "x"], "no run 'none'"),
        (["capture", "--config", "none.json"], "none.json: no such file"),
        (["tain"], "Did you mean 'train'?"),
        (["capture", "--capture.name", "../evil"], "name '../evil' cannot be a folder name"),
    ],
)
def test_errors_are_one_message_and_exit_code_2(arguments, words, capsys):
    code, errors = refused(capsys, *arguments)
    assert code == 2
    assert words in errors
    assert errors.startswith("error: ")
    assert "Traceback" not in errors


def test_debug_shows_the_traceback(capsys):
    with pytest.raises(ValueError, match="no cache 'none'"):
        run_command_line(["train", "--cache", "none", "--debug"])


def test_options_win_over_the_file(tmp_path, capsys):
    path = tmp_path / "c.json"
    path.write_text(DistillConfig().changed(loss=DistillConfig().loss.changed(temperature=3.0, ce_weight=0.5)).to_json())
    assert run_command_line(["demo", "--print-config", "--config", str(path), "--loss.temperature", "2"]) == 0
    loss = json.loads(capsys.readouterr().out)["loss"]
    assert (loss["temperature"], loss["ce_weight"]) == (2.0, 0.5)


def test_lists_and_null(capsys):
    assert (
        run_command_line(
            ["demo", "--print-config", "--student.init", "prune_layers", "--student.keep_layers", "[0, 3]", "--teacher.revision", "null"]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert run_command_line(["demo", "--print-config", "--student.init", "prune_layers", "--student.keep_layers", "0,3"]) == 0
    assert json.loads(capsys.readouterr().out)["student"] == printed["student"]
    assert printed["student"]["keep_layers"] == [0, 3]
    assert printed["teacher"]["revision"] is None


def test_parsing_imports_nothing_heavy():
    code = (
        "import sys; from distill_core.cli import build_parser; build_parser()\n"
        "print([m for m in ('torch', 'transformers', 'marimo') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize(("given", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, "None")])
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(given, spins):
    code = "import os; from distill_core import cli; cli.run_command_line(['cache', 'list']); print(os.environ.get('GOMP_SPINCOUNT'))"
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain | given)
    assert done.stdout.strip() == spins


def test_a_closed_pipe_is_no_error(small_cache):
    done = subprocess.run(f"{sys.executable} -m distill_core cache list | true", shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_cache_commands(small_cache, capsys):
    assert run_command_line(["cache", "list"]) == 0
    assert "small" in capsys.readouterr().out
    assert run_command_line(["cache", "info", "small"]) == 0
    assert "top 20 of 2,048" in capsys.readouterr().out
    assert run_command_line(["cache", "verify", "small"]) == 0
    assert "every byte as written" in capsys.readouterr().out
    create_run("train", DistillConfig(), inputs={"cache": "small"}, name="learned")
    assert run_command_line(["cache", "delete", "small"]) == 2
    assert "1 runs learned from it (learned)" in capsys.readouterr().err
    assert run_command_line(["cache", "delete", "small", "--yes"]) == 0
    assert not small_cache.folder.exists()


def test_the_same_train_command_goes_on_after_a_kill_and_makes_the_missing_twin(small_cache, small_config, tmp_path, capsys):
    """Killed in the student's training, before its twin began: the command as typed finishes both, and what it prints can be typed."""
    config = with_overrides(small_config, {"train.max_steps": 40, "train.save_steps": 5, "train.name": "s1"})
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    command = ["train", "--cache", "small", "--twin", "--config", str(path)]
    child = subprocess.Popen([sys.executable, "-m", "distill_core", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = runs_dir() / "s1" / "checkpoints"
    while not list(folder.glob("*/trainer_state.json")) and child.poll() is None:
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert open_run("s1").status().state == "failed"
    assert "runs resume s1" in open_run("s1").status().error
    assert run_command_line(command) == 0
    assert {run.id: run.status().state for run in list_runs("train")} == {"s1": "done", "s1-hard-labels": "done"}
    line = next(line for line in capsys.readouterr().out.splitlines() if "evaluate" in line)
    assert run_command_line(line.split("python -m distill_core ")[1].split()) == 0
    assert run_command_line(command) == 0, "finished runs are taken as they are"
    assert "done with these very settings" in capsys.readouterr().out
    assert run_command_line([*command, "--train.max_steps", "41"]) == 2
    assert "the name is taken, by a run with other settings" in capsys.readouterr().err


def test_data_info(capsys):
    assert run_command_line(["data", "info", "--json", "--text.num_windows", "10", "--text.num_heldout_windows", "4"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["windows to train on"], facts["windows held out"]) == (10, 4)
    assert 0.8 < facts["share of trained tokens"] <= 1.0


def test_the_whole_path_in_a_terminal(tmp_path, small_config):
    """demo with a small config: four steps, a table, a verdict, and the command that takes the student home works as printed."""
    path = tmp_path / "config.json"
    path.write_text(small_config.to_json())
    run = subprocess.run(
        [sys.executable, "-m", "distill_core", "demo", "--config", str(path)], capture_output=True, text=True, env=os.environ
    )
    assert run.returncode == 0, run.stderr
    for words in ("1/4", "4/4", "hard labels", "bits/byte", "hard-label twin on held-out text", "python -m distill_core export"):
        assert words in run.stdout
    line = next(line for line in run.stdout.splitlines() if "export" in line)
    command = line.split("python -m distill_core ")[1].replace("my-student", str(tmp_path / "mine")).split()
    subprocess.run([sys.executable, "-m", "distill_core", *command], check=True, capture_output=True, env=os.environ)
    assert (tmp_path / "mine" / "model.safetensors").exists()


def test_the_parser_knows_its_own_options():
    assert "--loss.temperature" in build_parser().known_options()


def test_a_run_is_shown_once_in_few_digits_and_with_its_judgement(capsys):
    run = create_run("train", DistillConfig(), inputs={"cache": "mine"}, name="s")
    run.update(state="done", result={"cache": "mine", "best_step": 600, "heldout_nll": 2.3456789012345678})
    told = {"baseline": "s-hard-labels", "verdict": "The distilled student BEATS its equal-budget hard-label twin."}
    run.evaluation_path.write_text(json.dumps(told))
    assert run_command_line(["runs", "show", "s"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("cache") == 1
    assert "heldout_nll: 2.346 nats per held-out token" in shown
    assert "judged beside s-hard-labels: The distilled student BEATS" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--print-config", "--train.max_steps", "many"], "train.max_steps takes a whole number, got 'many'."),
        (["demo", "--print-config", "--train.learning_rate", "fast"], "train.learning_rate takes a number, got 'fast'."),
        (["demo", "--print-config", "--train.name", "../x"], "starting with a letter or digit.\n"),
        (["train", "--shape", "1,2,3"], "--shape belongs to: bench."),
        (["bench", "loss", "--shape", "a,b"], "a,b: give tokens, vocabulary and hidden size"),
        (["train", "--shappe", "1"], "Did you mean '--shape'?"),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(arguments, words, capsys):
    code, errors = refused(capsys, *arguments)
    assert code == 2
    assert words in errors


def test_help_shows_defaults_as_values(capsys):
    with pytest.raises(SystemExit):
        run_command_line(["train", "--help"])
    assert "Undefined" not in capsys.readouterr().out


def test_of_many_runs_only_the_nearest_are_named(capsys):
    for number in range(20):
        create_run("train", DistillConfig(), name=f"night-{number:02d}")
    _, errors = refused(capsys, "runs", "show", "zzz-07")
    assert "The nearest of 20: night-07, " in errors
    assert errors.count("night-") == 5
