"""Training: the student learns from the cache, and the teacher is nowhere in memory.

1 cache opened and verified   2 student built and its head probed   3 transformers.Trainer with the fused loss
4 looks at the held-out text; the best weights so far are always in model/
"""

import shutil
from typing import Any

import torch
import transformers

from . import metrics, models
from .adapters import adapter_words
from .batches import Collate, Visits
from .cache import Cache, open_cache
from .config import DistillConfig
from .device import pick_device
from .errors import CacheError
from .group import ALONE, Group
from .heads import HeadOps, probe_head, unwrapped
from .independence import check_independence
from .multipliers import by_onednn, is_onednn_faster
from .progress import Progress, Stopped
from .refusals import check_tokens_of
from .routers import router_loss_weight, router_words
from .runs import Run
from .structure import Structure
from .students import build_student
from .training.arguments import training_arguments
from .training.batch_size import with_batches_that_fit
from .training.checkpoints import checkpoint_bytes, checkpoint_step, drop_unfinished, latest_checkpoint, num_kept
from .training.distill_trainer import DistillTrainer
from .training.first_batch import first_windows
from .training.launch import check_launch, check_sharding
from .training.model_folder import write_untrained
from .training.structure import agreed_structure
from .training.watch import Watch
from .units import show_count


def run_training(run: Run, progress: Progress) -> None:
    """Train the run's student, from its last checkpoint if it has one. Raises what is wrong as DistillError; Stopped.

    Of several processes all call it at once; the first alone writes into the run's folder.
    """
    config, group = run.config(), Group.from_environment()
    check_launch(group, config)
    progress.phase("checking the cache")
    cache = open_cache(run.inputs()["cache"])
    cache.verify()
    share = cache.manifest.num_positions("train") / (cache.num_windows("train") * (cache.plan.window_tokens - 1))
    if not share:
        raise CacheError(f"cache {cache.name}: no token in it is learned. Capture again, from text with something the student may learn.")
    progress.say(f"{share:.1%} of the tokens in the windows are learned; the rest is padding, prompts and the first token of each document")
    if words := cache.mixture_words(config.loss.temperature):
        progress.say(words)
    if warning := config.train.length_warning():
        progress.say(warning)
    if group.is_first:
        drop_unfinished(run.checkpoints_folder)
    if not config.train.auto_find_batch_size:
        train(run, config, cache, progress, group)
        return

    def attempt(smaller: Any) -> None:
        run.update(result={"per_device_train_batch_size": smaller.per_device_train_batch_size})
        train(run, config.changed(train=smaller), cache, progress, group)

    found = run.stored_status().result.get("per_device_train_batch_size", config.train.per_device_train_batch_size)
    with_batches_that_fit(config.train, attempt, progress.say, first=found)


def train(run: Run, config: DistillConfig, cache: Cache, progress: Progress, group: Group) -> None:
    """From the run's last checkpoint, or from the start, to its end. Raises as run_training does."""
    device = pick_device(group.device_name(config.device))
    tokenizer = models.load_tokenizer(str(cache.tokenizer_folder))
    structure = agreed_structure(run, config, cache, device, progress, group) if config.student.is_measured else None
    student, ops = make_student(config, cache, tokenizer, device, progress, structure)
    watch = Watch(run, config, cache, tokenizer, progress, group)
    visits = make_visits(config, cache, group)
    trainer = make_trainer(run, config, cache, student, ops, watch, visits, progress)
    checkpoint = group.agreed(latest_checkpoint(run.checkpoints_folder))
    step = (checkpoint_step(checkpoint) or 0) if checkpoint else 0
    if group.is_first:
        metrics.drop_after(run.metrics_path, step if checkpoint else -1)
    if checkpoint is None:
        if config.loss.kl_weight:
            progress.say("what the student is fed first:\n" + first_windows(cache, visits, tokenizer))
        else:  # a twin is fed what its student was: once is enough
            progress.say(f"hard labels only. The windows it is fed: python -m distill_core data preview --cache {cache.name}")
        if group.is_first:
            write_untrained(run, cache, student, tokenizer, config)
    with by_onednn(is_on=gains_from_onednn(device, cache)):
        watch.begin(trainer, resumed_at=step)
        if checkpoint is None:
            watch.look(0)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    result = {"cache": cache.name, "best_step": watch.best["step"], "heldout_nll": watch.best["nll"]}
    if group.count > 1:
        result["num_processes"] = group.count
    if watch.stopped_early_at is not None:
        result["stopped_early_at"] = watch.stopped_early_at
    if group.is_first:
        run.update(result=run.stored_status().result | result)
    if watch.was_stopped:
        raise Stopped
    if group.is_first:  # the run is done: model/ holds what is worth keeping
        shutil.rmtree(run.checkpoints_folder, ignore_errors=True)


def gains_from_onednn(device: torch.device, cache: Cache) -> bool:
    """Whether the body's float32 products go to oneDNN too (multipliers.py), on a CPU where it is the faster library.

    Forward and backward of Llama bodies, one thread of an AMD EPYC (Zen 5): 0.85 of MKL's time at hidden size 128, 0.58 at 576, 0.53 at
    1,024. Packed windows only, all of one length: oneDNN keeps code for every shape it meets, half a MB each.
    """
    return device.type == "cpu" and cache.packing and is_onednn_faster()


def make_student(
    config: DistillConfig,
    cache: Cache,
    tokenizer: Any,
    device: torch.device,
    progress: Progress,
    structure: Structure | None = None,
) -> tuple[Any, HeadOps]:
    """The student on the device, and what its model does after its head."""
    progress.phase("building the student")
    check_tokens_of(config, cache)
    transformers.set_seed(config.train.seed)
    student = build_student(config, tokenizer=tokenizer, real_vocab_size=cache.plan.vocab_size, device=device, structure=structure)
    num_parameters = sum(weight.numel() for weight in student.parameters())
    progress.say(f"student: {type(unwrapped(student)).__name__}, {show_count(num_parameters)} parameters, on {device}")
    balance = router_words(student, router_loss_weight(student, config.loss.router_loss_weight))
    for words in (adapter_words(student), balance):
        if words:
            progress.say(words)
    ops = probe_head(student, cache.plan.vocab_size)
    check_independence(student, cache.plan.vocab_size, packing=cache.packing, trained=True)
    return student, ops


def make_visits(config: DistillConfig, cache: Cache, group: Group = ALONE) -> Visits:
    """Every window of the run in the order in which it is fed, to all processes together."""
    train = config.train
    windows_per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps * group.count
    return Visits(
        cache,
        num_visits=train.max_steps * windows_per_step,
        seed=train.seed,
        group_by_length=windows_per_step if train.train_sampling_strategy == "group_by_length" else None,
    )


def make_trainer(
    run: Run, config: DistillConfig, cache: Cache, student: Any, ops: HeadOps, watch: Watch, visits: Visits, progress: Progress
) -> DistillTrainer:
    """transformers' Trainer with our loss, data and callback."""
    folder, group = run.checkpoints_folder, watch.group
    arguments = training_arguments(config, folder, pick_device(group.device_name(config.device)))
    arguments.save_total_limit = num_kept(config.train, folder, checkpoint_bytes(student, arguments.optim), progress.say)
    trainer = DistillTrainer(
        cache=cache,
        loss=config.loss,
        ops=ops,
        group=group,
        model=student,
        args=arguments,
        train_dataset=visits,
        data_collator=Collate(cache, config.loss),
    )
    check_sharding(group, trainer.is_fsdp_enabled)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.listen_first(watch, tensorboard=run.folder / "tensorboard")
    return trainer
