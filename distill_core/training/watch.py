"""What happens around the steps: metrics.jsonl, looks at the held-out text, the best weights, the end when it is asked for."""

import time
from collections.abc import Iterable
from typing import Any

import transformers
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from .. import metrics
from ..cache import Cache
from ..config import DistillConfig
from ..device import MemoryMeter
from ..group import Group, whole_weights
from ..progress import Progress
from ..runs import Run
from ..scoring import Scores, score
from ..units import GIB
from .checkpoints import full_disk_named
from .distill_trainer import DistillTrainer
from .model_folder import save_model, stored_best


class Watch(transformers.TrainerCallback):
    """Writes metrics.jsonl, looks at the held-out text, keeps the best weights in model/, and ends the run when asked to."""

    def __init__(self, run: Run, config: DistillConfig, cache: Cache, tokenizer: Any, progress: Progress, group: Group) -> None:
        self.run, self.config, self.cache, self.tokenizer, self.progress = run, config, cache, tokenizer, progress
        self.group = group
        self.trainer: DistillTrainer
        self.student: nn.Module
        self.was_stopped = False
        self.stopped_early_at: int | None = None
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
        """Write the step's row, and put its values into `logs`: the trackers of train.report_to come after this callback."""
        logs = kwargs["logs"]
        if "loss" not in logs:
            return  # a look at the held-out text, or the Trainer's closing summary
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
        self._write(row)
        logs.update({name: value for name, value in row.items() if value is not None and name != "step"})
        self.meter.reset_peak()
        self.step_started = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        train, step = self.config.train, state.global_step
        if self.group.any(self.run.stop_requested()):
            self.was_stopped = True
            control.should_training_stop = control.should_save = True
        is_planned = step % train.eval_steps == 0
        if is_planned or step == state.max_steps or self.was_stopped:
            self.look(step)
        if is_planned and not self.was_stopped and self.group.agreed(self._has_stalled()):
            self.stopped_early_at = step
            control.should_training_stop = True
            self.progress.say(f"step {step:,}: no better for {train.early_stopping_patience} looks at the held-out text, so it ends here")

    def look(self, step: int) -> None:
        """Score the held-out text; weights better than all before replace model/."""
        began = time.monotonic()
        train = self.config.train
        size = train.per_device_train_batch_size
        scores = score(self.student, self.trainer.head_ops, self.cache, batch_windows=size, group=self.group)
        row = heldout_row(scores)
        self._write({"step": step, "time_s": self.elapsed_s(), **row})
        self.trainer.log(dict(row))
        if step and step % train.eval_steps == 0:
            self.trainer.heldout_is(row[train.metric_for_best_model])
        if row[train.metric_for_best_model] < self.best.get(train.metric_for_best_model.removeprefix("heldout_"), float("inf")):
            self.best = {"step": step, "nll": scores.nll, "kl": scores.kl_to_teacher}
            weights = whole_weights(self.student)
            if self.group.is_first:
                with full_disk_named(self.run.checkpoints_folder, self.run.id):
                    save_model(self.student, self.tokenizer, self.run.model_folder, self.best, weights=weights)
        self.step_started += time.monotonic() - began

    def _write(self, row: metrics.Row) -> None:
        """A row of metrics.jsonl, by the first process for all."""
        if self.group.is_first:
            metrics.append(self.run.metrics_path, row)

    def _has_stalled(self) -> bool:
        """Whether train.early_stopping_patience looks in a row brought nothing; told from metrics.jsonl, so a resumed run knows it too."""
        train = self.config.train
        if train.early_stopping_patience is None:
            return False
        rows = [row for row in metrics.read(self.run.metrics_path) if "heldout_nll" in row and row["step"] % train.eval_steps == 0]
        values = [row[train.metric_for_best_model] for row in rows]
        return looks_without_gain(values, threshold=train.early_stopping_threshold) >= train.early_stopping_patience


def looks_without_gain(values: Iterable[float], *, threshold: float) -> int:
    """How many of the last values did not lie below the lowest one before them by more than the threshold.

    The rule of transformers' EarlyStoppingCallback: the lowest value moves even when it does not count as a gain.
    """
    lowest, count = float("inf"), 0
    for value in values:
        count = 0 if value < lowest - threshold or lowest == float("inf") else count + 1
        lowest = min(lowest, value)
    return count


def heldout_row(scores: Scores) -> dict[str, float]:
    return {
        "heldout_nll": scores.nll,
        "heldout_kl": scores.kl_to_teacher,
        "heldout_bits_per_byte": scores.bits_per_byte,
        "heldout_top1_agreement": scores.top1_agreement,
    }
