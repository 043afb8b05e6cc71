"""The list of well-known models that ships: data/models.csv, and what it says of each without asking anyone."""

import csv
import functools
from typing import Any

import polars as pl

from ..errors import ModelError, did_you_mean
from ..paths import data_dir
from .model_facts import ModelFacts

LICENSE_NOTES = {
    "gemma": "The Gemma terms count a model distilled from Gemma as a derivative: they pass on to your student.",
    "llama2": "The Llama 2 licence forbids using its output to improve models that are not Llama 2 or derived from it.",
    "llama3.1": "The Llama licence wants the name of a published student to begin with 'Llama', and its terms passed on.",
    "llama3.2": "The Llama licence wants the name of a published student to begin with 'Llama', and its terms passed on.",
    "llama3.3": "The Llama licence wants the name of a published student to begin with 'Llama', and its terms passed on.",
    "qwen-research": "This licence is for research only: read it before using the student commercially.",
}


@functools.cache
def table() -> pl.DataFrame:
    with open(data_dir() / "models.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    as_read = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.String))
    numbers = [name for name in as_read.columns if name.startswith(("num_", "max_")) or name.endswith(("_size", "_dim"))]
    flags = ["tied_head", "gated"]
    return as_read.with_columns(
        *(pl.col(name).cast(pl.Int64) for name in numbers),
        *(pl.col(name).replace_strict({"true": True, "false": False}, default=None, return_dtype=pl.Boolean) for name in flags),
    )


def models_table() -> pl.DataFrame:
    """Well-known models, grouped by `family`: those in one family share a tokenizer, so one can teach another. Needs no network.

    `role`: 'teacher', 'student' or 'both'. Sizes are those of the published configs; `num_parameters` was counted from them.
    """
    return table().clone()


def listed_facts(source: str) -> ModelFacts:
    """Facts of a model of data/models.csv, without asking anyone. Raises ModelError for one that is not in it."""
    known = row_facts(source)
    if known is None:
        raise ModelError(f"model {source} is not in data/models.csv.{did_you_mean(source, table()['id'])}")
    return known


def row_facts(source: str) -> ModelFacts | None:
    """The row of data/models.csv, as facts."""
    rows = table().filter(pl.col("id") == source)
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    sizes = {name: row[name] for name in ModelFacts.__dataclass_fields__ if name in row}
    known = ModelFacts(source=source, kind="hub", vocab_size_config=row["vocab_size"], dtype_on_disk=row["dtype"], **sizes)
    return with_notes(known, {})


def with_notes(known: ModelFacts, config: dict[str, Any]) -> ModelFacts:
    """Notes on licence, quantization and experts."""
    notes = []
    if known.license in LICENSE_NOTES:
        notes.append(LICENSE_NOTES[known.license])
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        notes.append(
            f"Its weights are stored quantized ({quantized.get('quant_method', 'unknown method')}); it can teach, but not be a student."
        )
    if known.num_experts:
        notes.append(f"A mixture of {known.num_experts} experts: all of them must fit in memory.")
    return known.noting(*notes)
