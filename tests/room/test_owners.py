"""Whose run it is, how many each may have, and how much disk."""

import os

import psutil
import pytest

from distill_core import jobs, room
from distill_core.comparison.deletion import delete, deletion_of
from distill_core.config import DistillConfig, from_dict, with_overrides
from distill_core.errors import CacheError, RoomError, RunError, TextError
from distill_core.paths import caches_dir, texts_dir
from distill_core.room import Visitor
from distill_core.runs import create_run, list_runs

ADA, BOB, PRESENTER = Visitor("Ada"), Visitor("Bob"), Visitor("Grace", is_presenter=True)
NOBODY = Visitor()


def made(owner, kind="train", state="running", **values):
    """A run that this process seems to work on."""
    run = create_run(kind, DistillConfig(), inputs={"cache": "c"}, owner=owner)
    run.update(state=state, pid=os.getpid(), process_start_s=psutil.Process().create_time(), **values)
    return run


def test_visitors_of_requests(a_room):
    assert room.visitor_of(None) == Visitor(is_presenter=True), "at home: all rights"
    a_room()
    assert room.visitor_of(None) == NOBODY
    user = {"is_authenticated": True, "username": "Ada"}
    assert room.visitor_of({"user": user, "meta": {}}) == ADA
    assert room.visitor_of({"user": user, "meta": {"is_presenter": True}}) == Visitor("Ada", is_presenter=True)
    assert room.visitor_of({"user": {"is_authenticated": False, "username": "Ada"}, "meta": {"is_presenter": True}}) == NOBODY


def test_names():
    assert room.checked_visitor_name("  Ana   Conceição ") == "Ana Conceição"
    assert room.checked_visitor_name("Müller-Lüdenscheidt 2") == "Müller-Lüdenscheidt 2"
    for bad in ("", "   ", "x" * 25, "<b>", "a/b", "..", "a\u202eb", "\x00"):
        with pytest.raises(RoomError, match="name"):
            room.checked_visitor_name(bad)


def test_only_owner_and_presenter_touch(a_room):
    at_home = made("Ada")
    room.check_may_touch(NOBODY, at_home)
    a_room()
    run, from_terminal = made("Ada"), made("")
    for visitor in (ADA, Visitor("ADA"), PRESENTER):
        room.check_may_touch(visitor, run)
    for visitor in (BOB, NOBODY):
        with pytest.raises(RoomError, match="belongs to Ada"):
            room.check_may_touch(visitor, run)
        with pytest.raises(RoomError, match="Ask Ada, or the presenter"):
            jobs.resume(run, by=visitor)
    with pytest.raises(RoomError, match="terminal"):
        room.check_may_touch(NOBODY, from_terminal)
    with pytest.raises(RunError, match="stop it first"):
        delete(deletion_of("run", run.id), by=ADA)
    run.update(state="stopped")
    for visitor in (BOB, None):
        with pytest.raises(RoomError):
            delete(deletion_of("run", run.id), by=visitor)
    assert delete(deletion_of("run", run.id), by=ADA) > 0
    assert not run.folder.exists()


def test_work_without_a_name_is_refused(a_room, small_config):
    a_room()
    for submit in (lambda: jobs.submit_capture(small_config), lambda: jobs.submit_training(small_config, "c")):
        with pytest.raises(RoomError, match="needs the name"):
            submit()
    with pytest.raises(RoomError, match="needs the name"):
        jobs.submit_evaluation(made("Ada").id)
    assert len(list_runs()) == 1


def test_cap_of_the_queue(a_room, small_config, monkeypatch):
    started = []
    monkeypatch.setattr(jobs, "start", started.append)
    a_room(max_active_runs=2)
    made("Bob")
    first = made("Ada", state="queued")
    assert jobs.submit_training(small_config, "c", owner="Ada").stored_status().owner == "Ada"
    with pytest.raises(RoomError, match="Ada has 2 runs waiting or at work .*gives each visitor 2"):
        jobs.submit_training(small_config, "c", owner="Ada")
    first.update(state="stopped")
    with pytest.raises(RoomError, match="belongs to Ada"):
        jobs.resume(first, by=BOB)
    jobs.resume(first, by=ADA)
    assert [run.id for run in started][-1] == first.id
    again = made("Ada", state="failed")
    with pytest.raises(RoomError, match="Ada has 2 runs"):
        jobs.resume(again, by=ADA)


def test_a_dead_run_takes_no_place(a_room, small_config, monkeypatch):
    monkeypatch.setattr(jobs, "start", lambda run: None)
    a_room(max_active_runs=1)
    made("Ada").update(pid=2**22 + 1)
    jobs.submit_training(small_config, "c", owner="Ada")


def cache_of(owner, name, num_bytes):
    """A capture by the owner that is done, and its cache of that size."""
    run = made(owner, "capture", "done", result={"cache": name})
    (caches_dir() / name).mkdir(parents=True)
    (caches_dir() / name / "shard").write_bytes(bytes(num_bytes))
    return run


def test_disk_quotas(a_room, small_config, monkeypatch):
    monkeypatch.setattr(jobs, "start", lambda run: None)
    cache_of("Ada", "large", 3_000_000)
    cache_of("Bob", "small", 40_000)
    a_room(visitor_disk_gb=0.002, disk_gb=0.01)
    take = "Ada's caches, runs and texts take 3 MB"
    with pytest.raises(RoomError, match=rf"{take}; this room gives a visitor 2 MB, that is 1 MB over.*cache large"):
        jobs.submit_training(small_config, "c", owner="Ada")
    jobs.submit_training(small_config, "c", owner="Bob")
    a_room(visitor_disk_gb=1, disk_gb=0.003)
    with pytest.raises(
        RoomError, match=r"all caches, runs and texts take 3.05 MB; this room has 3 MB.*Largest: cache large \(3 MB\), cache small"
    ):
        jobs.submit_training(small_config, "c", owner="Bob")


def test_a_cache_to_come_counts(a_room, monkeypatch):
    """400 windows of 256 tokens at K = 100 take some 40 MB: refused where 10 are free, admitted where 100 are."""
    monkeypatch.setattr(jobs, "start", lambda run: None)
    a_room(visitor_disk_gb=0.01)
    with pytest.raises(RoomError, match="this cache would take about 4[0-9].*Make it smaller"):
        jobs.submit_capture(DistillConfig(), owner="Ada")
    assert list_runs() == []
    a_room(visitor_disk_gb=0.1)
    jobs.submit_capture(DistillConfig(), owner="Ada")


def test_whose_cache(a_room):
    a_room()
    cache_of("Ada", "mine", 10)
    with pytest.raises(RoomError, match="belongs to Ada"):
        room.check_may_touch_cache(BOB, "mine")
    reader = create_run("train", DistillConfig(), inputs={"cache": "mine"}, owner="Bob")
    with pytest.raises(CacheError, match="in use by"):
        delete(deletion_of("cache", "mine"), by=PRESENTER)
    reader.update(state="done")
    with pytest.raises(RoomError, match="Bob learned from it"):
        room.check_may_touch_cache(ADA, "mine")
    room.check_may_touch_cache(PRESENTER, "mine")
    delete(deletion_of("run", reader.id), by=BOB)
    assert delete(deletion_of("cache", "mine"), by=ADA) == 10
    with pytest.raises(RoomError, match="belongs to the room"):
        room.check_may_touch_cache(ADA, "unknown")


def test_runs_written_before_there_were_owners(small_config):
    run = create_run("train", small_config)
    text = (run.folder / "status.json").read_text()
    (run.folder / "status.json").write_text(text.replace('  "owner": "",\n', ""))
    assert run.stored_status().owner == ""


def test_nothing_else_starts_a_room_run(a_room):
    a_room()
    with pytest.raises(RoomError):
        jobs.submit_capture(from_dict({}))


def text_of(owner, name, num_bytes, **values):
    """A writing by the owner, and its text of that size."""
    run = create_run("write", with_overrides(DistillConfig(), {"write.name": name}), owner=owner)
    run.update(**({"state": "done", "result": {"text": name}} | values))
    (texts_dir() / name).mkdir(parents=True)
    (texts_dir() / name / "texts.parquet").write_bytes(bytes(num_bytes))
    return run


def test_written_texts_count_in_the_quota(a_room, monkeypatch):
    monkeypatch.setattr(jobs, "start", lambda run: None)
    text_of("Ada", "more", 3_000_000)
    text_of("Bob", "begun", 1_500_000, state="failed", result={})
    a_room(visitor_disk_gb=0.002)
    with pytest.raises(RoomError, match=r"Ada's caches, runs and texts take 3 MB; .*Largest of yours: text more \(3 MB\)"):
        jobs.submit_write(DistillConfig(), owner="Ada")
    jobs.submit_write(DistillConfig(), owner="Bob")
    a_room(visitor_disk_gb=0.001)
    with pytest.raises(RoomError, match=r"Bob's .* take 1.5\d* MB; .*text begun"):
        jobs.submit_write(DistillConfig(), owner="Bob")
    a_room(disk_gb=0.004)
    with pytest.raises(RoomError, match=r"all caches, runs and texts take 4.5\d* MB"):
        jobs.submit_write(DistillConfig(), owner="Grace")


def test_whose_text(a_room):
    text_of("Ada", "more", 10)
    text_of("Ada", "at-home", 10)
    assert delete(deletion_of("text", "at-home")) == 10, "at home all of it is free"
    a_room()
    text_of("Bob", "other", 10)
    for visitor in (BOB, NOBODY):
        assert "text more belongs to Ada" in deletion_of("text", "more", by=visitor).refused
        with pytest.raises(RoomError, match="text more belongs to Ada: ask Ada, or the presenter"):
            delete(deletion_of("text", "more"), by=visitor)
    reads = with_overrides(DistillConfig(), {"text.synthetic": "written:more", "text.synthetic_share": 0.5})
    reader = create_run("capture", reads, owner="Bob")
    with pytest.raises(TextError, match=f"text more is in use by {reader.id}"):
        delete(deletion_of("text", "more"), by=ADA)
    reader.update(state="done")
    assert deletion_of("text", "more", by=ADA).dependents == (reader.id,)
    assert delete(deletion_of("text", "more"), by=ADA) == 10
    assert delete(deletion_of("text", "other"), by=PRESENTER) == 10
    assert list(texts_dir().iterdir()) == []
    with pytest.raises(TextError, match="no written text 'more'"):
        deletion_of("text", "more")
    with pytest.raises(RoomError, match="belongs to the room"):
        room.check_may_touch_text(ADA, "of-nobody")


def test_a_writing_is_stopped_by_its_owner_only(a_room):
    a_room()
    run = text_of("Ada", "more", 10, state="running", result={}, pid=os.getpid(), process_start_s=psutil.Process().create_time())
    with pytest.raises(RoomError, match="belongs to Ada"):
        room.check_may_touch(BOB, run)
    room.check_may_touch(ADA, run)
