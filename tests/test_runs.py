"""The run folder: whole or absent, readable by anyone, truthful about dead processes."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from distill_core import runs
from distill_core.config import DistillConfig
from distill_core.errors import RunError


@pytest.fixture
def run():
    return runs.create_run("train", DistillConfig(), inputs={"cache": "c"}, name="mine")


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_round_trip(run):
    found = runs.open_run("mine")
    assert found.config() == DistillConfig()
    assert found.inputs() == {"cache": "c"}
    assert found.status().state == "queued"
    assert [listed.id for listed in runs.list_runs()] == ["mine"]
    assert runs.list_runs("capture") == []


def test_a_taken_name_is_refused(run):
    with pytest.raises(RunError, match="taken"):
        runs.create_run("train", DistillConfig(), name="mine")


def test_unknown_run_names_the_nearest(run):
    with pytest.raises(RunError, match="Did you mean 'mine'"):
        runs.open_run("mime")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 200])
def test_names_cannot_leave_the_folder(name):
    with pytest.raises(ValueError, match="cannot be a folder name"):
        runs.open_run(name)


def test_a_killed_process_is_shown_as_failed_with_its_last_lines(run, sleeper):
    run.update(state="running", pid=sleeper.pid, process_start_s=sleeper.create_time())
    run.log_path.write_text("step 1\nloss 3.0\rloss 2.5\nKilled\n")
    assert run.status().state == "running"
    os.kill(sleeper.pid, signal.SIGKILL)
    sleeper.wait()
    status = run.status()
    assert status.state == "failed"
    assert "Killed" in status.error
    assert "loss 2.5" in status.error
    assert "loss 3.0" not in status.error, "what a progress bar overwrote is not a last line"


def test_a_reused_pid_is_not_the_process(run, sleeper):
    run.update(state="running", pid=sleeper.pid, process_start_s=sleeper.create_time() - 100)
    assert run.status().state == "failed"


def test_a_run_nobody_starts_fails_after_the_grace_time(run):
    run.update(created_s=time.time() - runs.START_GRACE_S - 1)
    assert run.status().state == "failed"


def test_two_processes_cannot_claim_one_run(run, sleeper):
    run.update(pid=sleeper.pid, process_start_s=sleeper.create_time(), state="running")
    with pytest.raises(RunError, match=f"process {sleeper.pid}"):
        run.claim()


def test_damaged_status_is_named(run):
    (run.folder / "status.json").write_text("{")
    with pytest.raises(RunError, match="mine: status.json is not a status"):
        run.status()
    assert runs.list_runs() == []


def test_active_runs_are_not_deleted(run, sleeper):
    run.update(state="running", pid=sleeper.pid, process_start_s=sleeper.create_time())
    with pytest.raises(RunError, match="active"):
        runs.delete_run("mine")
    run.update(state="done")
    assert runs.delete_run("mine") > 0
    assert runs.list_runs() == []


def test_readers_never_see_half_a_status(run):
    """Another process rewrites the status as fast as it can; every read here parses."""
    code = (
        "import sys; from distill_core.runs import open_run\nrun = open_run('mine')\n"
        "for i in range(300): run.update(done=i, phase='x' * (i * 7 % 2000))"
    )
    writer = subprocess.Popen([sys.executable, "-c", code])
    reads = 0
    while writer.poll() is None:
        json.loads((run.folder / "status.json").read_text())
        reads += 1
    assert writer.returncode == 0
    assert reads > 10


def test_of_two_who_delete_one_run_at_once_the_second_is_told(run, monkeypatch):
    run.update(state="done")
    monkeypatch.setattr(runs.shutil, "rmtree", lambda _folder: None)  # the first has begun, and is not through
    assert runs.delete_run("mine") > 0
    monkeypatch.setattr(runs, "open_run", lambda _id: run)
    monkeypatch.setattr(runs.Run, "status", lambda _run: runs.Status(id="mine", kind="train", state="done", created_s=0))
    with pytest.raises(RunError, match="being deleted by somebody else"):
        runs.delete_run("mine")
