"""Training: the student learns from the cache, and the teacher is nowhere in memory.

1 cache opened and verified   2 student built and its head probed   3 transformers.Trainer with the fused loss
4 looks at the held-out text; the best weights so far are always in model/
"""

import shutil

import transformers

from . import metrics, models
from .batches import Collate, Visits
from .cache import open_cache
from .device import pick_device
from .heads import probe_head
from .independence import check_independence
from .progress import Progress, Stopped
from .routers import router_loss_weight, router_words
from .runs import Run
from .students import build_student
from .training.arguments import training_arguments
from .training.checkpoints import checkpoint_step, latest_checkpoint
from .training.distill_trainer import DistillTrainer
from .training.model_folder import write_untrained
from .training.watch import Watch
from .units import show_count


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
    balance = router_words(student, router_loss_weight(student, config.loss.router_loss_weight))
    if balance:
        progress.say(balance)
    ops = probe_head(student, cache.plan.vocab_size)
    check_independence(student, cache.plan.vocab_size, packing=cache.packing, trained=True)

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
