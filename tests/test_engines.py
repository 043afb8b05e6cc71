"""Engines: chosen by name, refused by name; life and death judged where a pid means something."""

import json
import os
import subprocess
import sys
import time

import pytest
from test_jobs import until

from distill_core import engines, jobs, runs
from distill_core.config import DistillConfig, with_overrides
from distill_core.engines import job, local, ray_jobs, slurm
from distill_core.errors import ConfigError, RunError


@pytest.fixture
def run():
    return runs.create_run("train", DistillConfig(), inputs={"cache": "c"}, name="mine")


def silent_for(run, seconds):
    (run.folder / "alive").touch()
    then = time.time() - seconds
    os.utime(run.folder / "alive", (then, then))


def test_local_is_the_default_and_a_near_miss_is_named(monkeypatch):
    assert engines.chosen() == "local"
    monkeypatch.setenv("DISTILL_ENGINE", "rey")
    with pytest.raises(ConfigError, match="Did you mean 'ray'"):
        engines.chosen()
    with pytest.raises(ConfigError, match="'rey', which is no engine"):
        jobs.submit_training(DistillConfig(), "none")
    assert runs.list_runs() == [], "nothing is queued at an engine that is not there"


@pytest.mark.parametrize(("name", "extra"), [("ray", "ray"), ("slurm", "slurm")])
def test_what_is_not_installed_comes_with_its_install_line(monkeypatch, name, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("DISTILL_ENGINE", name)
    with pytest.raises(ConfigError, match=rf"pip install 'distill-core\[{extra}\]'"):
        engines.chosen()


def test_a_pid_of_another_machine_is_not_looked_up_here(run):
    """This very process has that pid; its number means nothing there."""
    run.update(state="running", pid=os.getpid(), machine="elsewhere")
    silent_for(run, 1)
    assert run.status().state == "running"
    silent_for(run, runs.SILENCE_S + 5)
    assert run.status().state == "failed"
    run.update(machine=runs.this_machine(), process_start_s=None)
    assert run.status().state == "running"


@pytest.mark.parametrize(("answer", "state"), [(True, "running"), (None, "running"), (False, "failed")])
def test_a_silent_run_is_asked_for_at_its_engine(run, monkeypatch, answer, state):
    """None: the cluster does not answer, which is not a death."""
    job.write_job(run, engines.Job(engine="ray", id="mine-1", address="http://there"))
    run.update(state="running", pid=1, machine="elsewhere")
    silent_for(run, runs.SILENCE_S + 5)
    run.log_path.write_text("step 7\nBus error\n")
    monkeypatch.setattr(ray_jobs, "is_alive", lambda _: answer)
    monkeypatch.setattr(ray_jobs, "last_words", lambda _: "Ray says FAILED: node lost")
    status = run.status()
    assert status.state == state
    if answer is False:
        assert "node lost" in status.error
        assert "Bus error" in status.error


def test_a_run_of_another_machine_is_not_claimed_while_it_shows_life(run):
    run.update(state="running", pid=1, machine="elsewhere")
    silent_for(run, 1)
    with pytest.raises(RunError, match="process 1 is working on it"):
        run.claim()
    silent_for(run, runs.SILENCE_S + 5)
    run.claim()
    assert run.stored_status().machine == runs.this_machine()


def test_a_job_that_waits_for_a_machine_never_begins(run, monkeypatch):
    job.write_job(run, engines.Job(engine="ray", id="mine-1", address="http://there"))
    ended = []
    monkeypatch.setattr(ray_jobs, "is_alive", lambda _: True)
    monkeypatch.setattr(ray_jobs, "stop", ended.append)
    assert "ended at once" in jobs.stop(run)
    assert [ended_job.id for ended_job in ended] == ["mine-1"]
    assert run.stored_status().state == "stopped"


def test_a_job_that_does_not_listen_is_ended_at_the_second_asking(run, monkeypatch):
    job.write_job(run, engines.Job(engine="ray", id="mine-1", address="http://there"))
    run.update(state="running", pid=1, machine="elsewhere")
    silent_for(run, 1)
    ended = []
    monkeypatch.setattr(ray_jobs, "is_alive", lambda _: not ended)
    monkeypatch.setattr(ray_jobs, "stop", ended.append)
    assert "finish its step" in jobs.stop(run)
    assert "finish its step" in jobs.stop(run), "asked twice in one breath"
    then = time.time() - jobs.STOP_PATIENCE_S - 1
    os.utime(run.folder / "stop", (then, then))
    assert "ended at once" in jobs.stop(run)
    silent_for(run, runs.SILENCE_S + 5)
    status = run.status()
    assert (status.state, status.error) == ("stopped", None), "it was asked for: no failure"


def test_now_kills_a_process_here_and_only_here(run):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run.update(state="running", pid=sleeper.pid, machine="elsewhere")
    silent_for(run, 1)
    with pytest.raises(RunError, match="another machine"):
        jobs.stop(run, now=True)
    assert sleeper.poll() is None
    run.update(machine=runs.this_machine())
    jobs.stop(run, now=True)
    assert sleeper.wait(10) == -9
    assert run.status().state == "stopped"
    local.stop(sleeper.pid)  # gone already: no error
    jobs.requeue(run)
    assert run.status().state == "queued"


def test_what_a_job_gets_to_know(monkeypatch, distill_home):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("DISTILL_ROOM", "room.json")
    given = job.job_environment()
    assert given["DISTILL_HOME"] == str(distill_home)
    assert given["DISTILL_ROOM"] == "room.json"
    assert "HF_TOKEN" not in given


def test_a_run_with_a_job_waits_for_no_lock(run):
    job.write_job(run, engines.Job(engine="ray", id="mine-1", address="http://there"))
    with jobs.device_held(run, pytest.fail) as is_our_turn:
        assert is_our_turn
    assert not (run.folder.parent.parent / "locks").exists()


def test_in_a_cluster_a_judge_waits_for_what_it_judges(run):
    judge = runs.create_run("evaluate", DistillConfig(), inputs={"run": "mine"})
    job.write_job(judge, engines.Job(engine="ray", id="judge-1", address="http://there"))
    with pytest.raises(RunError, match="has not begun yet"), jobs.device_held(judge, print):
        pass
    assert judge.stored_status().state == "failed"
    run.update(state="running", pid=os.getpid(), machine=runs.this_machine())
    said = []

    def say(words):
        said.append(words)
        run.update(state="done")

    with jobs.device_held(judge, say) as is_our_turn:
        assert is_our_turn
    assert said == ["waiting for mine to end"]


@pytest.mark.parametrize(
    ("text", "words"), [("{gpu", "not JSON"), ("[1]", "holds a list"), ('{"cluster": "local", "partitoin": "x"}', "partitoin")]
)
def test_slurm_parameters_that_cannot_be(run, monkeypatch, text, words):
    pytest.importorskip("submitit")
    monkeypatch.setenv("DISTILL_SLURM", text)
    with pytest.raises((ConfigError, RunError), match=words):
        slurm.start(run)


def test_without_slurm_it_is_said(run, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("DISTILL_ENGINE", "slurm")
    with pytest.raises(RunError, match="no job could be given to Slurm"):
        jobs.start(run)
    assert "sbatch" in run.status().error


def test_submitits_rehearsal_trains_a_run(small_cache, small_config, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("DISTILL_ENGINE", "slurm")
    monkeypatch.setenv("DISTILL_SLURM", json.dumps({"cluster": "local", "timeout_min": 5}))
    run = jobs.submit_training(with_overrides(small_config, {"train.max_steps": 2, "train.eval_steps": 2}), "small")
    assert run.job().engine == run.stored_status().device == "slurm"
    until(lambda: not run.status().is_active)
    assert run.status().state == "done", run.status().error
    assert "training for 2 steps" in run.log_path.read_text()
