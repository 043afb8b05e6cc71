"""What happens around the steps: metrics.jsonl, looks at the held-out text, the best weights, the end when it is asked for."""

import time
from typing import Any

import transformers
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from .. import metrics
from ..cache import Cache
from ..config import DistillConfig
from ..device import MemoryMeter
from ..progress import Progress
from ..runs import Run
from ..scoring import Scores, score
from ..units import GIB
from .distill_trainer import DistillTrainer
from .model_folder import save_model, stored_best


class Watch(transformers.TrainerCallback):
    """Writes metrics.jsonl, looks at the held-out text, keeps the best weights in model/, and ends the run when asked to."""

    def __init__(self, run: Run, config: DistillConfig, cache: Cache, tokenizer: Any, progress: Progress) -> None:
        self.run, self.config, self.cache, self.tokenizer, self.progress = run, config, cache, tokenizer, progress
        self.trainer: DistillTrainer
        self.student: nn.Module
        self.was_stopped = False
        self.best = stored_best(run.model_folder)

    def begin(self, trainer: DistillTrainer, *, resumed_at: int) -> None:
        assert isinstance(trainer.model, nn.Module)
        self.trainer, self.student = trainer, trainer.model
        self.meter = MemoryMeter(trainer.args.device)
        rows = metrics.read(self.run.metrics_path)
        self.spent_s = max((row["time_s"] for row in rows), default=0.0)
        self.started = self.step_started = time.monotonic()
        self.progress.phase(f"training for {self.config.train.max_steps:,} steps" + (f", from step {resumed_at:,}" if resumed_at else ""))
        self.progress.at(resumed_at, self.config.train.max_steps, "steps")

    def elapsed_s(self) -> float:
        return self.spent_s + time.monotonic() - self.started

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" not in logs:
            return  # the Trainer's closing summary
        means = self.trainer.take_means()
        now = time.monotonic()
        left = self.progress.at(state.global_step, state.max_steps, "steps")
        row = {
            "step": state.global_step,
            "time_s": self.elapsed_s(),
            **{name: value for name, value in means.items() if name != "tokens"},
            "grad_norm": float(logs.get("grad_norm", 0.0)),
            "learning_rate": logs["learning_rate"],
            "tokens_per_s": means["tokens"] / (now - self.step_started),
            "memory_gib": self.meter.now_bytes() / GIB,
            "peak_memory_gib": self.meter.peak_bytes() / GIB,
            "time_left_s": left,
        }
        metrics.append(self.run.metrics_path, row)
        self.meter.reset_peak()
        self.step_started = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.run.stop_requested():
            self.was_stopped = True
            control.should_training_stop = control.should_save = True
        if state.global_step % self.config.train.eval_steps == 0 or state.global_step == state.max_steps or self.was_stopped:
            self.look(state.global_step)

    def look(self, step: int) -> None:
        """Score the held-out text; weights better than all before replace model/."""
        began = time.monotonic()
        scores = score(self.student, self.trainer.head_ops, self.cache, batch_windows=self.config.train.per_device_train_batch_size)
        metrics.append(self.run.metrics_path, {"step": step, "time_s": self.elapsed_s(), **heldout_row(scores)})
        if scores.nll < self.best["nll"]:
            self.best = {"step": step, "nll": scores.nll}
            save_model(self.student, self.tokenizer, self.run.model_folder, self.best)
        self.step_started += time.monotonic() - began


def heldout_row(scores: Scores) -> metrics.Row:
    return {
        "heldout_nll": scores.nll,
        "heldout_kl": scores.kl_to_teacher,
        "heldout_bits_per_byte": scores.bits_per_byte,
        "heldout_top1_agreement": scores.top1_agreement,
    }
