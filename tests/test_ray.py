"""DISTILL_ENGINE=ray against a real cluster of one machine: submitted, followed, stopped, killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_jobs import until

from distill_core import jobs
from distill_core.cli import run_command_line
from distill_core.config import with_overrides
from distill_core.engines import ray_jobs
from distill_core.errors import ConfigError, RunError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs signals")]


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of the dashboard of a cluster that stays in the foreground of its own process group, which is killed afterwards."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("r")
    gcs, dashboard, client, agent = free_ports(4)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    command += [f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}", "--dashboard-host=127.0.0.1"]
    command += ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir=/tmp/{folder.name}"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    with open(folder / "ray.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"

    def answers():
        assert process.poll() is None, (folder / "ray.log").read_text()
        try:
            return ray_jobs._client(address) is not None
        except RunError:
            return False

    until(answers)
    yield address
    process.send_signal(signal.SIGTERM)  # ray stops what it started
    process.wait(60)


@pytest.fixture
def engine(cluster, monkeypatch):
    monkeypatch.setenv("DISTILL_ENGINE", "ray")
    monkeypatch.setenv("DISTILL_RAY_ADDRESS", cluster)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    return cluster


def submitted(small_config, **values):
    return jobs.submit_training(with_overrides(small_config, {name.replace("__", "."): value for name, value in values.items()}), "small")


def test_a_training_through_the_cluster(engine, small_cache, small_config, capsys):
    run = submitted(small_config)
    assert run.stored_status().device == "ray"
    jobs.wait(run, timeout_s=240)
    status = run.status()
    assert status.state == "done", status.error
    assert (run.model_folder / "model.safetensors").exists()
    assert "training for 8 steps" in run.log_path.read_text(), "the job's output is in the run's own log"
    assert run_command_line(["runs", "show", run.id]) == 0
    assert f"of ray, {engine}" in capsys.readouterr().out


def test_stopped_and_resumed_in_the_cluster_and_a_second_job_waits(engine, small_cache, small_config):
    first = submitted(small_config, train__max_steps=100_000, train__eval_steps=50_000)
    until(lambda: first.status().done > 3)
    second = submitted(small_config)  # one CPU: it waits for a machine
    until(lambda: second.status().state == "queued" and ray_jobs.is_alive(second.job()))
    assert "ended at once" in jobs.stop(second)
    assert second.status().state == "stopped"
    assert "finish its step" in jobs.stop(first)
    until(lambda: first.status().state == "stopped")
    assert (first.model_folder / "model.safetensors").exists()
    stopped_at = first.stored_status().done
    jobs.resume(first)
    until(lambda: first.status().done > stopped_at)
    jobs.stop(first, now=True)
    until(lambda: first.status().state == "stopped")


def test_a_killed_worker_is_failed_for_who_looks_from_another_machine(engine, small_cache, small_config, monkeypatch):
    run = submitted(small_config, train__max_steps=100_000, train__eval_steps=50_000)
    until(lambda: run.status().done > 3)
    pid = run.status().pid
    run.update(machine="elsewhere", pid=1)  # as seen from a machine on which pid 1 is another, living process
    assert run.status().state == "running"
    monkeypatch.setattr("distill_core.runs.SILENCE_S", 1.0)
    until(lambda: run.status().state == "running")  # silent for a second between two heartbeats: the cluster says that it lives
    os.kill(pid, signal.SIGKILL)
    until(lambda: run.status().state == "failed")
    error = run.status().error
    assert "Ray says FAILED" in error
    assert "loss: using impl='chunked'" in error, "with the last lines of its log"


def test_a_job_that_cannot_begin_has_failed_with_the_clusters_words(engine, small_cache, small_config, monkeypatch):
    monkeypatch.setenv("DISTILL_PYTHON", "/nowhere/python")
    run = submitted(small_config)
    until(lambda: run.status().state == "failed")
    assert re.search("nowhere/python", run.status().error)


def test_devices(engine):
    assert ray_jobs.resources("auto", engine) == {"entrypoint_num_cpus": 1, "entrypoint_num_gpus": 0}
    assert ray_jobs.resources("cuda", engine)["entrypoint_num_gpus"] == 1
    with pytest.raises(ConfigError, match="Ray chooses the GPU"):
        ray_jobs.resources("cuda:1", engine)


def test_nobody_there(small_cache, small_config, monkeypatch):
    pytest.importorskip("ray")
    (port,) = free_ports(1)
    monkeypatch.setenv("DISTILL_ENGINE", "ray")
    monkeypatch.setenv("DISTILL_RAY_ADDRESS", f"http://127.0.0.1:{port}")
    with pytest.raises(RunError, match="no Ray cluster answers"):
        submitted(small_config, train__name="mine")
    status = json.loads((Path(os.environ["DISTILL_HOME"]) / "runs" / "mine" / "status.json").read_text())
    assert status["state"] == "failed"
