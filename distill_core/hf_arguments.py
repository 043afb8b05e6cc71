"""Every field of transformers.TrainingArguments under its own name: read from the installed source, so that nothing is imported.

`train` in a config takes the few fields that TrainConfig documents, and any other of these as well (`--train.adam_beta2 0.95`). What
would contradict this package is refused by name, with what to use instead.
"""

import ast
import difflib
import importlib.util
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import ConfigError

LOOKS = "the held-out text is looked at by this package; set train.eval_steps"
BEST = "model/ always holds the best weights; set train.metric_for_best_model"
EVERY_STEP = "metrics.jsonl holds every step"
UPLOAD = "export the student and upload the folder yourself"
READER = "a thread of the training process reads the cache ahead; it must not be forked"
EXACT = "a resumed run always goes on with the data and the state of the killed one"
REFUSED = {
    "output_dir": "checkpoints live in the run's folder; set train.name, or $DISTILL_HOME",
    "num_train_epochs": "the length is train.max_steps; one epoch is text.num_windows / (windows in a step)",
    "average_tokens_across_devices": "a step's loss is always divided once, by the tokens of all its windows on all devices",
    "label_smoothing_factor": "the loss is that of the section 'loss'; the teacher's distribution takes the place of smoothed labels",
    "gradient_checkpointing": "its name is activation_checkpointing now",
    "gradient_checkpointing_kwargs": "its name is activation_checkpointing_kwargs now",
    "use_cache": "a student in training keeps no key-value cache: packed documents would see each other",
    **dict.fromkeys(("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "disable_tqdm"), EVERY_STEP),
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "eval_strategy", "eval_delay", "eval_on_start"), LOOKS),
    **dict.fromkeys(("per_device_eval_batch_size", "prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"), LOOKS),
    **dict.fromkeys(("eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics", "bf16_full_eval", "fp16_full_eval"), LOOKS),
    **dict.fromkeys(("load_best_model_at_end", "greater_is_better"), BEST),
    "save_only_model": "a checkpoint is there to go on from; the weights alone are in model/",
    "save_strategy": "checkpoints are made every train.save_steps, and when the run is stopped",
    "enable_jit_checkpoint": "SIGTERM already means: finish the step, save, end",
    **dict.fromkeys(("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"), UPLOAD),
    "hub_revision": UPLOAD,
    **dict.fromkeys(("ignore_data_skip", "restore_callback_states_from_checkpoint"), EXACT),
    "resume_from_checkpoint": "go on with a run: python -m distill_core runs resume RUN",
    "data_seed": "train.seed decides the order of the windows too",
    "use_cpu": "set device to cpu",
    "parallelism_config": "it is an object, not a value; give accelerate launch its options",
    "local_rank": "the launcher sets it",
    **dict.fromkeys(("dataloader_drop_last", "dataloader_num_workers", "dataloader_persistent_workers"), READER),
    **dict.fromkeys(("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"), READER),
    "remove_unused_columns": "the teacher's entries are columns that the model does not take, and the loss needs them",
    "label_names": "the loss needs the cache's columns under their own names",
    "length_column_name": "the cache knows the lengths of its windows",
}
"""Name to what is to be done instead."""

REPORTERS = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "tensorboard", "mlflow": "mlflow", "comet_ml": "comet_ml"}
"""What train.report_to takes, and the package that must be installed for it."""


@lru_cache(maxsize=1)
def known_arguments() -> dict[str, frozenset[str]]:
    """Name of every field, and the plain types its value may have: 'int', 'float', 'bool', 'str', 'dict', 'list', 'None'."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("transformers is not installed, so its training arguments are not known. Install this package with pip.")
    source = Path(found.submodule_search_locations[0], "training_args.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments")
    fields = [node for node in next(classes).body if isinstance(node, ast.AnnAssign)]
    return {node.target.id: _plain_types(node.annotation) for node in fields if isinstance(node.target, ast.Name)}


def _plain_types(annotation: ast.expr) -> frozenset[str]:
    """The names in 'float | dict[str, Any] | None' that stand outside of brackets."""
    if isinstance(annotation, ast.BinOp):
        return _plain_types(annotation.left) | _plain_types(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return _plain_types(annotation.value)
    return frozenset({annotation.id if isinstance(annotation, ast.Name) else "None"})


def checked_arguments(values: dict[str, Any], *, ours: Iterable[str]) -> dict[str, Any]:
    """The values as what they are ('0.95' is a number). `ours`: the fields that TrainConfig has itself.

    Raises ConfigError for names that transformers does not know (with the nearest), that are refused, or values of another type.
    """
    known = known_arguments()
    for name in values:
        if name in REFUSED:
            raise ConfigError(f"train.{name} cannot be set: {REFUSED[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, [*ours, *known.keys() - REFUSED.keys()], n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " It is neither in this package nor in transformers.TrainingArguments"
            raise ConfigError(f"no option 'train.{name}'.{hint}")
    return {name: _typed(name, value, known[name]) for name, value in values.items()}


def _typed(name: str, value: Any, allowed: frozenset[str]) -> Any:
    if isinstance(value, str) and allowed != {"str"}:
        try:
            read = json.loads(value.lower() if value in ("True", "False", "None") else value)
        except json.JSONDecodeError:
            read = value
        value = read if _kind(read) & allowed else value
    if not _kind(value) & allowed:
        raise ConfigError(f"train.{name} takes {' or '.join(sorted(allowed))} in transformers.TrainingArguments, got {value!r}")
    return value


def _kind(value: Any) -> set[str]:
    if value is None:
        return {"None"}
    return {"int", "float"} if type(value) is int else {type(value).__name__}


def check_reporters_installed(report_to: Iterable[str]) -> None:
    """Raise ConfigError for a tracker whose package is not there."""
    for name in report_to:
        if importlib.util.find_spec(REPORTERS[name]) is None:
            there = [other for other, package in REPORTERS.items() if importlib.util.find_spec(package) is not None]
            raise ConfigError(
                f"train.report_to '{name}' is not installed. Install it (pip install {REPORTERS[name]}), "
                f"or choose from what is here: {', '.join(there) or 'none'}. The run's own metrics.jsonl is written either way."
            )
