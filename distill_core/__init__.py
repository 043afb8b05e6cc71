"""Distil a large language model into a small one on the hardware you have.

The same steps as the app and the command line, for a notebook or a script:

    from distill_core import DistillConfig, submit_capture, submit_training, wait
    capture = submit_capture(DistillConfig())          # the teacher reads the text once, in a process of its own
    wait(capture)
    run = submit_training(DistillConfig(), capture.status().result["cache"])

Nothing is imported here that needs torch; the loss is `distill_core.losses.topk_kl`.
"""

from .cache import Cache, list_caches, open_cache
from .config import DistillConfig, hard_label_twin, read_config
from .errors import DistillError
from .jobs import submit_capture, submit_evaluation, submit_training, wait
from .runs import Run, list_runs, open_run

__all__ = [
    "Cache",
    "DistillConfig",
    "DistillError",
    "Run",
    "hard_label_twin",
    "list_caches",
    "list_runs",
    "open_cache",
    "open_run",
    "read_config",
    "submit_capture",
    "submit_evaluation",
    "submit_training",
    "wait",
]
