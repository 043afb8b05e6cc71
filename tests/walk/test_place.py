"""Which step is next, what a moved place forgets, and pages opened on what is no longer there."""

import json

import pytest

from distill_core import walk
from distill_core.config import DistillConfig, with_overrides
from distill_core.errors import RunError
from distill_core.room import Visitor
from distill_core.runs import create_run
from distill_core.walk import Place, find, step_states, what_next

CONFIG = DistillConfig()


def trained(state="done", **inputs):
    run = create_run("train", CONFIG, inputs={"cache": "small", **inputs})
    run.model_folder.mkdir()
    run.update(state=state)
    return run


def next_of(place):
    states = step_states(find(place))
    assert list(states.values()).count("next") <= 1
    assert list(states) == list(walk.STEPS)
    return what_next(find(place))[0], states


def test_nothing_yet():
    key, states = next_of(Place())
    assert key == "cache"
    assert states["teacher"] == "ready"
    assert states["train"] == states["judge"] == states["home"] == "locked"


def test_while_the_teacher_reads():
    run = create_run("capture", CONFIG)
    key, states = next_of(Place(capture=run.id))
    assert (key, states["cache"]) == ("cache", "waiting")
    run.update(state="running")
    assert next_of(Place(capture=run.id))[1]["cache"] == "working"
    run.update(state="failed", error="no")
    assert next_of(Place(capture=run.id))[1]["cache"] == "next"
    assert what_next(find(Place(capture=run.id))) == ("cache", "The capture failed: step 3 says why, and what would help.")


@pytest.mark.parametrize(("num_ahead", "words"), [(0, "the next one"), (1, "1 run is ahead"), (3, "3 runs are ahead")])
def test_a_queued_run_is_said_to_wait(small_cache, num_ahead, words):
    student, twin = (create_run("train", CONFIG, inputs={"cache": "small"}) for _ in range(2))
    student.update(num_ahead=num_ahead)
    twin.update(num_ahead=num_ahead + 1)
    key, said = what_next(find(Place(run=student.id, baseline=twin.id)))
    assert key == "train"
    assert words in said
    student.update(state="running")
    assert "is learning" in what_next(find(Place(run=student.id, baseline=twin.id)))[1]


def test_what_is_wrong_comes_before_what_to_do_and_after_what_works(small_cache):
    found = find(Place(cache="small"))
    assert what_next(found, ["student"])[0] == "student"
    assert what_next(found, ["teacher", "student"])[0] == "teacher"
    run = create_run("train", CONFIG, inputs={"cache": "small"})
    assert what_next(find(Place(run=run.id)), ["student"])[0] == "train"
    run.update(state="failed", error="no")
    assert what_next(find(Place(run=run.id)))[1].startswith("The training failed")


def test_with_a_cache(small_cache):
    key, states = next_of(Place(cache="small"))
    assert key == "train"
    assert states["cache"] == "done"
    assert states["judge"] == "locked"


def test_judge_waits_for_the_twin(small_cache):
    student, twin = trained(), create_run("train", CONFIG, inputs={"cache": "small"})
    place = Place(run=student.id, baseline=twin.id)
    assert next_of(place)[0] == "train"  # the cache is found through the run
    assert next_of(place)[1]["train"] == "waiting"
    twin.update(state="failed", error="no")
    key, states = next_of(place)
    assert key == "judge"
    assert find(place).can_resume
    assert states["train"] == "done"


def test_a_failed_student_is_trained_again(small_cache):
    run = create_run("train", CONFIG, inputs={"cache": "small"})
    run.update(state="failed", error="no")
    key, states = next_of(Place(run=run.id))
    assert key == "train"
    assert states["judge"] == "locked"
    assert find(Place(run=run.id)).can_resume


def test_judged_and_taken_home(small_cache):
    run = trained()
    run.evaluation_path.write_text(json.dumps({"rows": [], "verdict": "", "prompts": [], "notes": []}))
    assert next_of(Place(run=run.id))[0] == "home"
    walk.export_folder(run.id).mkdir(parents=True)
    states = next_of(Place(run=run.id))[1]
    assert set(states.values()) == {"done"}
    assert "All nine" in what_next(find(Place(run=run.id)))[1]


def test_an_address_that_leads_nowhere_is_explained():
    found = find(Place(run="gone", cache="lost"))
    assert len(found.problems) == 2
    assert "gone" in found.problems[0]
    assert "lost" in found.problems[1]
    assert walk.opening_config(Place(run="gone")) == CONFIG


def test_settings_come_back(small_cache):
    run = create_run("train", CONFIG.changed(train=CONFIG.train.changed(max_steps=7)), inputs={"cache": "small"})
    assert walk.opening_config(Place(run=run.id)).train.max_steps == 7
    assert walk.opening_config(Place(cache="small")).text.num_windows == 24


def test_changed_settings_go_along_to_a_page_in_another_language(small_cache):
    changed = with_overrides(CONFIG, {"loss.temperature": 2.0, "train.max_steps": 33, "student.keep_layers": None, "text.packing": False})
    address = walk.carried(changed, CONFIG)
    follow = {"train.eval_steps", "train.warmup_steps"}
    assert set(json.loads(address["settings"])) == {"loss.temperature", "train.max_steps", "text.packing"} | follow, "and no more than that"
    assert walk.opening_config(Place(), {"lang": "pt", **address}) == changed
    assert walk.opening_config(Place(cache="small"), address).text.num_windows == 24, "what was not changed is the cache's"
    assert walk.carried(CONFIG, CONFIG) == walk.carried(None, CONFIG) == {}


@pytest.mark.parametrize(
    "told",
    ["", "{", "[1]", "3", '{"loss.temperature": -1}', '{"loss.beauty": 1}', '{"x.y.z": 1}', '{"device.x": 1}', '{"loss": 3}', ["{}"]],
)
def test_an_address_with_nonsense_for_settings_carries_nothing(told):
    assert walk.opening_config(Place(), {"settings": told}) == CONFIG


def test_place_from_an_address():
    assert walk.place_from({"run": "a", "cache": ["b", "c"], "file": "x", "judge": ""}) == Place(run="a", cache="c")
    full = Place(capture="a", cache="b", run="c", baseline="d", judge="e")
    assert walk.moved(full, capture="z") == Place(capture="z")
    assert walk.moved(full, run="z") == Place(capture="a", cache="b", run="z")
    assert walk.moved(full, run="z", baseline="y") == Place(capture="a", cache="b", run="z", baseline="y")
    assert walk.moved(full, judge="z") == Place(capture="a", cache="b", run="c", baseline="d", judge="z")


def test_resume_needs_something_to_resume(small_cache):
    with pytest.raises(RunError, match="nothing to resume"):
        walk.resume_all(Place(run=trained().id), Visitor())


def test_the_twin_is_judged_only_when_both_went_their_whole_way():
    student, twin = trained(), trained()
    assert walk.to_judge(Place(run=student.id, baseline=twin.id)) == (student.id, twin.id)
    twin.update(state="stopped")
    assert walk.to_judge(Place(run=student.id, baseline=twin.id)) == (student.id, None)
    twin.update(state="done")
    student.update(state="stopped")
    assert walk.to_judge(Place(run=student.id, baseline=twin.id)) == (student.id, None)
    with pytest.raises(RunError, match="train one first"):
        walk.to_judge(Place())
