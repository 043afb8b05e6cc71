"""How good each run is: as judged (evaluation.json), else as its best look at the held-out text while it trained (metrics.jsonl)."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from .. import metrics
from ..runs import Run, list_runs
from .there import of_each

Row = dict[str, Any]
Measured = Literal["judged", "while training"]

MEASURES = ("bits_per_byte", "kl_to_teacher", "top1_agreement")
FIGURES = (*MEASURES, "perplexity", "num_parameters", "disk_bytes", "tokens_per_s")
LOOKS = {"bits_per_byte": "heldout_bits_per_byte", "kl_to_teacher": "heldout_kl", "top1_agreement": "heldout_top1_agreement"}
"""Measure -> its key in metrics.jsonl: the same figures, of the same text."""


def evaluation_of(run: Run) -> dict[str, Any] | None:
    """The run's evaluation.json; None where it was not judged."""
    try:
        return json.loads(run.evaluation_path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _dated_evaluation(run: Run) -> list[tuple[float, dict[str, Any]]]:
    """[(when it was written, the run's evaluation)], or []."""
    evaluation = evaluation_of(run)
    return [] if evaluation is None else [(run.evaluation_path.stat().st_mtime, evaluation)]


def judgements(runs: Iterable[Run]) -> dict[str, Row]:
    """By run id: the row of the newest evaluation.json that speaks of it, as student or as hard-label twin, with the prompts and the
    teacher's row beside it. Judgements by another cache than the run's own stay where they are: they have another teacher."""
    found: list[tuple[float, dict[str, Any]]] = []
    for _, read in of_each(runs, _dated_evaluation):
        found += [(when, evaluation) for when, evaluation in read if evaluation.get("is_own_cache", True)]
    rows: dict[str, Row] = {}
    for _, evaluation in sorted(found, key=lambda item: item[0]):
        by_who = {row["who"]: row for row in evaluation["rows"]}
        for who, key in (("student", "run"), ("hard labels", "baseline")):
            if evaluation.get(key) and who in by_who:
                rows[evaluation[key]] = by_who[who] | {"prompts": evaluation["prompts"], "teacher": by_who.get("teacher")}
    return rows


def best_look(run: Run) -> Row | None:
    """The figures of the weights that the run kept: its look with the lowest loss on the held-out text; None before the first."""
    looks = [row for row in metrics.read(run.metrics_path) if row.get("heldout_nll") is not None]
    if not looks:
        return None
    best = min(looks, key=lambda row: row["heldout_nll"])
    return {name: best.get(key) for name, key in LOOKS.items()} | {"step": best["step"]}


def qualities(runs: Sequence[Run], *, known: Iterable[Run] | None = None) -> dict[str, Row]:
    """By run id, for those with any figure: FIGURES (None where not measured), 'measured' and 'samples'.

    `known`: runs whose evaluation.json may speak of these; all runs where it is not given.
    """
    judged = judgements(list_runs() if known is None else known)
    found: dict[str, Row] = {}
    for run in runs:
        row = judged.get(run.id)
        measured: Measured = "judged" if row is not None else "while training"
        row = best_look(run) if row is None else row
        if row is not None:
            found[run.id] = {name: row.get(name) for name in FIGURES} | {"measured": measured, "samples": row.get("samples", [])}
    return found


def quality_rows(runs: Sequence[Run]) -> list[Row]:
    """A line for each run with figures, closest to its teacher first; before them the teacher of each cache, where it was judged.

    A run's line has its id as 'run', a teacher's has None, and both have the 'cache'.
    """
    known = list_runs()
    judged = judgements(known)
    there = of_each(runs, Run.inputs)
    cache_of = {run.id: inputs.get("cache") for run, inputs in there}
    figures = qualities([run for run, _ in there], known=known)
    rows = [{"run": run_id, "cache": cache_of[run_id]} | _plain(row) for run_id, row in figures.items()]
    rows.sort(key=lambda row: (row["kl_to_teacher"] is None, row["kl_to_teacher"]))
    teachers = {cache_of[run.id]: judged[run.id]["teacher"] for run, _ in there if judged.get(run.id, {}).get("teacher")}
    lines = [
        {"run": None, "cache": cache} | {name: row.get(name) for name in FIGURES} | {"measured": "judged"}
        for cache, row in teachers.items()
    ]
    return lines + rows


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "samples"}


def look_rows(runs: Sequence[Run]) -> list[Row]:
    """All rows of the runs' metrics.jsonl, each with its run's id: for charts that lay runs over each other."""
    return [{"run": run.id, **row} for run in runs for row in metrics.read(run.metrics_path)]


def sample_rows(runs: Sequence[Run]) -> tuple[list[str], list[Row]]:
    """(prompts, rows of {'who', 'samples'}) of judged runs that answered the same prompts as the first of them; the teacher first."""
    judged = judgements(list_runs())
    prompts: list[str] = []
    rows: list[Row] = []
    for run in runs:
        row = judged.get(run.id)
        if row is None or not row.get("samples") or (rows and row["prompts"] != prompts):
            continue
        if not rows:
            prompts = row["prompts"]
            if row["teacher"]:
                rows.append({"who": "teacher", "samples": row["teacher"].get("samples", [])})
        rows.append({"who": run.id, "samples": row["samples"]})
    return prompts, rows
