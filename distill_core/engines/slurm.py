"""Runs as Slurm jobs, through submitit. DISTILL_SLURM holds submitit's own parameters as JSON: partition, time, account.

    DISTILL_SLURM='{"slurm_partition": "gpu", "timeout_min": 600}'

Every node sees the same DISTILL_HOME. {"cluster": "local"} runs the jobs as processes of this machine: submitit's rehearsal.
"""

import importlib.util
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import psutil

from ..errors import ConfigError, RunError
from .job import Job, job_environment, logged_command, write_job

if TYPE_CHECKING:
    from ..runs import Run

DAY_MIN = 24 * 60


def check() -> None:
    if importlib.util.find_spec("submitit") is None:
        raise ConfigError("DISTILL_ENGINE is 'slurm', which needs submitit. Install it: pip install 'distill-core[slurm]'")


def start(run: "Run") -> None:
    """Submit the run. Raises ConfigError for parameters that submitit does not know, RunError where there is no Slurm."""
    import submitit
    from submitit.helpers import CommandFunction

    given = _parameters()
    cluster = given.pop("cluster", "slurm")
    folder = run.folder / "slurm"
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**{"name": f"distill-{run.id}", "timeout_min": DAY_MIN, **resources(run.config().device), **given})
    except (RuntimeError, ValueError, NameError) as error:
        raise RunError(f"no job could be given to Slurm: {error}. Check DISTILL_SLURM, and that sbatch is on this machine.") from error
    submitted = executor.submit(CommandFunction(["sh", "-c", logged_command(run)], verbose=False, env=job_environment()))
    if cluster == "local":
        threading.Thread(target=submitted.wait, daemon=True).start()  # reaps the child
    write_job(run, Job(engine="slurm", id=submitted.job_id, address=f"{cluster}:{folder}"))


def _parameters() -> dict[str, Any]:
    text = os.environ.get("DISTILL_SLURM") or "{}"
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"DISTILL_SLURM is not JSON ({error}): {text}. Example: " + '{"slurm_partition": "gpu"}') from None
    if not isinstance(given, dict):
        raise ConfigError(f"DISTILL_SLURM holds a {type(given).__name__}, not an object. Example: " + '{"slurm_partition": "gpu"}')
    return given


def resources(device: str) -> dict[str, int]:
    """One GPU unless the device is the CPU: a Slurm cluster is asked for what is meant, 'auto' is not looked up."""
    return {"gpus_per_node": 0 if device == "cpu" else 1}


def _submitted(job: Job) -> tuple[str, Any]:
    import submitit

    cluster, _, folder = job.address.partition(":")
    return cluster, submitit.SlurmJob(folder, job.id) if cluster == "slurm" else submitit.LocalJob(folder, job.id)


def is_alive(job: Job) -> bool | None:
    cluster, submitted = _submitted(job)
    if cluster == "local":
        return psutil.pid_exists(int(job.id))
    state = submitted.state
    return None if state == "UNKNOWN" else state in ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "CONFIGURING", "COMPLETING", "READY")


def last_words(job: Job) -> str:
    return f"Slurm says {_submitted(job)[1].state} of job {job.id}"


def stop(job: Job) -> None:
    cluster, submitted = _submitted(job)
    if cluster == "local":
        for process in [*(parent := psutil.Process(int(job.id))).children(recursive=True), parent]:
            process.kill()
    else:
        submitted.cancel(check=False)
