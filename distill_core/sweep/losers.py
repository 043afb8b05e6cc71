"""Which run of a sweep is not worth its remaining steps: Optuna's pruner over the held-out KL of each look.

The median rule (Optuna's MedianPruner; Golovin et al. 2017, Google Vizier, section 3.1.2): a run ends early when its best look so far is
worse than the median of the other runs' best looks up to that step. Nothing is kept beside the runs: the study is made anew from their
metrics.jsonl, so a resumed sweep decides as an undisturbed one would.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

from .. import metrics
from ..errors import ConfigError
from ..runs import Run

MIN_FINISHED = 3
"""Finished runs before the first decision: a median of fewer says little."""
WARM_UP_SHARE = 0.3
"""Of the steps, in which nothing is decided: learning rates still rise, and curves cross."""

Looks = Mapping[int, float]
"""Step -> held-out KL to the teacher, nats per token."""


def check_installed() -> None:
    """Raises ConfigError with the install line where Optuna is not there."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("--stop-losers needs Optuna, which is not installed. Install it: pip install 'distill-core[sweep]'")


def looks_of(run: Run) -> dict[int, float]:
    """The run's looks at the held-out text so far, without the one before training: it says nothing about a setting."""
    rows = [row for row in metrics.read(run.metrics_path) if row.get("heldout_kl") is not None and row["step"] > 0]
    return {int(row["step"]): float(row["heldout_kl"]) for row in rows}


def is_losing(looks: Looks, finished: list[dict[int, float]], *, max_steps: int) -> bool:
    """Whether a run with these looks should end, beside the looks of finished runs. False before there is enough to go by."""
    if not looks or len(finished) < MIN_FINISHED:
        return False
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize")
    for other in finished:
        study.add_trial(optuna.trial.create_trial(value=min(other.values()), intermediate_values=other, params={}, distributions={}))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=MIN_FINISHED, n_warmup_steps=int(WARM_UP_SHARE * max_steps))
    return pruner.prune(study, _unfinished(optuna, dict(looks)))


def _unfinished(optuna: Any, looks: dict[int, float]) -> Any:
    return optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=looks, params={}, distributions={})
