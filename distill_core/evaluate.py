"""Judging: the student beside the teacher, its untrained self, and its twin that learned from hard labels only."""

import json
from pathlib import Path
from typing import Any

from . import generation, jobs, metrics, models
from .benchmarks import run_benchmarks
from .cache import Cache, open_cache
from .comparison import NOT_LEARNED
from .device import MemoryMeter, pick_device
from .errors import RunError
from .heads import probe_head
from .judgement import Row, Scores, bits_per_byte, context_gap, gains, quality, verdict
from .paths import publish
from .progress import Progress
from .robustness import robustness
from .runs import Run, open_run
from .scoring import score
from .training.model_folder import load_student
from .units import GIB


def run_evaluation(run: Run, progress: Progress) -> dict[str, Any]:
    """Judge inputs['run'] beside inputs['baseline'] (if given) on the cache's held-out text; writes evaluation.json.

    The cache is inputs['cache'], where that is given, else the one that the run learned from: only then the judgement is written into the
    judged run too. The teacher is not loaded: its numbers and samples are in the cache. Raises RunError if a run failed, or the two
    cannot be compared; VocabularyError for a cache that speaks of other tokens.
    """
    inputs = run.inputs()
    judged = open_run(inputs["run"])
    baseline = open_run(inputs["baseline"]) if "baseline" in inputs else None
    runs = [judged] + ([baseline] if baseline else [])
    await_models(runs, progress)
    if baseline:
        require_same_budget(judged, baseline)
    own = judged.inputs()["cache"]
    cache = open_cache(inputs.get("cache", own))
    cache.verify()

    scores: dict[str, Scores] = {}
    rows = [teacher_row(cache), *without_context_row(cache)]
    if cache.name == own:
        rows.append(untrained_row(judged))
    else:
        require_same_tokens(runs, cache)
    for who, trained in zip(("student", "hard labels"), runs):
        progress.phase(f"judging {trained.id}")
        row, scores[who] = judge(trained, cache, progress)
        rows.append({"who": who} | row)
    benchmarks = public_benchmarks(inputs, dict(zip(("student", "hard labels"), runs)), progress)
    result: dict[str, Any] = {
        "cache": cache.name,
        "cache_sha256": cache.manifest.sha256(),
        "is_own_cache": cache.name == own,
        "run": judged.id,
        "baseline": baseline.id if baseline else None,
        "rows": rows,
        "prompts": list(cache.manifest.teacher.prompts),
        "verdict": verdict(scores["student"], scores.get("hard labels")),
        "gains": gains(scores["student"], scores["hard labels"]) if baseline else None,
        "notes": [*context_gap(rows), *notes(cache, judged, baseline)],
        "benchmarks": benchmarks,
        "robustness": held_up(dict(zip(("student", "hard labels"), runs)), cache, progress, inputs) if "robustness" in inputs else [],
    }
    publish(run.evaluation_path, json.dumps(result, indent=2) + "\n")
    if cache.name == own:
        publish(judged.evaluation_path, json.dumps(result, indent=2) + "\n")
    run.update(result={"verdict": result["verdict"], "run": judged.id})
    return result


def public_benchmarks(inputs: dict[str, str], runs: dict[str, Run], progress: Progress) -> list[Row]:
    """What lm-eval finds, where it was asked for; the teacher is loaded for it."""
    if not inputs.get("lm_eval"):
        return []
    progress.phase("public benchmarks")
    limit = int(inputs["lm_eval_limit"]) if "lm_eval_limit" in inputs else None
    tasks = [task.strip() for task in inputs["lm_eval"].split(",") if task.strip()]
    teacher = runs["student"].config().teacher
    return run_benchmarks(runs, teacher, tasks, progress.say, include=inputs.get("lm_eval_include"), limit=limit)


def held_up(runs: dict[str, Run], cache: Cache, progress: Progress, inputs: dict[str, str]) -> list[Row]:
    """How each holds up under noise, worst-case changes and typos, at one radius for all: inputs['radius'], or the first one's own."""
    radius = float(inputs.get("radius", next(iter(runs.values())).config().loss.adversarial_radius))
    tokenizer = models.load_tokenizer(str(cache.tokenizer_folder))
    rows: list[Row] = []
    for who, trained in runs.items():
        progress.phase(f"how {trained.id} holds up under noise and typos")
        model = load_student(trained, pick_device(trained.config().device))
        found = robustness(model, probe_head(model, cache.plan.vocab_size), cache, tokenizer, radius=radius)
        rows += [{"who": who, "radius": radius} | row for row in found]
    return rows


def await_models(runs: list[Run], progress: Progress) -> None:
    """Until all have ended. Raises RunError for one that has no model to judge."""
    for trained in runs:
        if trained.status().is_active:
            progress.phase(f"waiting for {trained.id} to end")
            jobs.wait(trained)
        require_model(trained)


def require_model(trained: Run) -> None:
    status = trained.status()
    if status.state == "failed":
        raise RunError(
            f"run {trained.id} failed and cannot be judged: {status.error} Resume it: python -m distill_core train --resume {trained.id}"
        )
    if status.kind != "train":
        raise RunError(f"run {trained.id} is a {status.kind} run; only training runs can be judged.")


def require_same_tokens(runs: list[Run], cache: Cache) -> None:
    """A cache that the students did not learn from must speak of their tokens. Raises VocabularyError."""
    tokens = models.vocabulary(models.load_tokenizer(str(cache.tokenizer_folder)))
    for trained in runs:
        models.check_same_vocabulary(
            tokens,
            models.vocabulary(models.load_tokenizer(str(trained.model_folder))),
            teacher_name=f"cache {cache.name}",
            student_name=f"run {trained.id}",
            student_rows=models.load_config(str(trained.model_folder)).get_text_config().vocab_size,
            teacher_rows=cache.plan.vocab_size,
        )


def require_same_budget(judged: Run, baseline: Run) -> None:
    """Same cache, same student, same steps: otherwise the comparison would say nothing about the loss."""
    mine, other = judged.config(), baseline.config()
    if other.loss.kl_weight != 0:
        raise RunError(
            f"run {baseline.id} learned from the teacher too (loss.kl_weight {other.loss.kl_weight:g}), so it is no hard-label twin of "
            f"{judged.id}. Train one: the same train command with --twin."
        )
    differences = [
        f"{name}: {a} and {b}"
        for name, a, b in (
            ("cache", judged.inputs()["cache"], baseline.inputs()["cache"]),
            *((f"student.{k}", getattr(mine.student, k), getattr(other.student, k)) for k in type(mine.student).model_fields),
            *(
                (f"train.{k}", getattr(mine.train, k), getattr(other.train, k))
                for k in type(mine.train).model_fields
                if k not in NOT_LEARNED
            ),
        )
        if a != b
    ]
    if differences:
        raise RunError(
            f"runs {judged.id} and {baseline.id} are not equal-budget twins: {'; '.join(differences)}. "
            "Train the baseline with the same settings and loss.kl_weight 0, loss.ce_weight 1."
        )


def teacher_row(cache: Cache) -> Row:
    """The teacher's own figures on the held-out text, from what the cache stores of it."""
    teacher, positions = cache.manifest.teacher, cache.manifest.num_positions("heldout")
    nll = -cache.manifest.mean("gold_logprob", "heldout")
    num_bytes = sum(entry.num_text_bytes for entry in cache.manifest.entries_of("heldout"))
    return {
        "who": "teacher",
        **quality(nll=nll, bits_per_byte=bits_per_byte(nll * positions, num_bytes), kl=0.0, agreement=1.0),
        "num_parameters": teacher.num_parameters,
        "disk_bytes": teacher.disk_bytes,
        "tokens_per_s": teacher.generated_tokens_per_s,
        "first_token_s": teacher.first_token_s,
        "samples": list(teacher.samples),
    }


def without_context_row(cache: Cache) -> list[Row]:
    """The teacher without the context, or the images, that it had in the capture, judged like a student; none where it had none."""
    found = cache.manifest.text.get("teacher_without_context")
    if found is None:
        return []
    nll_sum = found["nll"] * cache.manifest.num_positions("heldout")
    num_bytes = sum(entry.num_text_bytes for entry in cache.manifest.entries_of("heldout"))
    measured = quality(nll=found["nll"], bits_per_byte=bits_per_byte(nll_sum, num_bytes), kl=found["kl"], agreement=found["agreement"])
    return [{"who": "without images" if "images" in cache.manifest.text else "without context", **measured}]


def untrained_row(judged: Run) -> Row:
    """The student before its first step, as its own run recorded it."""
    first = next((row for row in metrics.read(judged.metrics_path) if row["step"] == 0 and "heldout_nll" in row), None)
    if first is None:
        raise RunError(
            f"run {judged.id}: metrics.jsonl holds no look at the held-out text before training. The run is damaged; train again."
        )
    untrained = json.loads((judged.folder / "untrained.json").read_text(encoding="utf-8"))
    measured = quality(
        nll=first["heldout_nll"],
        bits_per_byte=first["heldout_bits_per_byte"],
        kl=first["heldout_kl"],
        agreement=first["heldout_top1_agreement"],
    )
    return {"who": "untrained student", **measured, "samples": untrained["samples"]}


def judge(trained: Run, cache: Cache, progress: Progress) -> tuple[Row, Scores]:
    """Score, size, speed, memory (of the whole process on a CPU) and samples of a run's best weights."""
    config = trained.config()
    device = pick_device(config.device)
    meter = MemoryMeter(device)
    meter.reset_peak()
    model = load_student(trained, device)
    tokenizer = models.load_tokenizer(str(cache.tokenizer_folder))
    scores = score(model, probe_head(model, cache.plan.vocab_size), cache, progress=progress)
    prompts = [list(ids) for ids in cache.manifest.teacher.prompt_ids]
    written = generation.continuations(model, tokenizer, prompts, num_tokens=config.capture.sample_tokens)
    row = {
        **quality(nll=scores.nll, bits_per_byte=scores.bits_per_byte, kl=scores.kl_to_teacher, agreement=scores.top1_agreement),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "disk_bytes": disk_bytes(trained.model_folder),
        "tokens_per_s": written.tokens_per_s,
        "first_token_s": written.first_token_s,
        "peak_memory_gib": meter.peak_bytes() / GIB,
        "samples": written.texts,
    }
    return row, scores


def disk_bytes(folder: Path) -> int:
    """Bytes of the weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def notes(cache: Cache, judged: Run, baseline: Run | None) -> list[str]:
    """What the reader must know to read the table rightly."""
    lines = [
        f"{cache.num_windows('heldout')} held-out windows, {cache.manifest.num_positions('heldout'):,} tokens; "
        "none of their documents was trained on.",
        "KL to the teacher is over its stored entries and the rest as one: a lower bound of the full KL.",
    ]
    for trained in [judged] + ([baseline] if baseline else []):
        result, steps = trained.status().result, trained.config().train.max_steps
        lines.append(f"{trained.id}: best weights at step {result.get('best_step')} of {steps}, by held-out loss on this same text.")
    if baseline:
        lines.append("One seed each: the intervals are over windows, not over training runs.")
    return lines
