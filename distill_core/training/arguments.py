"""Our config as transformers' TrainingArguments."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..config import DistillConfig
from ..errors import ConfigError
from ..hf_arguments import check_reporters_installed
from ..train_config import FOLLOWS_LOOKS

OURS_ALONE = {
    "name", "eval_steps", "metric_for_best_model", "early_stopping_patience", "early_stopping_threshold", "save_total_gib",
    "auto_find_batch_size", "train_sampling_strategy", "report_to", "arguments",
}  # fmt: skip
"""Fields that transformers has not, or that this package does itself."""


def training_arguments(config: DistillConfig, folder: Path, device: torch.device) -> TrainingArguments:
    """Hugging Face's own names, unchanged; what is not in our config has its default there. `folder`: for checkpoints, in the run's.

    Raises ConfigError where transformers refuses a value, or the device cannot do what is asked.
    """
    train = config.train
    check_reporters_installed(train.report_to)
    if train.fp16 and device.type != "cuda":
        raise ConfigError(f"train.fp16 needs a CUDA GPU, which scales its loss; the device is {device}. Use train.bf16, or neither.")
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "report_to": list(train.report_to) or "none",
        "run_name": folder.parent.name,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",  # Visits has shuffled already, epoch by epoch, with few row groups read at a time
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device.type == "cuda",
        "use_cpu": device.type == "cpu",
        "ddp_find_unused_parameters": False,  # the head's weight is used after forward, by the loss: it would be taken for unused
        "data_seed": train.seed,
        **train.model_dump(exclude=OURS_ALONE),
        **train.arguments,
    }
    if train.lr_scheduler_type in FOLLOWS_LOOKS:
        values["eval_strategy"] = "steps"  # transformers wants its own evaluations for these; ours feed them (DistillTrainer.heldout_is)
    try:
        made = TrainingArguments(**values)
    except (ValueError, TypeError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(f"transformers refuses these training arguments: {first}. See: python -m distill_core train --help") from error
    made.eval_strategy, made.do_eval = IntervalStrategy.NO, False
    _keep_to(device, made)
    return made


def _keep_to(device: torch.device, arguments: TrainingArguments) -> None:
    """transformers takes cuda:0, and in one process every other GPU too (DataParallel, which the loss does not serve): it is told ours."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        arguments.__dict__["_setup_devices"] = device  # where its cached property keeps it
        arguments._n_gpu = 1
