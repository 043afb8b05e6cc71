"""Earlier work: a second browser at the plain address finds what was begun, twins in their student's line, links that keep the language."""

import os
import re

from distill_core import walk
from distill_core.config import DistillConfig, hard_label_twin
from distill_core.language import in_language
from distill_core.runs import create_run
from distill_core.walk import earlier

CONFIG = DistillConfig()


def training(config=CONFIG, *, seconds, state="done", owner="", cache="small", name=None):
    run = create_run("train", config, inputs={"cache": cache}, owner=owner, name=name)
    run.update(state=state, created_s=1000.0 + seconds, pid=os.getpid())
    return run


def test_nothing_yet_shows_nothing():
    assert earlier.earlier_work() == []
    assert earlier.earlier_list([], {}, is_open=True) == ""


def test_a_student_and_its_twin_are_one_line_and_the_twin_keeps_it_at_work(small_cache):
    student = training(seconds=0)
    twin = training(hard_label_twin(CONFIG), seconds=1, state="running")
    again = training(seconds=2)
    again_twin = training(hard_label_twin(CONFIG), seconds=3)
    alone = training(hard_label_twin(CONFIG.changed(train=CONFIG.train.changed(seed=5))), seconds=4)
    works = {work.name: work for work in earlier.earlier_work()}
    assert set(works) == {student.id, again.id, alone.id}, "the cache stands in its trainings' lines"
    assert works[student.id].place == walk.Place(cache="small", run=student.id, baseline=twin.id)
    assert works[student.id].state == "running"
    assert works[again.id].place.baseline == again_twin.id
    assert works[alone.id].place.baseline is None


def test_captures_without_a_cache_and_caches_without_a_training(small_cache):
    failed = create_run("capture", CONFIG)
    failed.update(state="failed", error="no")
    done = create_run("capture", CONFIG, owner="Ana")
    done.update(state="done", result={"cache": "small"})
    works = {work.name: work for work in earlier.earlier_work()}
    assert works[failed.id].place == walk.Place(capture=failed.id)
    assert works["small"].place == walk.Place(cache="small")
    assert works["small"].owner == "Ana"
    assert done.id not in works


def test_newest_first_and_no_more_than_asked():
    runs = [training(seconds=second, name=f"r{second}") for second in range(5)]
    assert [work.name for work in earlier.earlier_work(limit=3)] == [runs[4].id, runs[3].id, runs[2].id]


def test_links_lead_there_and_keep_language_and_notebook(small_cache):
    run = training(seconds=0, owner="<b>Ana</b>")
    query = {"lang": "pt", "file": "distill.py", "run": "an-older-one"}
    shown = earlier.earlier_list(earlier.earlier_work(), query, is_open=False, say=in_language("pt"))
    address = re.search(r'href="\?([^"]+)"', shown)[1]
    assert address == f"lang=pt&amp;file=distill.py&amp;cache=small&amp;run={run.id}"
    assert "<b>Ana" not in shown
    assert "feito" in shown
    assert " open" not in shown.partition(">")[2].partition(">")[0]


def test_a_capture_that_found_its_cache_finished_has_nothing_to_draw(small_cache):
    run = create_run("capture", CONFIG)
    run.update(state="running", pid=os.getpid())
    place = walk.Place(capture=run.id)
    assert walk.capture_to_watch(place) == run.id, "while it looks, its progress is shown"
    run.update(state="done", result={"cache": "small"})
    assert walk.find(place).was_there
    assert walk.capture_to_watch(place) is None
    run.metrics_path.write_text('{"windows": 1}\n')
    assert walk.capture_to_watch(place) == run.id
    assert walk.capture_to_watch(walk.Place()) is walk.capture_to_watch(walk.Place(capture="gone")) is None
