"""`distill bench train`: one optimizer step of a small student, with the fused loss, and with what one would otherwise write.

A fresh Qwen3-like student with a tied head, AdamW, one batch from a cache on disk. Three steps take turns on the same student: the
fused loss; the same loss by full logits, log_softmax and gather; and hard labels by transformers' own loss. Time is CPU time of one
process. The peak is what one step adds to a fresh process. Losses that disagree get no speed.
"""

# B: windows   L: tokens in a window   P = L - 1   N = B x P   V: vocabulary   D: hidden size   K: stored teacher entries per token
import functools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import metrics
from ..batches import Collate, Tensors
from ..cache import CacheWriter, Fingerprint, Plan, ShardColumns, ShardPlan, open_cache
from ..cache.manifest import Teacher
from ..cache.tail import ANCHORS
from ..config import LossConfig
from ..device import MemoryMeter, can_reset_peak, pick_device
from ..errors import ConfigError
from ..heads import head_inputs, probe_head, read_head
from ..losses import Workspace, topk_kl
from ..units import show_count, show_gib
from .measure import Peak, device_name_of, free_bytes, in_own_process

SAME = 1e-4
"""Relative difference of two losses that are the same: float32, summed over thousands of tokens."""


class Size(NamedTuple):
    num_windows: int = 8
    window_tokens: int = 512
    vocab_size: int = 151_936
    hidden_size: int = 256
    num_layers: int = 4
    top_k: int = 100

    def logits_bytes(self) -> int:
        return 4 * self.num_windows * self.window_tokens * self.vocab_size


FULL = Size()
"""A student of 42M parameters."""
QUICK = Size(num_windows=4, window_tokens=64, vocab_size=8192, hidden_size=64, num_layers=2, top_k=20)
LOGITS_AT_ONCE = 4.5
"""How many tensors as large as the logits the others hold at once: logits, log-probabilities, and the gradients of both; with room."""
METHODS = ("fused", "full logits, gather", "hard labels, transformers")


def write_cache(folder: Path, size: Size) -> None:
    """A made-up cache: time and memory do not depend on what it holds."""
    dice, shape = np.random.default_rng(0), (size.num_windows, size.window_tokens - 1)
    first = dice.integers(0, size.vocab_size, (*shape, 1))
    ids = (first + size.vocab_size // size.top_k * np.arange(size.top_k)) % size.vocab_size
    logits = -np.sort(-2 * dice.standard_normal((*shape, size.top_k)), axis=-1)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True)) - 0.1
    tail = np.full((*shape, len(ANCHORS)), np.log(-np.expm1(-0.1)))
    shard = ShardPlan(name="train-00000", split="train", first_window=0, num_windows=size.num_windows)
    plan = Plan(
        fingerprint=Fingerprint(fields={}),
        top_k=size.top_k,
        vocab_size=size.vocab_size,
        window_tokens=size.window_tokens,
        packing=False,
        codec="exact",
        shards=(shard,),
    )
    columns = ShardColumns(
        window_ids_n=np.arange(size.num_windows, dtype=np.uint64),
        input_ids_nL=dice.integers(0, size.vocab_size, (size.num_windows, size.window_tokens)).astype(np.uint32),
        doc_lens=[[size.window_tokens]] * size.num_windows,
        token_bytes_nL=np.ones((size.num_windows, size.window_tokens), np.uint16),
        targets_nP=np.ones(shape, bool),
        teacher_ids_nPK=ids.astype(np.uint32),
        teacher_logprobs_nPK=logprobs.astype(np.float32),
        tail_logsumexp_nPA=tail.astype(np.float32),
        tail_mean_logprob_nPA=np.full(tail.shape, -12.0, np.float16),
        gold_logprob_nP=logprobs[..., 0].astype(np.float32),
        teacher_entropy_nP=np.ones(shape, np.float16),
    )
    with CacheWriter(folder, plan) as writer:
        writer.write(shard, columns)
        teacher = Teacher(model="benchmark", architecture="none", num_parameters=0, disk_bytes=0, dtype="float32")
        writer.finish(teacher=teacher, config={}, text={}, versions={})


class Bench:
    """The student, its optimizer, and the batch."""

    def __init__(self, size: Size, folder: Path) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            intermediate_size=3 * size.hidden_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=size.hidden_size // 4,
            tie_word_embeddings=True,
        )
        self.student: Any = Qwen3ForCausalLM(config).float().eval()
        self.ops = probe_head(self.student, size.vocab_size)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-5)
        self.collate = Collate(open_cache(folder), LossConfig(tail="renormalize"))
        self.windows = list(range(size.num_windows))
        self.batch = self.collate(self.windows)
        self.workspace = Workspace()

    def loss(self, method: str) -> torch.Tensor:
        """Mean over the tokens, with a graph."""
        return {METHODS[0]: self.fused, METHODS[1]: self.gathered, METHODS[2]: self.hard}[method](self.batch)

    def fused(self, batch: Tensors, *, kl_weight: float = 1.0, ce_weight: float = 0.0) -> torch.Tensor:
        hidden_BLD = head_inputs(self.student, input_ids=batch["input_ids"])
        return topk_kl(
            hidden_BLD[:, :-1].flatten(0, 1),
            read_head(self.student, self.ops).weight_VD,
            batch["teacher_ids"].flatten(0, 1),
            batch["teacher_logprobs"].flatten(0, 1),
            teacher_tail_N=batch["teacher_tail"].flatten(),
            labels_N=batch["labels"].flatten(),
            tail="renormalize",
            kl_weight=kl_weight,
            ce_weight=ce_weight,
            divisor=batch["labels"].numel(),
            workspace=self.workspace,
        ).loss

    def gathered(self, batch: Tensors) -> torch.Tensor:
        """Full logits, log_softmax, gather, autograd."""
        log_p_NV = torch.log_softmax(self.student(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1), dim=-1)
        log_q_NK = torch.log_softmax(batch["teacher_logprobs"].flatten(0, 1), dim=-1)
        return (log_q_NK.exp() * (log_q_NK - log_p_NV.gather(-1, batch["teacher_ids"].flatten(0, 1).long()))).sum() / len(log_p_NV)

    def hard(self, batch: Tensors) -> torch.Tensor:
        return self.student(input_ids=batch["input_ids"], labels=batch["input_ids"].long()).loss

    def step(self, method: str) -> None:
        self.optimizer.zero_grad()
        self.loss(method).backward()
        self.optimizer.step()

    def agree(self, methods: list[str]) -> dict[str, bool]:
        """Whether each loss is what the fused one says it is."""
        with torch.no_grad():
            mine = {METHODS[0]: self.fused(self.batch), METHODS[2]: self.fused(self.batch, kl_weight=0.0, ce_weight=1.0)}
            mine[METHODS[1]] = mine[METHODS[0]]
            return {method: abs(float(self.loss(method) / mine[method]) - 1) <= SAME for method in methods}


def bench_train(size: Size = FULL, *, threads: int = 1, repeats: int = 3, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """{'methods': rows with seconds, ratio to the fused step and peak bytes; 'shares' of data and metrics; the machine}.

    Raises ConfigError where the full logits of the others would not fit into the memory that is free, and where even the fused step
    is killed for its memory; another step that is killed all the same gets no time.
    """
    say = progress or (lambda _: None)
    needed, free = LOGITS_AT_ONCE * size.logits_bytes(), free_bytes(torch.device("cpu"))
    if needed > free:
        raise ConfigError(
            f"bench train: full logits of {size.num_windows} x {size.window_tokens} tokens want about {show_gib(needed)},"
            f" {show_gib(free)} are free. Use --windows with fewer than {size.num_windows}, or --quick."
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "cache"
            write_cache(folder, size)
            say("memory")
            peaks = [_peak(method, size, folder, threads) for method in METHODS]
            if not peaks[0].fits:
                raise ConfigError(f"bench train: not even the fused step of {size.num_windows} windows fits here. Use --quick.")
            say("time")
            return _timed(Bench(size, folder), size, peaks, Path(place) / "metrics.jsonl", repeats) | {"num_threads": threads}
    finally:
        torch.set_num_threads(before)


def _timed(bench: Bench, size: Size, peaks: list[Peak], metrics_path: Path, repeats: int) -> dict[str, Any]:
    fitting = [method for method, peak in zip(METHODS, peaks, strict=True) if peak.fits]
    agree = bench.agree(fitting)
    right = [method for method in fitting if agree[method]]
    rounds = [{method: _seconds(functools.partial(bench.step, method)) for method in right} for _ in range(repeats + 1)][1:]
    median = {method: statistics.median(row[method] for row in rounds) for method in right}
    row = {"step": 1, "time_s": 1.0, "loss": 1.0, "kl": 1.0, "ce": 1.0, "floor": 0.0, "grad_norm": 1.0, "tokens_per_s": 1.0}
    data_s = statistics.median(_seconds(lambda: bench.collate(bench.windows)) for _ in range(repeats))
    metrics_s = statistics.median(_seconds(lambda: metrics.append(metrics_path, row)) for _ in range(20))
    step_s = median.get(METHODS[0])
    rows = [
        {
            "method": method,
            "is_right": agree.get(method),
            "fits": peak.fits,
            "median_s": median.get(method),
            "fused_over_it": step_s / median[method] if step_s and method in median else None,
            "peak_bytes": peak.measured_bytes,
        }
        for method, peak in zip(METHODS, peaks, strict=True)
    ]
    return {
        "methods": rows,
        "data_share": data_s / step_s if step_s else None,
        "metrics_share": metrics_s / step_s if step_s else None,
        "num_parameters": sum(weight.numel() for weight in bench.student.parameters()),
        **size._asdict(),
        "device": device_name_of(torch.device("cpu")),
        "torch": torch.__version__,
    }


def _seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _peak(method: str, size: Size, folder: Path, threads: int) -> Peak:
    """Most bytes that a step adds to a fresh process, gradients and optimizer state there before."""
    if not can_reset_peak():
        return Peak()
    call = functools.partial(_peak_here, method, size, folder, threads)
    measured = in_own_process(multiprocessing.get_context("spawn"), call)
    return Peak(measured, fits=measured is not None)


def _peak_here(method: str, size: Size, folder: Path, threads: int) -> int:
    torch.set_num_threads(threads)
    bench = Bench(size, folder)
    for weight in bench.student.parameters():
        weight.grad = torch.zeros_like(weight)
    bench.optimizer.step()
    meter = MemoryMeter(pick_device("cpu"))
    meter.reset_peak()
    before = meter.now_bytes()
    bench.step(method)
    return meter.peak_bytes() - before


def train_table(found: dict[str, Any]) -> str:
    """The same as plain text."""
    lines = [
        f"One step of a student: {show_count(found['num_parameters'])} parameters, {found['num_windows']} x {found['window_tokens']}"
        f" tokens, vocabulary {found['vocab_size']:,}, top {found['top_k']}, {found['num_threads']} thread(s)",
        f"  {'loss':<28}{'step':>10}{'fused / it':>12}{'peak':>12}",
    ]
    for row in found["methods"]:
        if row["median_s"] is None:
            speed = f"{'does not fit' if not row['fits'] else 'wrong':>22}"
        else:
            ratio = "-" if row["fused_over_it"] is None else f"{row['fused_over_it']:.2f}"
            speed = f"{row['median_s']:>8.2f} s{ratio:>12}"
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f} MiB"
        lines.append(f"  {row['method']:<28}{speed}{peak:>12}")
    if found["data_share"] is not None:
        lines.append(f"Of the fused step: reading the cache {found['data_share']:.2%}, writing metrics {found['metrics_share']:.3%}.")
    return "\n".join([*lines, f"{found['device']}, torch {found['torch']}. CPU time; peak beyond weights, gradients and optimizer state."])
