"""Public benchmarks through EleutherAI's lm-eval, if it is installed: teacher, student and baseline in one table."""

import gc
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from . import models
from .config import TeacherConfig
from .device import pick_device
from .errors import RunError, did_you_mean
from .judgement import Row
from .runs import Run
from .training.model_folder import load_student


def check_installed() -> None:
    """Raise RunError where lm-eval is not there."""
    if importlib.util.find_spec("lm_eval") is None:
        raise RunError("lm-eval is not installed, so no public benchmark can be run. Install it: pip install lm-eval")


def run_benchmarks(
    runs: dict[str, Run],
    teacher: TeacherConfig,
    tasks: list[str],
    say: Callable[[str], None],
    *,
    include: str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """[{'who', 'task', 'metric', 'value', 'stderr'}] for the teacher and each run's best weights, loaded one after another.

    `runs`: who to run. `include`: a folder with task files of one's own. `limit`: examples of each task.
    Raises RunError: lm-eval is missing, a task is unknown, or its data cannot be had (offline).
    """
    check_installed()
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=include)
    for task in tasks:
        if not manager.match_tasks([task]):
            raise RunError(f"lm-eval has no task '{task}'.{did_you_mean(task, manager.all_tasks)[:200]}")
    device = pick_device(next(iter(runs.values())).config().device)
    rows: list[Row] = []
    for who in ("teacher", *runs):
        say(f"lm-eval: {who} on {', '.join(tasks)}")
        if who == "teacher":
            model = models.load_model(teacher.model, revision=teacher.revision, device=device)
            tokenizer = models.load_tokenizer(teacher.model, revision=teacher.revision)
        else:
            model, tokenizer = load_student(runs[who], device), models.load_tokenizer(str(runs[who].model_folder))
        found = _evaluate(model, tokenizer, tasks, manager, limit)
        rows += [{"who": who, **row} for row in found]
        del model
        gc.collect()
    return rows


def _evaluate(model: Any, tokenizer: Any, tasks: list[str], manager: Any, limit: int | None) -> Iterable[Row]:
    """One model's results, metric by metric."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8)
    try:
        found = lm_eval.simple_evaluate(model=wrapped, tasks=tasks, task_manager=manager, limit=limit, log_samples=False)
    except (OSError, ConnectionError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"lm-eval could not get the data of {', '.join(tasks)}: {first}. Public tasks are downloaded when they are first used: go "
            "online once, or give a folder with tasks of your own: --lm-eval-include FOLDER"
        ) from error
    rows = []
    for task, values in found["results"].items():
        for name, value in values.items():
            metric, _, kind = name.partition(",")
            if isinstance(value, int | float) and kind and not metric.endswith("_stderr"):
                spread = values.get(f"{metric}_stderr,{kind}")
                rows.append({"task": task, "metric": metric, "value": value, "stderr": spread if isinstance(spread, float) else None})
    return rows


def benchmark_table(rows: list[Row]) -> str:
    """The rows as plain text: a line per task and metric, a column per model."""
    names = list(dict.fromkeys(row["who"] for row in rows))
    lines = [f"{'':<32}" + "".join(f"{who:>20}" for who in names)]
    for task, metric in dict.fromkeys((row["task"], row["metric"]) for row in rows):
        cells = []
        for who in names:
            row = next((row for row in rows if (row["who"], row["task"], row["metric"]) == (who, task, metric)), None)
            spread = f" ± {row['stderr']:.3f}" if row and row["stderr"] is not None else ""
            cells.append(f"{row['value']:.3f}{spread}" if row else "")
        lines.append(f"{task + ', ' + metric:<32}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)
