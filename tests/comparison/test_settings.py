"""What differs, and which runs are one run with other seeds."""

from made_runs import made

from distill_core.comparison import differences, run_differences, seed_groups
from distill_core.runs import open_run


def test_only_what_differs_is_named():
    a, b = {"loss.temperature": 1.0, "train.seed": 0, "x": 3}, {"loss.temperature": 2.0, "train.seed": 0}
    assert differences({"a": a, "b": b}) == [
        {"setting": "loss.temperature", "a": 1.0, "b": 2.0},
        {"setting": "x", "a": 3, "b": None},
    ]
    assert differences({"a": a}) == differences({}) == []


def test_a_difference_against_any_of_three_counts():
    rows = differences({"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 2}})
    assert rows == [{"setting": "k", "a": 1, "b": 1, "c": 2}]


def test_runs_differ_by_cache_and_dotted_settings_and_never_by_name():
    one, other = made("one"), made("other", cache="else", loss__temperature=2.0, student__num_layers=1)
    assert run_differences([one, other]) == [
        {"setting": "cache", "one": "mine", "other": "else"},
        {"setting": "student.num_layers", "one": None, "other": 1},
        {"setting": "loss.temperature", "one": 1.0, "other": 2.0},
    ]


def test_runs_of_one_group_differ_by_seed_only():
    made("b", seed=1), made("a", seed=0), made("again", seed=1, train__save_steps=7)
    made("warm", seed=0, loss__temperature=2.0), made("twin", seed=0, hard=True), made("moved", cache="else")
    found = seed_groups(open_run(name) for name in ("b", "a", "again", "warm", "twin", "moved"))
    groups = {tuple(run.id for run in group.runs): group for group in found}
    assert list(groups) == [("a", "again", "b"), ("warm",), ("twin",), ("moved",)]
    assert groups["a", "again", "b"].seeds == (0, 1, 1)
    assert not groups["twin",].is_distilled
    assert groups["twin",].twin_settings == groups["a", "again", "b"].twin_settings
    assert groups["warm",].twin_settings != groups["twin",].twin_settings


def test_another_cache_is_another_group_and_another_text_section_is_not():
    """The cache decides the text, whatever a run's own [text] says."""
    same, text, cache = made("same"), made("text", text__seed=3), made("cache", cache="else", seed=1)
    assert [len(group.runs) for group in seed_groups([same, text, cache])] == [2, 1]
