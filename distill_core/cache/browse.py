"""A window of a cache, token by token, with what the teacher expected there."""

from typing import Any

import numpy as np
import polars as pl

from ..errors import CacheError
from .reader import Cache
from .tail import bucket_logprobs


def browse(cache: Cache, split: str, window: int, *, num_choices: int = 5, temperature: float = 1.0) -> pl.DataFrame:
    """[position, token, is_target, probability, kept_mass, choices]: what stood at each place, and the teacher's say on it.

    The row of a token holds what the teacher expected after the token before it: `probability` of this token (T = 1, from its stored
    log-probability), `choices` [{'token', 'probability'}] and `kept_mass` at `temperature`; none where nothing was asked. Raises
    CacheError for a window that is not there, ConfigError for a temperature outside the stored range.
    """
    import tokenizers

    path = cache.tokenizer_folder / "tokenizer.json"
    if not path.exists():
        raise CacheError(f"cache {cache.name}: tokenizer/tokenizer.json is missing, so its tokens have no text. Capture again.")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    row = {name: values[0] for name, values in cache.rows(split, [window], temperature=temperature).items()}
    targets_P = row["targets"]
    logprobs_PK, tail_P = row["teacher_logprobs"].copy(), row["teacher_tail"].copy()
    logprobs_PK[targets_P], tail_P[targets_P] = bucket_logprobs(logprobs_PK[targets_P], tail_P[targets_P], temperature)
    starts = np.flatnonzero(row["position_ids"] == 0)
    rows: list[dict[str, Any]] = []
    for place, token_id in enumerate(row["input_ids"].tolist()):
        shown: dict[str, Any] = {
            "position": place,
            "token": token_text(tokenizer, token_id),
            "is_target": bool(place and targets_P[place - 1]),
        }
        if shown["is_target"]:
            ids, chances = row["teacher_ids"][place - 1][:num_choices], np.exp(logprobs_PK[place - 1][:num_choices])
            shown |= {
                "probability": float(np.exp(row["gold_logprob"][place - 1])),
                "kept_mass": float(-np.expm1(tail_P[place - 1])),
                "choices": [
                    {"token": token_text(tokenizer, i), "probability": float(p)} for i, p in zip(ids.tolist(), chances, strict=True)
                ],
            }
        rows.append(shown)
    last = int(starts[-1]) if len(starts) > 1 and not targets_P[max(0, starts[-1] - 1) :].any() else len(rows)
    return pl.DataFrame(rows[:last], schema=SCHEMA)


SCHEMA: dict[str, Any] = {
    "position": pl.UInt32,
    "token": pl.String,
    "is_target": pl.Boolean,
    "probability": pl.Float64,
    "kept_mass": pl.Float64,
    "choices": pl.List(pl.Struct({"token": pl.String, "probability": pl.Float64})),
}


def show_browse(table: pl.DataFrame) -> str:
    """The table for a terminal: a token a line, its probability, the choices."""
    lines = []
    for row in table.iter_rows(named=True):
        token = repr(row["token"])
        if not row["is_target"]:
            lines.append(f"{row['position']:>5}  {token}")
            continue
        choices = "  ".join(f"{choice['token']!r} {choice['probability']:.0%}" for choice in row["choices"])
        lines.append(f"{row['position']:>5}  {token:<16} {row['probability']:>7.2%}   {choices}")
    return "\n".join(lines)


def token_text(tokenizer: Any, token_id: int) -> str:
    """The token's own text; its name where it has none, or is part of a character."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else str(tokenizer.id_to_token(token_id))
