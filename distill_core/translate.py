"""Translate: an ordinary cache in a student's tokens, out of a cache in the tokens of a teacher with another tokenizer.

1 the documents' text out of the teacher's tokens   2 the student's tokens of it, window by window   3 rows where both cut the text
alike (translation/: what is exact, and what is not)   4 shard by shard, as a capture writes them; a kill loses one shard at most

Window i of the result holds the documents of window i of the source, so that no document's context is cut; its windows are as long as
the longest of them needs. Aligning on bytes as in cross-tokenizer distillation (Minixhofer et al. 2025, arXiv:2503.20083), of which
this is the part that needs no approximation.
"""
# n: windows in a shard   L: tokens in a window   P = L - 1: positions   K: entries   A: anchors   R: rows of a shard

import hashlib
import json
from typing import Any

import numpy as np

from . import models
from .cache import Cache, CacheWriter, Fingerprint, Plan, ShardColumns, ShardPlan, finished_cache, open_cache
from .cache.codecs import EMPTY_ID
from .cache.manifest import MADE_BY, TRANSLATED, UNALIGNED_ROWS, Teacher
from .corpus import Document, encode
from .corpus.encoding import padding_id
from .errors import VocabularyError
from .merging.making import check_not_captured, versions, write_shards
from .merging.windows import begins, columns_of, frames
from .paths import caches_dir, checked_name, publish
from .progress import Progress
from .runs import Run
from .translation import (
    TEXT_COLUMNS,
    ByteStrings,
    Found,
    Rows,
    Window,
    Work,
    byte_strings,
    check_source,
    command,
    translated,
    translated_config,
    twins,
)


def run_translate(run: Run, progress: Progress) -> Cache:
    """Make the translated cache, or go on with it, or find it finished. Returns it opened.

    Raises CacheError for a cache that cannot be translated, VocabularyError for a tokenizer that does not say its bytes or a coverage
    below the least; Stopped after a stop was asked for, finished shards kept.
    """
    asked = run.inputs()
    source, name = open_cache(asked["source"]), checked_name(asked["name"], "cache")
    check_source(source)
    progress.phase("comparing the tokenizers")
    source.verify()
    tokenizers = models.load_tokenizer(str(source.tokenizer_folder)), models.load_tokenizer(asked["to"])
    known = byte_strings(tokenizers[0], f"of cache {source.name}"), byte_strings(tokenizers[1], asked["to"])
    work = Work(source, tokenizers[1], *known, progress)
    found = work.look()
    words = found.words(asked["unaligned"])
    progress.say(words)
    least = float(asked["min_coverage"])
    if found.coverage < least:
        raise VocabularyError(
            f"cache {source.name} to {asked['to']}: {words} That is below --min-coverage {least:g}. Lower it, if so few places are "
            "enough, or pick a student whose tokens are more like the teacher's."
        )
    plan = _plan(source, found, known, asked)
    folder = caches_dir() / name
    finished = finished_cache(folder, plan)
    if finished is not None:
        progress.say(f"cache {name} is already complete and unchanged")
        return finished
    check_not_captured(folder)
    with CacheWriter(folder, plan) as writer:
        publish(folder / MADE_BY, json.dumps({"words": "Translate again", "command": command(asked)}))
        tokenizers[1].save_pretrained(folder / "tokenizer")
        twin, has_hard_labels = twins(work.theirs, work.ours), asked["unaligned"] == "hard"
        write_shards(
            writer,
            progress,
            lambda shard: _shard(work, plan, shard, twin, has_hard_labels=has_hard_labels and shard.split == "train"),
            doing=lambda total: f"translating {total:,} windows",
            num_bytes=source.manifest.num_bytes,
        )
        writer.finish(
            teacher=_teacher(source, tokenizers[1]),
            config=translated_config(source, asked["to"], name, window_tokens=plan.window_tokens).model_dump(mode="json"),
            text=source.manifest.text | {"notes": [words, *_left_out(source)], "translated": found.to_record()},
            versions=versions(),
        )
    made = open_cache(name)
    for note in _left_out(source):
        progress.say(note)
    progress.say(f"of the teacher's probability there, {_mass(made):.1%} is in tokens that have a twin (before: {_mass(source):.1%})")
    return made


def _left_out(source: Cache) -> list[str]:
    """What the source has and the result has not, in words."""
    return ["hidden states are not translated: they belong to the teacher's own tokens"] if source.plan.hidden is not None else []


def _mass(cache: Cache) -> float:
    """Mean kept mass at T = 1 of the held-out text, where every row is the teacher's."""
    return cache.manifest.mean("kept_mass", "heldout")


# ---------------------------------------------------------------- what is written
def _plan(source: Cache, found: Found, known: tuple[ByteStrings, ByteStrings], asked: dict[str, str]) -> Plan:
    """The source's shards; all that decides the rows is in the fingerprint."""
    plan, vocab_size = source.plan, known[1].vocab_size
    top_k = min(plan.num_ranked, vocab_size)
    vocabulary = json.dumps([None if each is None else each.hex() for each in known[1].of_id])
    fields = {
        **plan.fingerprint.fields,
        TRANSLATED: source.name,
        "translate.sha256": source.manifest.sha256(),
        "translate.to": asked["to"],
        UNALIGNED_ROWS: asked["unaligned"],
        "tokenizer.vocabulary_sha256": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "text.window_tokens": str(found.window_tokens),
        "text.windows_sha256": found.digest.hexdigest(),
        "capture.top_k": str(top_k),
        "capture.codec": "exact",
        "capture.select": "topk",
        "capture.num_exact": "None",
    }
    changes = {
        "fingerprint": Fingerprint(fields=fields),
        "top_k": top_k,
        "num_exact": None,
        "vocab_size": vocab_size,
        "window_tokens": found.window_tokens,
        "codec": "exact",
        "hidden": None,  # states belong to the teacher's own tokens
    }
    return plan.model_copy(update=changes)


def _shard(work: Work, plan: Plan, shard: ShardPlan, twin: np.ndarray, *, has_hard_labels: bool) -> ShardColumns:
    frame = frames(work.source, shard.split, begins(work.source.plan)[shard.name], shard.num_windows)
    stored = columns_of(frame, work.source.plan)
    windows = list(work.windows(frame.select(TEXT_COLUMNS), Found()))
    n_R = np.repeat(np.arange(len(windows)), [len(window.rows) for window in windows])
    from_R = np.concatenate([window.source_rows for window in windows])
    to_R = np.concatenate([window.rows for window in windows])
    ranked = work.source.plan.num_ranked
    rows = translated(
        Rows(
            stored.teacher_ids_nPK[n_R, from_R, :ranked].astype(np.int64),
            stored.teacher_logprobs_nPK[n_R, from_R, :ranked].astype(np.float64),
            stored.tail_logsumexp_nPA[n_R, from_R].astype(np.float64),
            stored.tail_mean_logprob_nPA[n_R, from_R].astype(np.float64),
        ),
        twin,
        top_k=plan.top_k,
    )
    holds_R = np.isfinite(rows.logprobs_RK[:, 0])  # a row of which nothing has a twin teaches nothing
    n_R, from_R, to_R = n_R[holds_R], from_R[holds_R], to_R[holds_R]
    input_ids_nL, token_bytes_nL = _packed(windows, plan, padding_id(work.tokenizer))

    def spread(rows: np.ndarray, dtype: Any, empty: float) -> Any:
        full = np.full((len(windows), plan.window_tokens - 1, *rows.shape[1:]), empty, dtype)
        full[n_R, to_R] = rows.astype(dtype)
        return full

    columns = ShardColumns(
        window_ids_n=stored.window_ids_n,
        input_ids_nL=input_ids_nL,
        doc_lens=[[len(document) for document in window.documents] for window in windows],
        token_bytes_nL=token_bytes_nL,
        targets_nP=spread(np.ones(len(n_R)), np.bool_, False),
        teacher_ids_nPK=spread(rows.ids_RK[holds_R], np.uint32, EMPTY_ID),
        teacher_logprobs_nPK=spread(rows.logprobs_RK[holds_R], np.float32, -np.inf),
        tail_logsumexp_nPA=spread(rows.tail_RA[holds_R], np.float32, -np.inf),
        tail_mean_logprob_nPA=spread(rows.tail_mean_RA[holds_R], np.float16, 0.0),
        gold_logprob_nP=spread(stored.gold_logprob_nP[n_R, from_R], np.float32, 0.0),
        teacher_entropy_nP=spread(stored.teacher_entropy_nP[n_R, from_R], np.float16, 0.0),
    )
    if has_hard_labels:
        _label_the_others(columns, windows)
    return columns


def _label_the_others(columns: ShardColumns, windows: list[Window]) -> None:
    """Rows that may be learned and have no teacher's row: all probability on the text's own token, at any temperature.

    Forward KL to such a row is the cross-entropy with that token.
    """
    n_R = np.repeat(np.arange(len(windows)), [len(window.learned) for window in windows])
    p_R = np.concatenate([window.learned for window in windows])
    is_free_R = ~columns.targets_nP[n_R, p_R]
    n_R, p_R = n_R[is_free_R], p_R[is_free_R]
    columns.targets_nP[n_R, p_R] = True
    columns.teacher_ids_nPK[n_R, p_R, 0] = columns.input_ids_nL[n_R, p_R + 1]
    columns.teacher_logprobs_nPK[n_R, p_R, 0] = 0.0


def _packed(windows: list[Window], plan: Plan, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, bytes under them), [n, L], padded at the right."""
    shape = (len(windows), plan.window_tokens)
    input_ids_nL, token_bytes_nL = np.full(shape, pad_id, np.uint32), np.zeros(shape, np.uint16)
    for row, window in enumerate(windows):
        if window.documents:
            ids = np.concatenate([document.token_ids for document in window.documents])
            input_ids_nL[row, : len(ids)] = ids
            token_bytes_nL[row, : len(ids)] = np.concatenate([document.token_bytes for document in window.documents])
    return input_ids_nL, token_bytes_nL


# ---------------------------------------------------------------- what stays beside the shards
def _teacher(source: Cache, tokenizer: Any) -> Teacher:
    """The same teacher; its prompts in the student's tokens, for samples to be read beside its own."""
    teacher = source.manifest.teacher
    prompts = [encode(Document(text=prompt), tokenizer, assistant_only_loss=False).token_ids.tolist() for prompt in teacher.prompts]
    ids = tuple(tuple(prompt[:-1] if prompt[-1:] == [tokenizer.eos_token_id] else prompt) for prompt in prompts)
    return teacher.model_copy(update={"prompt_ids": ids, "read_tokens_per_s": None})
