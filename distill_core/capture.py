"""Capture: the teacher reads the text once; what it thought of every position goes into a cache; then it leaves memory.

1 text to windows   2 fingerprint and frozen plan   3 teacher into memory, checked   4 shard by shard: top K, tail, entropy
5 samples and speed   6 manifest
"""
# n: windows in a shard   B: windows in a batch   L: tokens in a window   P = L - 1: positions   R: positions with a target in a batch
# N: all windows   D: hidden size   K: entries kept

import gc
import hashlib
import json
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
from numpy.typing import NDArray

from . import catalog, corpus, generation, metrics, models
from .cache import Cache, CacheWriter, Fingerprint, Manifest, Plan, ShardColumns, ShardEntry, ShardPlan, open_cache, verify_records
from .cache.codecs import EMPTY_ID
from .cache.estimate import bytes_per_position
from .cache.manifest import Teacher
from .cache.reader import position_ids
from .catalog import dtype_in_memory
from .config import DistillConfig
from .device import MemoryMeter, pick_device
from .errors import CacheError, ConfigError
from .heads import Head, check_documents_kept_apart, probe_head, read_head
from .paths import caches_dir, checked_name, publish
from .progress import Progress
from .sparse import SparseRows, read_batch, widened
from .units import show_count, show_disk


def run_capture(config: DistillConfig, progress: Progress) -> Cache:
    """Make the cache that the config describes, or go on with it, or find it finished. Returns it opened.

    Raises TextError, ModelError, CacheError; Stopped after a stop was asked for, finished shards kept.
    """
    progress.phase("reading the text")
    tokenizer = models.load_tokenizer(config.teacher.model, revision=config.teacher.revision)
    text = corpus.build_windows(config.text, tokenizer)
    for note in text.notes:
        progress.say(note)
    windows = {"train": text.train, "heldout": text.heldout}

    progress.phase("taking the teacher's fingerprint")
    device = pick_device(config.device)
    facts = catalog.facts(config.teacher.model, revision=config.teacher.revision)
    dtype = dtype_in_memory(facts, config.teacher.dtype, str(device))
    plan = make_plan(
        config, windows, tokenizer, weights=models.weights_fingerprint(config.teacher.model, config.teacher.revision), dtype=dtype
    )
    folder = caches_dir() / checked_name(config.capture.name or default_name(config, plan), "cache")
    finished = _finished(folder, plan)
    if finished is not None:
        progress.say(f"cache {folder.name} is already complete and unchanged: the teacher is not needed")
        return finished

    with CacheWriter(folder, plan) as writer:
        publish(folder / "config.json", config.to_json())
        tokenizer.save_pretrained(folder / "tokenizer")
        missing = writer.missing()
        num_rows = sum(shard.num_windows for shard in missing) * (plan.window_tokens - 1)
        writer.check_space(1.2 * num_rows * bytes_per_position(plan.codec, top_k=plan.top_k, vocab_size=plan.vocab_size))
        progress.phase(f"loading the teacher {config.teacher.model} ({show_count(facts.num_parameters)} parameters)")
        model = models.load_model(config.teacher.model, revision=config.teacher.revision, dtype=dtype, device=str(device)).eval()
        head = widened(read_head(model, probe_head(model, plan.vocab_size)))
        if config.text.packing:
            check_documents_kept_apart(model, plan.vocab_size)
        speed = _capture_shards(config, progress, writer, missing, windows, model, head)
        teacher = _last_words(config, progress, model, tokenizer, text.heldout, facts, dtype)
        teacher = teacher.model_copy(update={"read_tokens_per_s": speed})
        del model, head
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        writer.finish(teacher=teacher, config=config.model_dump(mode="json"), text=_text_record(text), versions=_versions())
    return open_cache(folder)


def make_plan(config: DistillConfig, windows: dict[str, Any], tokenizer: Any, *, weights: dict[str, Any], dtype: str) -> Plan:
    """The frozen plan: which windows go into which shard, and all that decides what the teacher says."""
    vocabulary = models.vocabulary(tokenizer)
    vocab_size = max(vocabulary.values()) + 1
    num_exact = config.capture.num_ranked if config.capture.select != "topk" else None
    if num_exact is not None and config.capture.top_k >= vocab_size:
        raise ConfigError(f"capture.top_k {config.capture.top_k} holds the whole vocabulary of {vocab_size:,}: use capture.select 'topk'.")
    template = getattr(tokenizer, "chat_template", None)
    fields = {
        "teacher.model": config.teacher.model,
        "teacher.dtype": dtype,
        "teacher.commit": str(weights["commit"]),
        **{f"teacher.{name}.sha256": sha256 for name, sha256 in weights["files"].items()},
        "tokenizer.vocabulary_sha256": _sha256(json.dumps(sorted(vocabulary.items(), key=lambda item: item[1]))),
        "tokenizer.chat_template_sha256": _sha256(json.dumps(template, sort_keys=True)),
        "text.source": config.text.source,
        "text.window_tokens": str(config.text.window_tokens),
        "text.packing": str(config.text.packing),
        "text.windows_sha256": _windows_sha256(windows),
        "capture.top_k": str(min(config.capture.top_k, vocab_size)),
        "capture.select": config.capture.select,
        "capture.num_exact": str(num_exact),
        "capture.codec": config.capture.codec,
        "capture.batch_windows": str(config.capture.batch_windows),
        "capture.windows_per_shard": str(config.capture.windows_per_shard),
    }
    shards = []
    for split, part in windows.items():
        size = config.capture.windows_per_shard
        for number, first in enumerate(range(0, len(part), size)):
            shards.append(
                ShardPlan(name=f"{split}-{number:05d}", split=split, first_window=first, num_windows=min(size, len(part) - first))
            )
    return Plan(
        fingerprint=Fingerprint(fields=fields),
        top_k=min(config.capture.top_k, vocab_size),
        num_exact=num_exact,
        vocab_size=vocab_size,
        window_tokens=config.text.window_tokens,
        packing=config.text.packing,
        codec=config.capture.codec,
        shards=tuple(shards),
    )


def default_name(config: DistillConfig, plan: Plan) -> str:
    """Readable, and different whenever the contents would be."""
    parts = [Path(source).name.removesuffix(".gguf") for source in (config.teacher.model, config.text.source)]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(dict.fromkeys(parts))).strip("-").lower()[:60]
    return f"{slug}-{plan.fingerprint.sha256()[:8]}"


def _finished(folder: Path, plan: Plan) -> Cache | None:
    """The cache if it is complete, of this plan, and every byte is as it was written."""
    if not (folder / "manifest.json").exists():
        return None
    try:
        cache = open_cache(folder)
        cache.verify()
        verify_records(cache)
    except CacheError:
        return None  # the writer mends it: damaged shards go to quarantine and are captured again
    return cache if cache.plan == plan else None  # the writer names the fields that differ


def _capture_shards(
    config: DistillConfig,
    progress: Progress,
    writer: CacheWriter,
    missing: list[ShardPlan],
    windows: dict[str, Any],
    model: Any,
    head: Head,
) -> float | None:
    """Write every missing shard; returns tokens a second, writing included, or none when none was missing."""
    plan, meter = writer.plan, MemoryMeter(head.weight_VD.device)
    total = sum(shard.num_windows for shard in plan.shards)
    done = total - sum(shard.num_windows for shard in missing)
    progress.phase(f"the teacher reads {total:,} windows" + (f"; {done:,} were read before" if done else ""))
    started = time.monotonic()
    tokens = 0
    progress.at(done, total, "windows")
    for shard in missing:
        part = windows[shard.split]
        batches, order = [], longest_first(part.doc_lens, shard)
        for first in range(0, len(order), config.capture.batch_windows):
            progress.stop_if_asked()
            picked = order[first : first + config.capture.batch_windows]
            batches.append(_read_batch(model, head, part, picked, plan, config.capture.head_chunk_tokens))
            done += len(picked)
            tokens += len(picked) * plan.window_tokens
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


def _read_batch(model: Any, head: Head, windows: Any, picked: NDArray[np.int64], plan: Plan, chunk_tokens: int) -> SparseRows:
    longest = max(2, *(sum(windows.doc_lens[window]) for window in picked))
    ids_BL = torch.from_numpy(windows.input_ids_NL[picked, :longest].astype(np.int64))
    positions_BL = torch.from_numpy(np.stack([position_ids(windows.doc_lens[i], plan.window_tokens)[:longest] for i in picked]))
    targets_BP = torch.from_numpy(windows.targets_NP[picked, : longest - 1])
    sizes: dict[str, Any] = {"packing": plan.packing, "top_k": plan.top_k, "vocab_size": plan.vocab_size, "chunk_tokens": chunk_tokens}
    seed = int(hashlib.sha256(ids_BL.numpy().tobytes()).hexdigest()[:15], 16)  # of the text: the same draws after any resume
    return read_batch(model, head, ids_BL, positions_BL, targets_BP, **sizes, num_exact=plan.num_exact, seed=seed)


def _columns(windows: Any, shard: ShardPlan, order: NDArray[np.int64], batches: list[SparseRows]) -> ShardColumns:
    """Rows back to their places in the windows; positions without a target hold no entry."""
    picked = slice(shard.first_window, shard.first_window + shard.num_windows)
    targets_nP = windows.targets_NP[picked]

    def spread(name: str, dtype: Any, empty: float) -> Any:
        rows = torch.cat([getattr(batch, name) for batch in batches]).numpy()
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
    )


def _last_words(
    config: DistillConfig, progress: Progress, model: Any, tokenizer: Any, heldout: Any, facts: catalog.ModelFacts, dtype: str
) -> Teacher:
    """What can only be asked while the teacher is in memory: continuations to read, and how fast it writes them."""
    progress.phase("the teacher writes samples")
    lengths = [lens[0] for lens in heldout.doc_lens]
    prompts = generation.beginnings(heldout.input_ids_NL.tolist(), lengths, num_prompts=config.capture.num_samples)
    samples, speed = generation.continuations(model, tokenizer, prompts, num_tokens=config.capture.sample_tokens)
    return Teacher(
        model=config.teacher.model,
        architecture=facts.architecture,
        num_parameters=facts.num_parameters,
        disk_bytes=facts.disk_bytes or 0,
        dtype=dtype,
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        license=facts.license,
        generated_tokens_per_s=speed,
        prompt_ids=tuple(tuple(prompt) for prompt in prompts),
        prompts=tuple(tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts),
        samples=tuple(samples),
    )


def _text_record(text: Any) -> dict[str, Any]:
    names = ("num_documents", "heldout_documents", "num_duplicates", "share_trained", "notes")
    return {name: getattr(text, name) for name in names}


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "polars": pl.__version__,
    }


def _windows_sha256(windows: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for split, part in windows.items():
        digest.update(split.encode())
        for array in (part.input_ids_NL, part.targets_NP):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(json.dumps([[int(length) for length in lens] for lens in part.doc_lens]).encode())
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def describe(manifest: Manifest) -> str:
    """One line about a finished cache."""
    return (
        f"{manifest.num_windows('train'):,} windows to train on, {manifest.num_windows('heldout'):,} held out, "
        f"{manifest.num_positions('train') + manifest.num_positions('heldout'):,} positions, {show_disk(manifest.num_bytes)}, "
        f"kept mass {manifest.mean('kept_mass', 'train'):.3f} at T = 1"
    )
