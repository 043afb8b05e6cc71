"""Training: the student learns from the cache, and the teacher is nowhere in memory.

1 cache opened and verified   2 student built and its head probed   3 transformers.Trainer with the fused loss
4 looks at the held-out text; the best weights so far are always in model/
"""
# B: windows in a micro-batch   L: tokens in a window   P = L - 1: positions   N = B x P: rows of the loss   D: hidden size

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from . import generation, metrics, models
from .batches import Collate, Visits, model_inputs
from .cache import Cache, open_cache
from .config import DistillConfig, LossConfig
from .device import MemoryMeter, pick_device
from .errors import ModelError
from .heads import HeadOps, check_documents_kept_apart, head_inputs, probe_head, read_head
from .losses import IGNORE_INDEX, loss_floor, topk_kl
from .paths import publish
from .progress import Progress, Stopped
from .runs import Run
from .scoring import Scores, score
from .students import build_student
from .units import GIB, show_count

SUMS = ("loss", "kl", "ce", "floor", "gold", "agreed", "tokens")


class DistillTrainer(transformers.Trainer):
    """transformers.Trainer whose loss asks the model for what enters its head, never for logits."""

    loss_is_scaled_for_ga = True  # the loss is divided once, by the valid tokens of the whole step

    def __init__(self, *, cache: Cache, loss: LossConfig, ops: HeadOps, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.cache, self.distill_loss, self.head_ops = cache, loss, ops
        self.step_sums: list[torch.Tensor] = []

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        """Valid tokens of the whole optimizer step: what its loss is divided by."""
        counts = [(batch["labels"] != IGNORE_INDEX).sum() for batch in batch_samples]
        return torch.stack(counts).sum().clamp(min=1).to(device) if counts else torch.ones((), device=device)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:  # noqa: FBT001, FBT002 - transformers' signature
        """Loss of one micro-batch, divided by the valid tokens of its step. Raises NotImplementedError if asked for logits."""
        if return_outputs:
            raise NotImplementedError("the fused loss makes no logits to return; judge a model with: python -m distill_core evaluate")
        loss = self.distill_loss
        hidden_BLD = head_inputs(model, **model_inputs(inputs, packing=self.cache.packing))
        head = read_head(model, self.head_ops)
        teacher = {
            name: inputs[name].flatten(0, 1) for name in ("teacher_ids", "teacher_logprobs", "teacher_tail", "labels", "gold_logprob")
        }
        shared: dict[str, Any] = {
            "temperature": loss.temperature,
            "kl_weight": loss.kl_weight,
            "ce_weight": loss.ce_weight,
            "divergence": loss.divergence,
            "jsd_weight": loss.jsd_weight,
            "tail": loss.tail,
            "valid_rows": inputs["valid_rows"],
        }
        parts = topk_kl(
            hidden_BLD[:, :-1].flatten(0, 1),
            head.weight_VD,
            teacher["teacher_ids"],
            teacher["teacher_logprobs"],
            teacher_tail_N=teacher["teacher_tail"],
            labels_N=teacher["labels"],
            bias_V=head.bias_V,
            logit_scale=head.logit_scale,
            logit_softcap=head.logit_softcap,
            vocab_size=self.cache.plan.vocab_size,
            impl=loss.impl,
            chunk_tokens=loss.chunk_tokens,
            z_loss_weight=loss.z_loss_weight,
            divisor=num_items_in_batch,
            **shared,
        )
        floor = loss_floor(
            teacher["teacher_logprobs"],
            teacher_tail_N=teacher["teacher_tail"],
            labels_N=teacher["labels"],
            teacher_ids_NK=teacher["teacher_ids"],
            **shared,
        )
        gold = torch.where(teacher["labels"] != IGNORE_INDEX, teacher["gold_logprob"], 0.0).sum()
        sums = (parts.loss.detach() * num_items_in_batch, parts.kl, parts.ce, floor, gold, parts.agreement, parts.num_valid)
        self.step_sums.append(torch.stack([value.double() for value in sums]))
        return parts.loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """To the callbacks only: metrics.jsonl is the history, and checkpoints do not grow with it."""
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def take_means(self) -> dict[str, float]:
        """Per-token means since they were last taken; the only place where the host waits for the device."""
        sums = dict(zip(SUMS, torch.stack(self.step_sums).sum(0).tolist(), strict=True))
        self.step_sums.clear()
        tokens = max(sums["tokens"], 1.0)
        means = {name: sums[name] / tokens for name in ("loss", "kl", "ce", "floor")}
        return means | {"teacher_nll": -sums["gold"] / tokens, "top1_agreement": sums["agreed"] / tokens, "tokens": sums["tokens"]}


class Watch(transformers.TrainerCallback):
    """Writes metrics.jsonl, looks at the held-out text, keeps the best weights in model/, and ends the run when asked to."""

    def __init__(self, run: Run, config: DistillConfig, cache: Cache, tokenizer: Any, progress: Progress) -> None:
        self.run, self.config, self.cache, self.tokenizer, self.progress = run, config, cache, tokenizer, progress
        self.trainer: DistillTrainer
        self.student: nn.Module
        self.was_stopped = False
        self.best = self._stored_best()

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

    def _stored_best(self) -> dict[str, float]:
        path = self.run.model_folder / "best.json"
        return json.loads(path.read_text()) if path.exists() else {"step": -1, "nll": float("inf")}


def heldout_row(scores: Scores) -> metrics.Row:
    return {
        "heldout_nll": scores.nll,
        "heldout_kl": scores.kl_to_teacher,
        "heldout_bits_per_byte": scores.bits_per_byte,
        "heldout_top1_agreement": scores.top1_agreement,
    }


def run_training(run: Run, progress: Progress) -> None:
    """Train the run's student, from its last checkpoint if it has one. Raises CacheError, ModelError, VocabularyError; Stopped."""
    config = run.config()
    progress.phase("checking the cache")
    cache = open_cache(run.inputs()["cache"])
    cache.verify()
    device = pick_device(config.device)
    tokenizer = models.load_tokenizer(str(cache.tokenizer_folder))

    progress.phase("building the student")
    transformers.set_seed(config.train.seed)
    student = build_student(config, tokenizer=tokenizer, real_vocab_size=cache.plan.vocab_size).to(device)
    progress.say(f"student: {type(student).__name__}, {show_count(sum(p.numel() for p in student.parameters()))} parameters, on {device}")
    ops = probe_head(student, cache.plan.vocab_size)
    if cache.packing:
        check_documents_kept_apart(student, cache.plan.vocab_size)

    train = config.train
    windows_per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps
    watch = Watch(run, config, cache, tokenizer, progress)
    trainer = DistillTrainer(
        cache=cache,
        loss=config.loss,
        ops=ops,
        model=student,
        args=training_arguments(config, run.checkpoints_folder, device),
        train_dataset=Visits(cache, num_visits=train.max_steps * windows_per_step, seed=train.seed),
        data_collator=Collate(cache, config.loss),
        callbacks=[watch],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    checkpoint = latest_checkpoint(run.checkpoints_folder)
    step = (checkpoint_step(checkpoint) or 0) if checkpoint else 0
    metrics.drop_after(run.metrics_path, step if checkpoint else -1)
    watch.begin(trainer, resumed_at=step)
    if checkpoint is None:
        watch.look(0)
        write_untrained(run, cache, student, tokenizer, config)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    run.update(result={"cache": cache.name, "best_step": watch.best["step"], "heldout_nll": watch.best["nll"]})
    if watch.was_stopped:
        raise Stopped
    shutil.rmtree(run.checkpoints_folder, ignore_errors=True)  # the run is done: model/ holds what is worth keeping


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
        dataloader_num_workers=0,
        dataloader_pin_memory=device.type == "cuda",
        use_cpu=device.type == "cpu",
        data_seed=train.seed,
        **same,
    )


def save_model(model: Any, tokenizer: Any, folder: Path, best: dict[str, float]) -> None:
    """Replace the model folder as a whole; a kill in between leaves the old one or the new one."""
    fresh, old = folder.with_name(folder.name + ".partial"), folder.with_name(folder.name + ".old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    publish(fresh / "best.json", json.dumps(best))
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)


def write_untrained(run: Run, cache: Cache, student: nn.Module, tokenizer: Any, config: DistillConfig) -> None:
    """What the student writes before it has learned anything, kept for the judging."""
    prompts = [list(ids) for ids in cache.manifest.teacher.prompt_ids]
    samples, _ = generation.continuations(student, tokenizer, prompts, num_tokens=config.capture.sample_tokens)
    publish(run.folder / "untrained.json", json.dumps({"samples": samples}, indent=2))


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: its trainer_state.json comes last and can be read."""
    whole = [path for path in folder.glob("checkpoint-*") if checkpoint_step(path) is not None]
    return max(whole, key=lambda path: checkpoint_step(path) or 0, default=None)


def checkpoint_step(path: Path) -> int | None:
    try:
        return int(json.loads((path / "trainer_state.json").read_text())["global_step"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None


def load_student(run: Run, device: torch.device) -> Any:
    """The run's best weights. Raises ModelError when it has none yet."""
    if not (run.model_folder / "config.json").exists():
        raise ModelError(
            f"run {run.id} has no model yet: it is {run.status().state}. Resume it: python -m distill_core train --resume {run.id}"
        )
    return models.load_model(str(run.model_folder), dtype="float32", device=str(device))
