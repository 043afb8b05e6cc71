"""Runs as Ray Jobs: a queue over the machines of a cluster. DISTILL_RAY_ADDRESS is its dashboard, by default this machine's.

Every machine sees the same DISTILL_HOME and has this package at the same place (or DISTILL_PYTHON names its Python). Ray gives a job the
CPUs or the GPU that it asks for and queues what does not fit; DISTILL_RAY_CPUS is how many a job gets, 1 by default.
"""

import importlib.util
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, RunError
from .job import Job, job_environment, last_lines, logged_command, write_job

if TYPE_CHECKING:
    from ..runs import Run

LOCAL_DASHBOARD = "http://127.0.0.1:8265"
ASK_EVERY_S = 2.0
"""Screens look at every run twice a second; the cluster hears one question about a job in this time."""
ARRIVAL_S = 60.0
"""A job is written down before it is submitted; so long may the cluster not know it."""

_answers: dict[str, tuple[float, Any]] = {}


def check() -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("DISTILL_ENGINE is 'ray', which is not installed here. Install it: pip install 'distill-core[ray]'")


def start(run: "Run") -> None:
    """Submit the run. Raises ConfigError for a device that a cluster cannot give, RunError when it does not answer."""
    address = os.environ.get("DISTILL_RAY_ADDRESS") or LOCAL_DASHBOARD
    wanted = resources(run.config().device, address)
    client = _client(address)
    job = Job(engine="ray", id=f"{run.id}-{secrets.token_hex(3)}", address=address)
    write_job(run, job)
    command, environment = logged_command(run), {"env_vars": job_environment()}
    try:
        client.submit_job(entrypoint=command, submission_id=job.id, runtime_env=environment, metadata={"run": run.id}, **wanted)
    except RuntimeError as error:
        raise RunError(f"Ray at {address} refuses the job of run {run.id}: {last_lines(str(error))}") from error


def resources(device: str, address: str) -> dict[str, float]:
    """What a job asks the cluster for. 'auto' is a GPU where the cluster has one. Raises ConfigError for a numbered GPU."""
    given = os.environ.get("DISTILL_RAY_CPUS") or "1"
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"DISTILL_RAY_CPUS is '{given}'; it is the number of CPUs for each job, 1 or more.")
    if device.startswith("cuda:"):
        raise ConfigError(f"device '{device}' cannot be asked of a cluster: Ray chooses the GPU. Use --device cuda.")
    on_gpu = device == "cuda" or (device == "auto" and _has_gpu(address))
    return {"entrypoint_num_cpus": int(given), "entrypoint_num_gpus": 1 if on_gpu else 0}


def _has_gpu(address: str) -> bool:
    from ray.util.state import list_nodes

    _client(address)  # says what is wrong if nobody answers
    return any(node.resources_total.get("GPU", 0) >= 1 for node in list_nodes(address=address) if node.state == "ALIVE")


def _client(address: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        raise RunError(
            f"no Ray cluster answers at {address}: {last_lines(str(error), 1)} Start one (ray start --head), or set DISTILL_RAY_ADDRESS "
            "to the dashboard of yours."
        ) from error


def _info(job: Job) -> Any:
    """What the cluster says of the job: JobDetails; 'unknown' when it does not know it; None when it does not answer."""
    asked_s, answer = _answers.get(job.id, (-ASK_EVERY_S, None))
    if time.monotonic() - asked_s < ASK_EVERY_S:
        return answer
    try:
        answer = _client(job.address).get_job_info(job.id)
    except RunError:
        answer = None
    except RuntimeError as error:
        answer = "unknown" if "404" in str(error) else None
    _answers[job.id] = (time.monotonic(), answer)
    return answer


def is_alive(job: Job) -> bool | None:
    info = _info(job)
    if info == "unknown":  # on its way to the cluster, or of a cluster that was begun anew
        return None if time.time() - job.submitted_s < ARRIVAL_S else False
    return None if info is None else not info.status.is_terminal()


def last_words(job: Job) -> str:
    info = _info(job)
    if info is None or info == "unknown":
        return f"Ray at {job.address} knows nothing of its job {job.id}"
    return f"Ray says {info.status.value}: {last_lines(info.message or '')}"


def stop(job: Job) -> None:
    """SIGTERM, and SIGKILL three seconds later (RAY_JOB_STOP_WAIT_TIME_S); a waiting job never begins."""
    _client(job.address).stop_job(job.id)
    _answers.pop(job.id, None)
