"""Our config as transformers' TrainingArguments."""

from pathlib import Path

import torch
from transformers import TrainingArguments

from ..config import DistillConfig


def training_arguments(config: DistillConfig, folder: Path, device: torch.device) -> TrainingArguments:
    """Hugging Face's own names, unchanged; what is not in our config has its default there."""
    train = config.train
    same = train.model_dump(exclude={"name", "eval_steps", "per_device_train_batch_size"})
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=train.per_device_train_batch_size,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",  # Visits has shuffled already, epoch by epoch, with few row groups read at a time
        dataloader_num_workers=0,
        dataloader_pin_memory=device.type == "cuda",
        use_cpu=device.type == "cpu",
        data_seed=train.seed,
        **same,
    )
