"""Several processes, one cache: the bytes of one process, and a dead one is named."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from steps import capture_here

from distill_core.cache import CacheWriter, open_cache
from distill_core.cache.ranks import Rank, _publish_note, leading
from distill_core.config import with_overrides
from distill_core.errors import CacheError, ConfigError


def shard_checksums(home):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((home / "caches" / "small" / "shards").iterdir())}


@pytest.fixture
def launch(small_config, tmp_path):
    """launch(rank, count) -> a capture in a process of its own, as a launcher would start it."""
    path = tmp_path / "config.json"
    path.write_text(small_config.to_json())
    started = []

    def start(number, count):
        env = {**os.environ, "RANK": str(number), "WORLD_SIZE": str(count)}
        command = [sys.executable, "-m", "distill_core", "capture", "--config", str(path)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_two_processes_write_the_bytes_of_one(launch, distill_home, captured_once):
    others, first = launch(1, 2), launch(0, 2)
    said = [process.communicate(timeout=240) for process in (first, others)]
    assert [first.returncode, others.returncode] == [0, 0], said
    assert shard_checksums(distill_home) == shard_checksums(captured_once)
    open_cache("small").verify()
    assert "waiting for the other 1 processes" in said[0][1]
    assert "its share is done" in said[1][1], "the second process wrote shards too"
    assert not (distill_home / "caches" / "small" / "ranks").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_is_named_and_one_alone_finishes(launch, distill_home, captured_once, small_config, victim):
    processes = [launch(0, 2), launch(1, 2)]
    wait_until((distill_home / "caches" / "small" / "ranks" / "1.json").exists)
    processes[victim].send_signal(signal.SIGKILL)
    _, said = processes[1 - victim].communicate(timeout=240)
    assert processes[1 - victim].returncode == 2
    assert f"(process {processes[victim].pid}) is gone" in said
    assert "capture --resume small" in said
    if victim == 1:
        assert "rank 1 " in said
        assert "still missing: train-00001, heldout-00000." in said
    assert not (distill_home / "caches" / "small" / "manifest.json").exists()
    capture_here(small_config)
    assert shard_checksums(distill_home) == shard_checksums(captured_once)


def test_every_shard_has_one_writer_also_when_few_are_missing(small_cache):
    shards = list(small_cache.plan.shards)
    for missing in (shards, shards[2:], shards[:1], []):
        shares = [Rank(number, 3).share(missing) for number in range(3)]
        assert sorted(shard.name for share in shares for shard in share) == sorted(shard.name for shard in missing)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_rank_of_an_earlier_capture_must_end_first(small_cache):
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with CacheWriter(small_cache.folder, small_cache.plan) as writer:
        note = _publish_note(writer.folder, 1, writer.plan)
        path = writer.folder / "ranks" / "1.json"
        start_s = psutil.Process(sleeper.pid).create_time()
        path.write_text(note.model_copy(update={"pid": sleeper.pid, "process_start_s": start_s}).model_dump_json())
        with pytest.raises(CacheError, match=f"process {sleeper.pid}, rank 1 of an earlier capture"), leading(writer, Rank()):
            pass
        sleeper.communicate(b"\n")
        with leading(writer, Rank()) as missing:
            assert missing == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "no such place"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "no such place"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "several machines"),
    ],
)
def test_numbers_that_cannot_be(monkeypatch, given, words):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        Rank.from_environment()


def test_devices_and_queues(monkeypatch):
    assert Rank.from_environment() == Rank(0, 1, 0)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rank = Rank.from_environment()
    assert [rank.device(device, has_gpu=True) for device in ("auto", "cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:1", "cuda:0", "cpu"]
    assert rank.device("auto", has_gpu=False) == Rank().device("auto", has_gpu=True) == "auto"
    assert [rank.queue(key) for key in ("cpu", "cuda-1", "cuda-0")] == ["cpu-rank-1", "cuda-1", "cuda-0-rank-1"]


def test_a_lost_shard_alone_is_captured_again_by_two(launch, distill_home, small_cache, captured_once):
    """Its entry is still there: nobody takes that for a written shard."""
    (small_cache.folder / "shards" / "train-00001.parquet").unlink()
    processes = [launch(0, 2), launch(1, 2)]
    said = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert shard_checksums(distill_home) == shard_checksums(captured_once)


def test_another_capture_under_the_name_is_refused_by_rank_0_too(small_cache, small_config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(CacheError, match="begun from something else"):
        capture_here(with_overrides(small_config, {"capture.top_k": 10}))
