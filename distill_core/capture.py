"""Capture: the teacher reads the text once; what it thought of every position goes into a cache; then it leaves memory.

1 text to windows   2 fingerprint and frozen plan   3 teacher into memory, checked   4 shard by shard: top K, tail, entropy
5 samples and speed   6 manifest
"""
# n: windows in a shard   B: windows in a batch   L: tokens in a window   P = L - 1: positions   R: positions with a target in a batch
# N: all windows   D: hidden size   K: entries kept

import gc
import hashlib
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
from numpy.typing import NDArray

from . import catalog, corpus, generation, images, metrics, models, view_reading
from .cache import Cache, CacheWriter, Plan, ShardColumns, ShardEntry, ShardPlan, finished_cache, open_cache
from .cache.codecs import EMPTY_ID
from .cache.estimate import bytes_per_position
from .cache.manifest import Teacher
from .cache.ranks import Rank, await_others, join, leading
from .cache.reader import position_ids
from .capture_plan import default_name, hidden_plan, make_plan
from .catalog import dtype_in_memory
from .config import DistillConfig
from .device import MemoryMeter, pick_device
from .heads import Head, probe_head, read_head
from .hidden_states import HiddenKeeper
from .independence import check_independence
from .paths import caches_dir, checked_name, publish
from .progress import Progress
from .sparse import SparseRows, read_batch, widened
from .units import show_count


def run_capture(config: DistillConfig, progress: Progress) -> Cache:
    """Make the cache that the config describes, or go on with it, or find it finished. Returns it opened.

    Raises TextError, ModelError, CacheError; Stopped after a stop was asked for, finished shards kept.
    """
    progress.phase("reading the text")
    facts = catalog.facts(config.teacher.model, revision=config.teacher.revision)
    hidden = hidden_plan(config, facts)
    tokenizer = models.load_tokenizer(config.teacher.model, revision=config.teacher.revision)
    aligner = images.aligner_of(config, tokenizer)
    text = corpus.build_windows(config.text, tokenizer, aligner=aligner)
    for note in text.notes:
        progress.say(note)
    windows = {"train": text.train, "heldout": text.heldout}
    view_reading.check_length(windows, facts.max_positions)

    progress.phase("taking the teacher's fingerprint")
    device = pick_device(config.device)
    dtype = dtype_in_memory(facts, config.teacher.dtype, str(device))
    weights = models.weights_fingerprint(config.teacher.model, config.teacher.revision)
    beside = images.fields_of(aligner, windows)
    plan = make_plan(config, windows, tokenizer, weights=weights, dtype=dtype, beside=beside, hidden=hidden)
    if plan.top_k < config.capture.top_k:
        progress.say(f"capture.top_k {config.capture.top_k:,} is more than the vocabulary: all {plan.vocab_size:,} tokens are kept")
    folder = caches_dir() / checked_name(config.capture.name or default_name(config, plan), "cache")
    finished = finished_cache(folder, plan)
    if finished is not None:
        progress.say(f"cache {folder.name} is already complete and unchanged: the teacher is not needed")
        return finished

    work = _Work(config, progress, plan, folder, tokenizer, text, aligner, facts, dtype)
    rank = Rank.from_environment()
    if rank.number:
        _join(work, rank)
    else:
        _lead(work, rank)
    return open_cache(folder)


@dataclass(frozen=True)
class _Work:
    """What a capture is made from, before the teacher is in memory."""

    config: DistillConfig
    progress: Progress
    plan: Plan
    folder: Path
    tokenizer: Any
    text: Any
    aligner: Any
    """What gives the teacher other tokens than the windows hold; none: it reads these."""
    facts: catalog.ModelFacts
    dtype: str

    @property
    def windows(self) -> dict[str, Any]:
        return {"train": self.text.train, "heldout": self.text.heldout}


def _lead(work: _Work, rank: Rank) -> None:
    """The capture of a process alone, or of the first of several: it holds the lock, and publishes the manifest when all is there."""
    config, plan = work.config, work.plan
    with CacheWriter(work.folder, plan) as writer, leading(writer, rank) as missing:
        publish(work.folder / "config.json", config.to_json())
        work.tokenizer.save_pretrained(work.folder / "tokenizer")
        num_rows = sum(shard.num_windows for shard in missing) * (plan.window_tokens - 1)
        entries = bytes_per_position(plan.codec, top_k=plan.top_k, vocab_size=plan.vocab_size)
        writer.check_space(1.2 * num_rows * (entries + (plan.hidden.bytes_per_position if plan.hidden else 0)))
        model, head = _load_teacher(work)
        speed = _capture_shards(work, writer, rank.share(missing), model, head)
        teacher = _last_words(work, model).model_copy(update={"read_tokens_per_s": speed})
        text = _text_record(work, model, head)
        is_on_gpu = head.weight_VD.is_cuda
        del model, head
        gc.collect()
        if is_on_gpu:
            torch.cuda.empty_cache()
        await_others(writer, rank, missing, work.progress)
        writer.finish(teacher=teacher, config=config.model_dump(mode="json"), text=text, versions=_versions())


def _join(work: _Work, rank: Rank) -> None:
    """The capture of every other process: its share of the shards, and waiting for the first."""
    writer = join(work.folder, work.plan, rank, work.progress, is_finished=lambda: finished_cache(work.folder, work.plan) is not None)
    if writer is None:
        return
    if writer.share:
        _capture_shards(work, writer, writer.share, *_load_teacher(work))
    writer.await_manifest(work.progress)


def _load_teacher(work: _Work) -> tuple[Any, Head]:
    """The teacher in memory and its head, checked to be what the capture takes them for."""
    teacher, device = work.config.teacher, str(pick_device(work.config.device))
    work.progress.phase(f"loading the teacher {teacher.model} ({show_count(work.facts.num_parameters)} parameters)")
    sees = work.config.text.image_column is not None
    model = models.load_model(teacher.model, revision=teacher.revision, dtype=work.dtype, device=device, sees_images=sees).eval()
    head = widened(read_head(model, probe_head(model, work.plan.vocab_size)))
    check_independence(model, work.plan.vocab_size, packing=work.config.text.packing and work.aligner is None, trained=False)
    return model, head


def _capture_shards(work: _Work, writer: CacheWriter, todo: list[ShardPlan], model: Any, head: Head) -> float | None:
    """Write these shards; returns tokens a second, writing included, or none when there were none."""
    plan, capture, progress, windows = work.plan, work.config.capture, work.progress, work.windows
    meter = MemoryMeter(head.weight_VD.device)
    total = sum(shard.num_windows for shard in plan.shards)
    done = total - sum(shard.num_windows for shard in todo)
    progress.phase(f"the teacher reads {total:,} windows" + (f"; {done:,} of them before now, or elsewhere" if done else ""))
    keeper = HiddenKeeper(plan.hidden, work.facts.hidden_size, head.weight_VD.device) if plan.hidden is not None else None
    started = time.monotonic()
    tokens = 0
    progress.at(done, total, "windows")
    for shard in todo:
        part = windows[shard.split]
        batches, order = [], longest_first(part.doc_lens, shard)
        for first in range(0, len(order), capture.batch_windows):
            progress.stop_if_asked()
            picked = order[first : first + capture.batch_windows]
            batches.append(_read_batch(work, model, head, part, picked, keeper))
            done += len(picked)
            tokens += view_reading.tokens_read(part, picked, plan.window_tokens)
            left = progress.at(done, total, "windows")
        entry = writer.write(shard, _columns(part, shard, order, batches))
        elapsed = time.monotonic() - started
        metrics.append(progress.run.metrics_path, _row(entry, done, elapsed, tokens / elapsed, meter, left))
    return tokens / (time.monotonic() - started) if tokens else None


def _row(entry: ShardEntry, done: int, elapsed: float, speed: float, meter: MemoryMeter, left: float | None) -> metrics.Row:
    return {
        "windows": done,
        "time_s": elapsed,
        "tokens_per_s": speed,
        "kept_mass": entry.sum_kept_mass / max(1, entry.num_positions),
        "teacher_nll": -entry.sum_gold_logprob / max(1, entry.num_positions),
        "memory_gib": meter.now_bytes() / 1024**3,
        "peak_memory_gib": meter.peak_bytes() / 1024**3,
        "disk_bytes": entry.num_bytes,
        "time_left_s": left,
    }


def longest_first(doc_lens: list[list[int]], shard: ShardPlan) -> NDArray[np.int64]:
    """The shard's windows by falling length, equal ones in their order: a batch is cut to its longest, so little padding is read."""
    lengths = [sum(doc_lens[window]) for window in range(shard.first_window, shard.first_window + shard.num_windows)]
    return shard.first_window + np.argsort([-length for length in lengths], kind="stable")


def _read_batch(work: _Work, model: Any, head: Head, windows: Any, picked: NDArray[np.int64], keeper: HiddenKeeper | None) -> SparseRows:
    plan = work.plan
    sizes: dict[str, Any] = {"top_k": plan.top_k, "vocab_size": plan.vocab_size, "num_exact": plan.num_exact}
    sizes["chunk_tokens"] = work.config.capture.head_chunk_tokens
    if windows.views is not None:
        sizes |= {"at_once": len(picked), "seed": _seed(windows.input_ids_NL[picked])}
        return view_reading.read_views(model, head, work.aligner, windows, picked, **sizes)
    longest = max(2, *(sum(windows.doc_lens[window]) for window in picked))
    ids_BL = torch.from_numpy(windows.input_ids_NL[picked, :longest].astype(np.int64))
    positions_BL = torch.from_numpy(np.stack([position_ids(windows.doc_lens[i], plan.window_tokens)[:longest] for i in picked]))
    targets_BP = torch.from_numpy(windows.targets_NP[picked, : longest - 1])
    sizes |= {"packing": plan.packing, "seed": _seed(ids_BL.numpy())}
    return read_batch(model, head, ids_BL, positions_BL, targets_BP, keeper=keeper, **sizes)


def _seed(ids: NDArray[Any]) -> int:
    """Of the text: the same draws after any resume."""
    return int(hashlib.sha256(ids.tobytes()).hexdigest()[:15], 16)


def _columns(windows: Any, shard: ShardPlan, order: NDArray[np.int64], batches: list[SparseRows]) -> ShardColumns:
    """Rows back to their places in the windows; positions without a target hold no entry."""
    picked = slice(shard.first_window, shard.first_window + shard.num_windows)
    targets_nP = windows.targets_NP[picked]

    def spread(name: str, dtype: Any, empty: float) -> Any:
        return spread_rows([getattr(batch, name) for batch in batches], dtype, empty)

    def spread_rows(parts: list[torch.Tensor], dtype: Any, empty: float) -> Any:
        rows = torch.cat(parts).numpy()
        full = np.full((*targets_nP.shape, *rows.shape[1:]), empty, dtype)
        full[targets_nP[order - shard.first_window]] = rows.astype(dtype)
        return full[np.argsort(order)]

    return ShardColumns(
        window_ids_n=np.arange(picked.start, picked.stop, dtype=np.uint64),
        input_ids_nL=windows.input_ids_NL[picked],
        doc_lens=windows.doc_lens[picked],
        token_bytes_nL=windows.token_bytes_NL[picked],
        targets_nP=targets_nP,
        teacher_ids_nPK=spread("ids_RK", np.uint32, EMPTY_ID),
        teacher_logprobs_nPK=spread("logprobs_RK", np.float32, -np.inf),
        tail_logsumexp_nPA=spread("tail_RA", np.float32, -np.inf),
        tail_mean_logprob_nPA=spread("tail_mean_RA", np.float16, 0.0),
        gold_logprob_nP=spread("gold_logprob_R", np.float32, 0.0),
        teacher_entropy_nP=spread("entropy_R", np.float16, 0.0),
        hidden={
            name: spread_rows([batch.hidden[name] for batch in batches], rows.numpy().dtype, 0) for name, rows in batches[0].hidden.items()
        },
    )


def _last_words(work: _Work, model: Any) -> Teacher:
    """What can only be asked while the teacher is in memory: continuations to read, and how fast it writes them."""
    config, tokenizer, heldout, facts = work.config, work.tokenizer, work.text.heldout, work.facts
    work.progress.phase("the teacher writes samples")
    prompts, read, others = view_reading.prompts(heldout, work.aligner, num_prompts=config.capture.num_samples)
    written = generation.continuations(model, tokenizer, read, num_tokens=config.capture.sample_tokens, others=others)
    return Teacher(
        model=config.teacher.model,
        architecture=facts.architecture,
        num_parameters=facts.num_parameters,
        disk_bytes=facts.disk_bytes or 0,
        dtype=work.dtype,
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        license=facts.license,
        generated_tokens_per_s=written.tokens_per_s,
        first_token_s=written.first_token_s,
        prompt_ids=tuple(tuple(prompt) for prompt in prompts),
        prompts=tuple(tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts),
        samples=tuple(written.texts),
    )


def _text_record(work: _Work, model: Any, head: Head) -> dict[str, Any]:
    """What became of the text; with a context, that and how the teacher does without it on the held-out text."""
    names = ("num_documents", "heldout_documents", "num_duplicates", "num_synthetic", "share_trained", "notes")
    record = {name: getattr(work.text, name) for name in names}
    if work.aligner is None:
        return record
    work.progress.phase("the teacher reads the held-out text as the student does")
    plan, capture = work.plan, work.config.capture
    kept: dict[str, Any] = {"top_k": plan.num_ranked, "vocab_size": plan.vocab_size, "chunk_tokens": capture.head_chunk_tokens}
    without = view_reading.without_views(model, head, work.aligner, work.text.heldout, at_once=capture.batch_windows, **kept)
    return record | work.aligner.to_record() | {"teacher_without_context": without}


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {module.__name__: module.__version__ for module in (torch, transformers, pl)}
