"""The queue before a device: who is ahead of a run, and how long that will take, from what runs say and what earlier ones took."""

import statistics
import time
from collections.abc import Callable, Iterable

from .config import DistillConfig
from .runs import Kind, Run, Status, list_runs
from .units import show_time

REMEMBERED = 10
"""Earlier runs of a kind that a guess looks at."""


def runs_ahead(run: Run) -> list[Run]:
    """Active runs on the same device that were created earlier, the next one to end last."""
    own = run.stored_status()
    ahead = []
    for other in list_runs():
        stored = other.stored_status()
        is_earlier = (stored.created_s, stored.id) < (own.created_s, own.id)
        # whether its process lives is asked last: it costs ten times what reading the file does
        if is_earlier and stored.device == own.device and stored.is_active and other.status().is_active:
            ahead.append(other)
    return ahead


def expected_wait_s(ahead: Iterable[Run]) -> float | None:
    """Seconds until the runs ahead have ended; None where one of them gives nothing to go by."""
    total = 0.0
    for run in ahead:
        left = _left_s(run)
        if left is None:
            return None
        total += left
    return total


def waiting_words(device: str, num_ahead: int, wait_s: float | None) -> str:
    """'waiting for cpu: 2 ahead, about 4 min'; coarse, so that it changes now and then and not every moment."""
    if not num_ahead:
        return f"waiting for {device}"
    about = f", about {show_time(coarse(wait_s))}" if wait_s is not None else ""
    return f"waiting for {device}: {num_ahead} ahead{about}"


def coarse(seconds: float) -> float:
    """Rounded up to 10 s below a minute, to a minute below an hour, to 5 minutes above."""
    step = 10 if seconds <= 60 else 60 if seconds <= 3600 else 300
    return max(1, -(-seconds // step)) * step


def _left_s(run: Run) -> float | None:
    status = run.stored_status()
    if status.state == "running" and status.time_left_s is not None:
        return status.time_left_s
    usual = usual_s(status.kind, run.config())
    if usual is None or status.started_s is None or status.state != "running":
        return usual
    return max(0.0, usual - (time.time() - status.started_s))


def usual_s(kind: Kind, config: DistillConfig) -> float | None:
    """Seconds that such a run takes: the median of the last ones of its kind here, by the tokens they had to go through; None: none yet."""
    measures: dict[Kind, Callable[[DistillConfig], int]] = {"capture": _tokens_read, "train": _tokens_learned, "write": _tokens_written}
    measure = measures.get(kind, lambda _: 1)
    done = [(run, status) for run in list_runs(kind) if (status := run.stored_status()).state == "done"][:REMEMBERED]
    rates = [took / measure(run.config()) for run, status in done if (took := _took_s(status)) is not None]
    return statistics.median(rates) * measure(config) if rates else None


def _took_s(status: Status) -> float | None:
    return status.ended_s - status.started_s if status.ended_s and status.started_s else None


def _tokens_read(config: DistillConfig) -> int:
    return (config.text.num_windows + config.text.num_heldout_windows) * config.text.window_tokens


def _tokens_written(config: DistillConfig) -> int:
    return config.write.num_texts * config.write.max_new_tokens


def _tokens_learned(config: DistillConfig) -> int:
    train = config.train
    windows = train.max_steps * train.per_device_train_batch_size * train.gradient_accumulation_steps
    return windows * config.text.window_tokens
