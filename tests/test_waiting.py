"""How long a run waits, on runs whose times are written by hand."""

import os
import time

import psutil
import pytest

from distill_core import waiting
from distill_core.config import DistillConfig, with_overrides
from distill_core.runs import create_run

CONFIG = with_overrides(DistillConfig(), {"train.max_steps": 100})
TWICE = with_overrides(DistillConfig(), {"train.max_steps": 200})


def made(kind="train", state="queued", *, config=CONFIG, created_s=None, device="cpu", **values):
    run = create_run(kind, config, inputs={"cache": "c"}, device=device)
    me = {"pid": os.getpid(), "process_start_s": psutil.Process().create_time()} if state in ("queued", "running") else {}
    run.update(state=state, **({"created_s": created_s} if created_s else {}), **me, **values)
    return run


def test_without_history_nothing_is_promised():
    first, own = made(created_s=1.0), made(created_s=2.0)
    assert [run.id for run in waiting.runs_ahead(own)] == [first.id]
    assert waiting.expected_wait_s([first]) is None
    assert waiting.expected_wait_s([]) == 0
    assert waiting.waiting_words("cpu", 1, None) == "waiting for cpu: 1 ahead"


def test_only_earlier_living_runs_of_the_same_device_are_ahead():
    own = made(created_s=5.0)
    made(created_s=6.0)
    made(created_s=1.0, device="cuda-0")
    made(created_s=1.0, state="done")
    made(created_s=1.0).update(pid=2**22 + 1)
    assert waiting.runs_ahead(own) == []
    running = made("capture", "running", created_s=4.0)
    assert [run.id for run in waiting.runs_ahead(own)] == [running.id]


def test_waits_add_up_from_what_runs_say_and_what_earlier_ones_took():
    for took in (40.0, 60.0, 500.0):  # the median counts: 60 s for 100 steps
        made(state="done", started_s=1000.0, ended_s=1000.0 + took)
    made("evaluate", "done", started_s=10.0, ended_s=17.0)
    made(state="stopped", started_s=0.0, ended_s=9.0)
    assert waiting.usual_s("train", TWICE) == pytest.approx(120)
    assert waiting.usual_s("capture", CONFIG) is None
    says = made(state="running", time_left_s=33.0)
    silent = made(state="running", started_s=time.time() - 20)
    overdue = made(state="running", started_s=time.time() - 999)
    queued, judging = made(config=TWICE), made("evaluate")
    assert waiting.expected_wait_s([judging, queued, says]) == pytest.approx(7 + 120 + 33)
    assert waiting.expected_wait_s([silent]) == pytest.approx(40, abs=5)
    assert waiting.expected_wait_s([overdue]) == 0
    assert waiting.expected_wait_s([queued, made("capture")]) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "10 s"), (9, "10 s"), (11, "20 s"), (60, "1 min 00 s"), (61, "2 min 00 s"), (3600, "1 h 00 min"), (3601, "1 h 05 min")],
)
def test_words_are_coarse(seconds, words):
    assert waiting.waiting_words("cuda-0", 3, seconds) == f"waiting for cuda-0: 3 ahead, about {words}"
