"""Reading a cache: constant memory, any window in milliseconds, a seeded order, and no number that the files do not hold."""
# B: windows asked for   L: tokens in a window   P = L - 1: positions   K: entries

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CacheError
from ..paths import file_sha256
from . import codecs
from .bounds import mixture_mass_bracket
from .manifest import TRANSLATED, UNALIGNED_ROWS, Manifest, Plan, ShardEntry, make_again
from .shards import read_rows, rows_per_group
from .tail import AT_ONE, Floats, cut_to, is_hard_label, kept_mass, tail_at, tail_bracket

COLUMNS = (
    "window_id",
    "input_ids",
    "doc_lens",
    "token_bytes",
    "targets",
    "tail_logsumexp",
    "tail_mean_logprob",
    "gold_logprob",
)
ROW_COLUMNS = (*COLUMNS, "teacher_ids", "teacher_logprobs")
MEMORY_BUDGET_BYTES = 256 * 1024**2
SAMPLE_WINDOWS = 32
SAMPLE_COLUMNS = ("teacher_logprobs", "tail_logsumexp", "tail_mean_logprob", "targets")

Batch = dict[str, NDArray]


class Cache:
    """A complete cache, opened for reading. One object serves one process: Polars must not be used after a fork."""

    def __init__(self, folder: Path, manifest: Manifest, *, budget_bytes: int | None = None) -> None:
        self.folder = folder
        self._budget_bytes = budget_bytes
        self.manifest = manifest
        self._groups: OrderedDict[tuple[str, int], Future[Batch]] = OrderedDict()
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._more_columns: tuple[str, ...] = ("mixture_slack",) if manifest.plan.merged == "mixture" else ()

    def read_also(self, column: str) -> None:
        """From now on rows hold this column of the shards too, under its name: what few ask for is not read for all."""
        if column not in self._more_columns:
            self._more_columns += (column,)
            self._groups.clear()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def plan(self) -> Plan:
        return self.manifest.plan

    @property
    def is_translated(self) -> bool:
        """Whether it speaks another tokenizer's tokens than the teacher's."""
        return TRANSLATED in self.plan.fingerprint.fields

    @property
    def has_hard_labels(self) -> bool:
        """Whether some rows to train on are the text's own next token alone, since no teacher's row is theirs (translated caches)."""
        return self.plan.fingerprint.fields.get(UNALIGNED_ROWS) == "hard"

    @property
    def packing(self) -> bool:
        return self.plan.packing

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    def shard_path(self, entry: ShardEntry) -> Path:
        return self.folder / "shards" / f"{entry.name}.parquet"

    def num_windows(self, split: str) -> int:
        return self.manifest.num_windows(split)

    def verify(self) -> None:
        """Read every byte and compare with the checksums. Raises CacheError that names the first damaged shard."""
        for entry in self.manifest.entries:
            found = file_sha256(self.shard_path(entry))
            if found != entry.sha256:
                raise CacheError(
                    f"cache {self.name}: shard {entry.name} is damaged: sha256 {found[:12]}…, the manifest says {entry.sha256[:12]}…. "
                    f"{make_again(self.folder)}"
                )

    def rows(
        self, split: str, indices: list[int] | NDArray, *, temperature: float = 1.0, top_k: int | None = None, with_drawn: bool = False
    ) -> Batch:
        """Windows by number within their split, with the teacher's tail at a temperature.

        input_ids [B, L], position_ids [B, L] (0 again at every document), token_bytes [B, L], targets [B, P], teacher_ids [B, P, K],
        teacher_logprobs [B, P, K] (natural log, T = 1), teacher_tail [B, P] (log-sum-exp at `temperature`), gold_logprob [B, P].
        Empty entries: id 0, log-probability -inf. K counts the most likely entries only, unless with_drawn asks for the others of a
        'topk+sample' cache too: then these hold their log weights, and nothing is left in the tail.
        Raises CacheError for a top_k above the stored one, ConfigError for a temperature outside the stored range.
        """
        ranked = self.plan.num_ranked
        has_drawn = with_drawn and self.plan.num_exact is not None
        self.check_asked(top_k, temperature, has_drawn=has_drawn)
        picked = [self.stored(split, int(index)) for index in indices]
        batch = {name: np.stack([row[name] for row in picked]) for name in ROW_COLUMNS if name != "doc_lens"}
        tail = tail_at(batch.pop("tail_logsumexp"), batch.pop("tail_mean_logprob"), temperature)
        logprobs = batch["teacher_logprobs"].astype(np.float32, copy=False)
        if has_drawn:
            batch["teacher_logprobs"], batch["teacher_tail"] = logprobs, np.full_like(tail, -np.inf)
            batch["teacher_ids"] = np.where(np.isneginf(logprobs), 0, batch["teacher_ids"]).astype(np.int64)
        else:
            cut = cut_to(logprobs[..., :ranked], tail, temperature, top_k=top_k or ranked)
            batch["teacher_logprobs"], batch["teacher_tail"] = cut
            batch["teacher_ids"] = batch["teacher_ids"][..., : top_k or ranked].astype(np.int64)
            batch["teacher_ids"][~batch["targets"]] = 0
        batch |= {name: np.stack([row[name] for row in picked]) for name in self._more_columns}
        batch["input_ids"] = batch["input_ids"].astype(np.int64)
        batch["position_ids"] = np.stack([position_ids(list(row["doc_lens"]), self.plan.window_tokens) for row in picked])
        return batch

    def check_asked(self, top_k: int | None, temperature: float, *, has_drawn: bool) -> None:
        ranked = self.plan.num_ranked
        if top_k is not None and top_k > ranked:
            raise CacheError(f"cache {self.name} holds {ranked} entries per position, loss.top_k asks for {top_k}. Ask for fewer.")
        if has_drawn and (top_k is not None or temperature != 1.0):
            asked = f"loss.top_k {top_k}" if top_k is not None else f"loss.temperature {temperature:g}"
            raise CacheError(
                f"cache {self.name} was captured with select 'topk+sample': its weights are right for all entries at temperature 1, "
                f"not for {asked}. Leave that at its default, or capture with --capture.select topk."
            )

    def order(self, split: str, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """A shuffle of the split's windows that reads few row groups at a time.

        Row groups are shuffled, taken together while they fit the memory budget, and windows shuffled within; a cache that
        fits altogether is shuffled freely.
        """
        random = np.random.default_rng([seed, epoch])
        starts = np.cumsum([0] + [entry.num_windows for entry in self.manifest.entries_of(split)])
        step = rows_per_group(self.plan.window_tokens)
        groups = [np.arange(first, min(first + step, end)) for start, end in pairwise(starts) for first in range(start, end, step)]
        groups = [groups[i] for i in random.permutation(len(groups))]
        together = max(1, self._capacity * 3 // 4)  # the rest is room for what is read ahead
        order = [random.permutation(np.concatenate(groups[i : i + together])) for i in range(0, len(groups), together)]
        return np.concatenate(order) if order else np.empty(0, np.int64)

    def kept_mass(self, temperature: float, *, top_k: int | None = None) -> Floats:
        """Kept mass at each position of a fixed sample of up to 32 training windows, [positions]. Raises ConfigError outside [0.5, 8]."""
        return self.sampled_mass(self.log_tail(temperature), temperature, top_k)

    def log_tail(self, temperature: float) -> Floats:
        """Tail log-sum-exp at each position of that sample, [positions], nats."""
        sample, targets = self.sample
        return tail_at(sample["tail_logsumexp"][targets], sample["tail_mean_logprob"][targets], temperature)

    def kept_mass_bracket(self, temperature: float, *, top_k: int | None = None) -> tuple[Floats, Floats]:
        """(lowest, highest) kept mass that the stored tail allows at each position of that sample: the error bar of kept_mass."""
        sample, targets = self.sample
        values, slopes = sample["tail_logsumexp"][targets], sample["tail_mean_logprob"][targets]
        if self.plan.merged == "mixture":
            ranked = sample["teacher_logprobs"][targets].astype(np.float32)
            return mixture_mass_bracket(ranked, values, sample["mixture_slack"][targets], temperature, top_k=top_k or self.plan.top_k)
        low, high = tail_bracket(values, slopes, temperature)
        return self.sampled_mass(high, temperature, top_k), self.sampled_mass(low, temperature, top_k)

    def mixture_words(self, temperature: float) -> str:
        """What is not known of a mixture's tail at a temperature, in words; '' for a captured cache, and at T = 1."""
        if self.plan.merged != "mixture" or temperature == 1:
            return ""
        low, high = (float(bound.mean()) for bound in self.kept_mass_bracket(temperature))
        return (
            f"cache {self.name} is a mixture: what its teachers' tails hold together at T = {temperature:g} is not known exactly. Kept "
            f"mass there: {float(self.kept_mass(temperature).mean()):.3f}, certainly between {low:.3f} and {high:.3f}. At T = 1 it is exact"
        )

    def sampled_mass(self, tail: Floats, temperature: float, top_k: int | None) -> Floats:
        sample, targets = self.sample
        ranked = self.plan.num_ranked
        logprobs = sample["teacher_logprobs"][targets][:, :ranked].astype(np.float32)
        logprobs, tail = cut_to(logprobs, tail, temperature, top_k=top_k or ranked)
        return kept_mass(logprobs, tail, temperature)

    @cached_property
    def sample(self) -> tuple[Batch, NDArray[np.bool_]]:
        """SAMPLE_COLUMNS of a fixed sample of up to 32 training windows, and which of their positions are learned from."""
        total = self.num_windows("train")
        picked = np.unique(np.linspace(0, total - 1, min(SAMPLE_WINDOWS, total)).astype(int))
        rows = [self.stored("train", int(index)) for index in picked]
        sample = {name: np.stack([row[name] for row in rows]) for name in (*SAMPLE_COLUMNS, *self._more_columns)}
        targets = sample["targets"]
        if self.has_hard_labels:
            targets = targets & ~is_hard_label(sample["teacher_logprobs"], sample["tail_logsumexp"][..., AT_ONE])
        return sample, targets

    @property
    def _capacity(self) -> int:
        """Row groups held at once."""
        group_tokens = rows_per_group(self.plan.window_tokens) * self.plan.window_tokens
        per_token = self.plan.top_k * (6 if self.plan.codec == "exact" else 8) + 76
        if self.plan.hidden is not None and set(self._more_columns) & set(self.plan.hidden.columns):
            per_token += self.plan.hidden.bytes_per_position
        return max(1, (self._budget_bytes or MEMORY_BUDGET_BYTES) // (group_tokens * per_token))

    def stored(self, split: str, index: int) -> Batch:
        """One window's ROW_COLUMNS as they are stored. Raises CacheError for one that is not there."""
        entry, number, place = self._whereabouts(split, index)
        group = self._group(entry, number)
        return {name: group[name][place] for name in (*ROW_COLUMNS, *self._more_columns)}

    def _whereabouts(self, split: str, index: int) -> tuple[ShardEntry, int, int]:
        """(the shard's entry, the number of the row group in it, the row in the group)."""
        entries, ends = self._splits.get(split, ([], np.zeros(0, np.int64)))
        total = int(ends[-1]) if len(ends) else 0
        if not 0 <= index < total:
            raise CacheError(f"cache {self.name}: no window {index} in split '{split}', which has {total}.")
        shard = int(np.searchsorted(ends, index, side="right"))
        number, place = divmod(index - int(ends[shard]) + entries[shard].num_windows, rows_per_group(self.plan.window_tokens))
        return entries[shard], number, place

    @cached_property
    def _splits(self) -> dict[str, tuple[list[ShardEntry], NDArray[np.int64]]]:
        """Entries of each split, and how many windows there are up to the end of each."""
        entries_of = {split: self.manifest.entries_of(split) for split in dict.fromkeys(shard.split for shard in self.plan.shards)}
        return {split: (entries, np.cumsum([entry.num_windows for entry in entries])) for split, entries in entries_of.items()}

    def ahead(self, split: str, indices: list[int] | NDArray) -> None:
        """Begin to read the row groups of windows that will be asked for soon, in a thread; returns at once.

        A thread of this process, not a worker process: Polars must not be used after a fork. What goes wrong is raised by rows().
        """
        for index in indices[: self._capacity // 4]:
            entry, number, _ = self._whereabouts(split, int(index))
            self._future(entry, number, self._thread.submit)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix=f"cache-{self.name}")

    def _group(self, entry: ShardEntry, number: int) -> Batch:
        try:
            return self._future(entry, number, _now).result()
        except BaseException:
            self._groups.pop((entry.name, number), None)  # read again if it is asked for again
            raise

    def _future(self, entry: ShardEntry, number: int, begin: Callable[..., "Future[Batch]"]) -> "Future[Batch]":
        """The row group, there or on its way; begun with `begin` if it is neither. The least recently asked for make room."""
        if os.getpid() != self._pid:
            raise AssertionError("a cache was read in a forked process: Polars hangs there; open it again in a spawned one")
        key = (entry.name, number)
        with self._guard:
            if key not in self._groups:
                self._groups[key] = begin(self._read_group, entry, number)
                while len(self._groups) > self._capacity:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(key)
            return self._groups[key]

    def _read_group(self, entry: ShardEntry, number: int) -> Batch:
        plan, step = self.plan, rows_per_group(self.plan.window_tokens)
        names = [*COLUMNS, *self._more_columns]
        group = read_rows(self.shard_path(entry), number * step, step, [*names, *codecs.COLUMNS_OF[plan.codec]])
        if plan.hidden is not None and plan.hidden.codec == "int8":
            for name in set(self._more_columns) & {plan.hidden.column(layer) for layer in plan.hidden.layers}:
                group[name] = np.frombuffer(b"".join(group[name]), np.int8).reshape(*group["targets"].shape, plan.hidden.width)
        ids, logprobs = codecs.decode(plan.codec, group, group["targets"], top_k=plan.top_k, vocab_size=plan.vocab_size)
        return {name: group[name] for name in names} | {"teacher_ids": ids, "teacher_logprobs": logprobs}


def _now(work: Callable[..., Batch], *arguments: Any) -> "Future[Batch]":
    """A future that is done: the work is carried out by the caller."""
    future: Future[Batch] = Future()
    future.set_result(work(*arguments))
    return future


def position_ids(doc_lens: list[int], window_tokens: int) -> NDArray[np.int64]:
    """0, 1, 2, … within each document; the padding at the end counts as one more document, [L]."""
    lengths = [*doc_lens, window_tokens - sum(doc_lens)]
    return np.concatenate([np.arange(length) for length in lengths])
