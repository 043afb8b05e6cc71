"""Capture: row t speaks of token t+1, its own document the only context; kills, stops and changes are survived or named."""

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from steps import capture_here, carry_out

from distill_core import capture, models, paths
from distill_core.batches import Collate, Visits
from distill_core.cache import open_cache
from distill_core.config import LossConfig, with_overrides
from distill_core.errors import CacheError, TextError
from distill_core.runs import create_run, list_runs


def shard_checksums(home):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((home / "caches" / "small" / "shards").iterdir())}


def documents_of(row):
    starts = [i for i, position in enumerate(row["position_ids"]) if position == 0] + [len(row["position_ids"])]
    return list(itertools.pairwise(starts))


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_alignment_against_full_logits_of_each_document_alone(small_cache, split):
    """The truth: every document on its own through the plain model, full float64 log-softmax, shifted by one."""
    model = models.load_model("builtin", dtype="float32").eval()
    seen = 0
    for index in (0, 5):
        row = {name: values[0] for name, values in small_cache.rows(split, [index]).items()}
        for start, end in documents_of(row):
            ids = torch.tensor(row["input_ids"][None, start:end])
            logprobs = model(ids).logits[0].detach().double().log_softmax(-1).numpy()
            for t in range(start, end - 1):
                if not row["targets"][t]:
                    continue
                truth = logprobs[t - start]
                assert set(row["teacher_ids"][t]) == set(np.argsort(-truth, kind="stable")[:20])
                np.testing.assert_allclose(row["teacher_logprobs"][t], truth[row["teacher_ids"][t]], rtol=2e-3, atol=2e-3)
                assert row["gold_logprob"][t] == pytest.approx(truth[row["input_ids"][t + 1]], abs=2e-3)
                rest = np.delete(truth, row["teacher_ids"][t])
                assert row["teacher_tail"][t] == pytest.approx(np.log(np.exp(rest).sum()), abs=5e-3)
                seen += 1
            assert not row["targets"][end - 1 : end].any(), "no target across a document's end"
    assert seen > 60


def test_packing_off_says_the_same_of_the_same_document(small_cache, small_config):
    capture_here(with_overrides(small_config, {"text.packing": False, "capture.name": "alone"}))
    alone, packed = open_cache("alone"), small_cache
    ours = {tuple(alone.rows("train", [i])["input_ids"][0][:20]): alone.rows("train", [i]) for i in range(10)}
    compared = 0
    for index in range(packed.num_windows("train")):
        row = {name: values[0] for name, values in packed.rows("train", [index]).items()}
        for start, end in documents_of(row):
            twin = ours.get(tuple(row["input_ids"][start : start + 20]))
            if twin is not None and end - start >= 20:
                np.testing.assert_allclose(twin["gold_logprob"][0][:19], row["gold_logprob"][start : start + 19], atol=1e-3)
                compared += 1
    assert compared >= 3


def test_a_finished_capture_does_not_load_the_teacher_again(small_cache, small_config, monkeypatch):
    monkeypatch.setattr(models, "load_model", lambda *_, **__: pytest.fail("the teacher was loaded"))
    assert capture_here(small_config).status().result == {"cache": "small"}


def test_what_stays_of_the_teacher(small_cache):
    teacher = small_cache.manifest.teacher
    assert teacher.num_parameters == sum(p.numel() for p in models.load_model("builtin").parameters())
    assert len(teacher.samples) == len(teacher.prompts) == 2
    assert all(teacher.samples)
    assert teacher.generated_tokens_per_s > 0
    tokenizer = models.load_tokenizer(str(small_cache.tokenizer_folder))
    assert models.vocabulary(tokenizer) == models.vocabulary(models.load_tokenizer("builtin"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text.num_windows": 25}, "text.windows_sha256: "),
        ({"text.seed": 1}, "text.windows_sha256: "),
        ({"capture.top_k": 10}, "capture.top_k: 20 there, 10 now"),
        ({"teacher.dtype": "bfloat16"}, "teacher.dtype: float32 there, bfloat16 now"),
    ],
)
def test_another_capture_under_the_same_name_is_refused_by_field(small_cache, small_config, change, words):
    with pytest.raises(CacheError, match="begun from something else") as error:
        capture_here(with_overrides(small_config, change))
    assert words in str(error.value)


def test_a_damaged_shard_alone_is_captured_again(small_cache, small_config, captured_once, distill_home):
    path = distill_home / "caches" / "small" / "shards" / "train-00001.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = (distill_home / "caches" / "small" / "shards" / "train-00000.parquet").stat().st_mtime_ns
    capture_here(small_config)
    assert shard_checksums(distill_home) == shard_checksums(captured_once)
    assert (distill_home / "caches" / "small" / "shards" / "train-00000.parquet").stat().st_mtime_ns == before


def test_stop_keeps_finished_shards_and_the_next_capture_goes_on(small_config, distill_home, captured_once, monkeypatch):
    write = capture.CacheWriter.write
    run = create_run("capture", small_config)

    def write_then_ask(self, shard, columns):
        run.request_stop()
        return write(self, shard, columns)

    monkeypatch.setattr(capture.CacheWriter, "write", write_then_ask)
    assert carry_out(run).status().state == "stopped"
    assert list(shard_checksums(distill_home)) == ["train-00000.parquet"]
    monkeypatch.undo()
    os.environ["DISTILL_HOME"] = str(distill_home)
    capture_here(small_config)
    assert shard_checksums(distill_home) == shard_checksums(captured_once)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_sigkill_then_the_same_capture_gives_the_same_bytes(small_config, distill_home, captured_once, tmp_path):
    """Killed as soon as the first shard is there; the run is shown as failed; starting again ends with the undisturbed bytes."""
    path = tmp_path / "config.json"
    path.write_text(small_config.to_json())
    command = [sys.executable, "-m", "distill_core", "capture", "--config", str(path)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    entries = distill_home / "caches" / "small" / "manifest.d"
    deadline = time.monotonic() + 120
    while not (entries.is_dir() and any(entries.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert list_runs()[0].status().state == "failed"
    assert not (distill_home / "caches" / "small" / "manifest.json").exists()
    capture_here(small_config)
    open_cache("small").verify()
    assert shard_checksums(distill_home) == shard_checksums(captured_once)


def test_empty_text_is_named(small_config, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(TextError, match="empty.txt"):
        capture_here(with_overrides(small_config, {"text.source": str(tmp_path / "empty.txt")}))
    assert list_runs()[0].status().state == "failed"


def test_top_k_above_the_vocabulary_keeps_all_of_it(small_config):
    config = with_overrides(small_config, {"capture.top_k": 5000, "text.num_windows": 4, "text.num_heldout_windows": 2})
    capture_here(config)
    cache = open_cache("small")
    assert cache.plan.top_k == cache.plan.vocab_size
    assert np.isneginf(cache.rows("train", [0])["teacher_tail"]).all()
    assert cache.kept_mass(4.0).min() == pytest.approx(1.0, abs=1e-6)


def test_default_names_differ_when_the_contents_do(small_config):
    names = set()
    for change in ({}, {"text.seed": 1}, {"capture.top_k": 21}):
        config = with_overrides(small_config, {"capture.name": None, "text.num_windows": 2, "text.num_heldout_windows": 1, **change})
        names.add(capture_here(config).status().result["cache"])
    assert len(names) == 3
    assert all((paths.caches_dir() / name / "manifest.json").exists() for name in names)


def test_the_packed_codec_says_the_same_for_less_disk(small_cache, small_config):
    capture_here(with_overrides(small_config, {"capture.codec": "packed", "capture.name": "packed"}))
    packed = open_cache("packed")
    assert packed.manifest.num_bytes < 0.85 * small_cache.manifest.num_bytes
    ours, theirs = packed.rows("heldout", [0, 5], temperature=2.0), small_cache.rows("heldout", [0, 5], temperature=2.0)
    np.testing.assert_array_equal(ours["teacher_ids"][..., 0], theirs["teacher_ids"][..., 0])
    np.testing.assert_array_equal(ours["teacher_tail"], theirs["teacher_tail"])
    np.testing.assert_allclose(ours["teacher_logprobs"], theirs["teacher_logprobs"], atol=0.1)
    assert packed.kept_mass(2.0).mean() == pytest.approx(small_cache.kept_mass(2.0).mean(), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 8.0])
def test_a_packed_cache_feeds_the_training(small_cache, small_config, temperature):
    """The loss accepts what it says, and visits read ahead give the same batches as windows asked for one by one."""
    capture_here(with_overrides(small_config, {"capture.codec": "packed", "capture.name": "packed"}))
    loss = LossConfig(temperature=temperature)
    visits = Visits(open_cache("packed"), num_visits=30, seed=3)
    collate = Collate(visits.cache, loss)
    batches = [collate([visits[visit], visits[visit + 1]]) for visit in range(0, 30, 2)]
    again = Visits(open_cache("packed"), num_visits=30, seed=3)
    resumed = Collate(again.cache, loss)([again[20], again[21]])
    assert all(torch.equal(tensor, batches[10][name]) for name, tensor in resumed.items()), "O(1): no earlier visit is needed"


def test_padding_is_hardly_read(small_config, monkeypatch):
    """Without packing, documents of many lengths: batches go by length and are cut to their longest."""
    shapes = []
    read_batch = capture.read_batch

    def seen(model, head, ids_BL, *others, **sizes):
        shapes.append(tuple(ids_BL.shape))
        return read_batch(model, head, ids_BL, *others, **sizes)

    monkeypatch.setattr(capture, "read_batch", seen)
    capture_here(with_overrides(small_config, {"text.packing": False, "text.window_tokens": 256, "capture.windows_per_shard": 24}))
    rows = open_cache("small").rows("train", range(24))
    lengths = [
        len(values) for values in (row[: np.flatnonzero(row == 0)[1]] if (row == 0).sum() > 1 else row for row in rows["position_ids"])
    ]
    read, needed = sum(count * longest for count, longest in shapes[:6]), sum(lengths)
    assert sum(count for count, _ in shapes[:6]) == 24
    assert [longest for _, longest in shapes[:6]] == sorted((longest for _, longest in shapes[:6]), reverse=True)
    assert needed <= read < 1.25 * needed < 0.9 * 24 * 256


def test_a_damaged_plan_of_a_finished_cache_is_mended(small_cache, small_config, captured_once, distill_home):
    path = distill_home / "caches" / "small" / "plan.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"true", b"True", 1))
    capture_here(small_config)
    assert path.read_bytes() == good
    assert shard_checksums(distill_home) == shard_checksums(captured_once)
