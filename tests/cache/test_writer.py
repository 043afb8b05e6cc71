"""Writing: killed, damaged, full, contested; each is named, and nothing is lost."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made import columns, make, plan, truth

from distill_core.cache import CacheWriter, delete_cache, open_cache, verify_records
from distill_core.errors import CacheError
from distill_core.paths import caches_dir

HERE = Path(__file__).parent


def checksums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "shards").iterdir())}


def in_child(code):
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r})\n{code}"], stderr=subprocess.PIPE, text=True
    )


def test_resume_writes_only_what_is_missing_and_gives_the_same_bytes():
    make("whole")
    make("cut", only=3)
    before = {path: path.stat().st_mtime_ns for path in (caches_dir() / "cut" / "shards").iterdir()}
    make("cut")
    assert checksums(caches_dir() / "cut") == checksums(caches_dir() / "whole")
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    assert open_cache("cut").manifest.sha256() == open_cache("whole").manifest.sha256()


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_at_any_moment_then_resumed():
    """SIGKILL at ten random moments of the writing; each time the next process goes on; the end is byte for byte the same."""
    make("whole", 64)
    dice = random.Random(7)
    for _ in range(10):
        child = in_child("from made import make\nprint('ready', file=sys.stderr, flush=True)\nmake('killed', 64)")
        child.stderr.readline()
        time.sleep(dice.uniform(0, 0.12))
        child.send_signal(signal.SIGKILL)
        child.communicate()
    make("killed", 64)
    open_cache("killed").verify()
    assert checksums(caches_dir() / "killed") == checksums(caches_dir() / "whole")
    assert not list((caches_dir() / "killed").glob("**/*.partial"))


def test_one_flipped_byte_anywhere_is_found_and_the_shard_is_named():
    make()
    path = caches_dir() / "made" / "shards" / "train-00002.parquet"
    good = path.read_bytes()
    dice = random.Random(0)
    for _ in range(40):
        place = dice.randrange(len(good))
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << dice.randrange(8))]) + good[place + 1 :])
        with pytest.raises(CacheError, match="shard train-00002 is damaged.*capture --resume made"):
            open_cache("made").verify()


@pytest.mark.parametrize(
    ("harm", "words"), [(lambda p: p.unlink(), "train-00001 is missing"), (lambda p: p.write_bytes(b"PAR1"), "train-00001 has 4 bytes")]
)
def test_deleted_and_cut_shards_are_named_on_opening_and_mended_by_a_new_capture(harm, words):
    make("whole")
    make()
    harm(caches_dir() / "made" / "shards" / "train-00001.parquet")
    with pytest.raises(CacheError, match=words):
        open_cache("made")
    make()
    open_cache("made").verify()
    assert checksums(caches_dir() / "made") == checksums(caches_dir() / "whole")


def test_a_file_nobody_vouches_for_goes_to_quarantine():
    make(only=1)
    stray = caches_dir() / "made" / "shards" / "train-00001.parquet"
    stray.write_bytes(b"from an older life")
    make()
    kept = list((caches_dir() / "made" / "quarantine").iterdir())
    assert [path.read_bytes() for path in kept] == [b"from an older life"]
    open_cache("made").verify()


def test_another_teacher_in_the_same_folder_is_refused_by_field():
    make(only=1)
    with pytest.raises(CacheError) as error:
        make(**{"teacher.model": "other"})
    assert "teacher.model: made there, other now" in str(error.value)
    assert "text.windows" not in str(error.value)


def test_two_writers():
    planned = plan(24)
    with CacheWriter(caches_dir() / "made", planned):
        child = in_child("from made import make\nmake()")
        _, errors = child.communicate(timeout=30)
    assert f"process {os.getpid()} on" in errors
    assert "is writing it" in errors
    make()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_FSIZE")
def test_a_disk_that_refuses_keeps_what_was_finished():
    """The third shard meets a disk that takes no more; the message says what to do; afterwards the capture goes on."""
    code = (
        "import resource, signal\nfrom made import *\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "known, planned = truth(24), plan(24)\n"
        "with CacheWriter(caches_dir() / 'made', planned) as writer:\n"
        "    for i, shard in enumerate(writer.missing()):\n"
        "        if i == 2: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "        writer.write(shard, columns(known, shard))\n"
    )
    child = in_child(code)
    _, errors = child.communicate(timeout=60)
    assert "CacheError: cache made: cannot write" in errors
    assert "goes on where it was" in errors
    assert sorted(path.name for path in (caches_dir() / "made" / "shards").iterdir()) == ["train-00000.parquet", "train-00001.parquet"]
    make("whole")
    make()
    assert checksums(caches_dir() / "made") == checksums(caches_dir() / "whole")


def test_disk_space_is_asked_for_before():
    with CacheWriter(caches_dir() / "made", plan(24)) as writer:
        with pytest.raises(CacheError, match="needs 1e\\+06 TB|needs 1000000 TB"):
            writer.check_space(1e18)


def test_a_folder_that_cannot_be_written(distill_home):
    distill_home.mkdir()
    (distill_home / "caches").write_text("a file where a folder should be")
    with pytest.raises(CacheError, match="cannot write in"):
        make()


def test_finish_refuses_a_gap():
    known, planned = truth(24), plan(24)
    with CacheWriter(caches_dir() / "made", planned) as writer:
        writer.write(planned.shards[0], columns(known, planned.shards[0]))
        with pytest.raises(CacheError, match="4 of 5 shards are missing, first train-00001"):
            writer.finish(teacher=None, config={}, text={}, versions={})


def test_delete_gives_the_bytes_back():
    make()
    assert delete_cache("made") > 1000
    assert not (caches_dir() / "made").exists()
    with pytest.raises(CacheError, match="no cache 'made'"):
        delete_cache("made")


def test_damaged_manifest_is_named():
    make()
    (caches_dir() / "made" / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(CacheError, match="manifest.json is damaged: its checksum does not fit.*--resume made"):
        open_cache("made")


def test_a_cache_of_another_format_is_told_apart_from_a_damaged_one():
    make()
    for name in ("manifest.json", "plan.json"):
        path = caches_dir() / "made" / name
        path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(CacheError, match="manifest.json is of format 1, this version reads 2. Make it again under another name"):
        open_cache("made")


def flips(good, count, *, seed):
    """Copies of the bytes with one bit flipped somewhere."""
    dice = random.Random(seed)
    for _ in range(count):
        place = dice.randrange(len(good))
        yield good[:place] + bytes([good[place] ^ (1 << dice.randrange(8))]) + good[place + 1 :]


def test_one_flipped_byte_anywhere_in_the_manifest_is_found():
    make()
    path = caches_dir() / "made" / "manifest.json"
    good = path.read_bytes()
    for bad in flips(good, 400, seed=1):
        path.write_bytes(bad)
        with pytest.raises(CacheError, match="manifest.json is (damaged|of format)"):
            open_cache("made")
    path.write_bytes(good)
    open_cache("made").verify()


@pytest.mark.parametrize("name", ["plan.json", "manifest.d/train-00001.json", "shards/train-00001.parquet", "manifest.json"])
def test_a_flipped_byte_in_any_file_is_mended_by_the_same_capture(name):
    """Whatever was hit, the same capture ends with the bytes of an undisturbed one, and writes again only what nobody vouches for."""
    make("whole")
    make()
    path = caches_dir() / "made" / name
    good = path.read_bytes()
    for number, bad in enumerate(flips(good, 8, seed=2)):
        path.write_bytes(bad)
        (caches_dir() / "made" / "manifest.json").unlink(missing_ok=True)
        stamps = {shard: shard.stat().st_mtime_ns for shard in (caches_dir() / "made" / "shards").iterdir()}
        make()
        assert checksums(caches_dir() / "made") == checksums(caches_dir() / "whole")
        assert path.read_bytes() == good, f"flip {number}"
        again = [shard.stem for shard, stamp in stamps.items() if shard.stat().st_mtime_ns != stamp]
        assert again == (["train-00001"] if "train-00001" in name else [])
    if name != "manifest.json":
        assert len(list((caches_dir() / "made" / "quarantine").iterdir())) >= 8


@pytest.mark.parametrize("name", ["plan.json", "manifest.d/heldout-00004.json"])
def test_one_flipped_byte_beside_the_shards_is_found_by_verify(name):
    make()
    path = caches_dir() / "made" / name
    good = path.read_bytes()
    for bad in flips(good, 100, seed=3):
        path.write_bytes(bad)
        with pytest.raises(CacheError, match=f"{path.name} is (damaged|of format)"):
            verify_records(open_cache("made"))
    path.unlink()
    with pytest.raises(CacheError, match=f"{name} is missing.*--resume made"):
        verify_records(open_cache("made"))
    path.write_bytes(good)
    verify_records(open_cache("made"))


def test_an_entry_of_another_shard_is_not_taken_for_this_ones():
    make()
    folder = caches_dir() / "made" / "manifest.d"
    (folder / "train-00000.json").write_bytes((folder / "train-00001.json").read_bytes())
    with pytest.raises(CacheError, match="train-00000.json is not the one that the manifest was made from"):
        verify_records(open_cache("made"))


def test_a_shard_of_another_capture_is_not_taken_for_ours():
    """Its file and its entry are whole, and agree; but it was written for another plan."""
    make("theirs", codec="packed")
    make(only=2)
    for folder, name in (("shards", "train-00002.parquet"), ("manifest.d", "train-00002.json")):
        (caches_dir() / "made" / folder / name).write_bytes((caches_dir() / "theirs" / folder / name).read_bytes())
    make("whole")
    make()
    assert checksums(caches_dir() / "made") == checksums(caches_dir() / "whole")
    assert len(list((caches_dir() / "made" / "quarantine").iterdir())) == 2
