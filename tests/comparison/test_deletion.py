"""Who names a run is said before it goes, by the command and by the page."""

import pytest
from made_runs import made

from distill_core import chain, comparison, sweep
from distill_core.cli import run_command_line
from distill_core.comparison.views import deletion_words
from distill_core.config import DistillConfig, with_overrides
from distill_core.runs import create_run, list_runs


def test_judgements_twins_and_sweeps_are_named_and_yes_deletes(capsys):
    student, _ = made("s"), made("s-hard-labels", hard=True)
    create_run("evaluate", student.config(), inputs={"run": "s", "baseline": "s-hard-labels"}, name="judging").update(state="done")
    for name, twin in (("s", "s-hard-labels"), ("s-hard-labels", "s")):
        assert run_command_line(["runs", "delete", name]) == 2
        said = capsys.readouterr().err
        assert f"Run {name} is named by judging" in said
        assert f"counterpart of {twin}" in said
        assert "--yes" in said
    assert len(list_runs()) == 3
    assert run_command_line(["runs", "delete", "s", "--yes"]) == 0
    assert "came back" in capsys.readouterr().out
    assert run_command_line(["runs", "delete", "judging"]) == 0, "nobody names it"
    assert [run.id for run in list_runs()] == ["s-hard-labels"]


def test_a_run_of_a_sweep_says_so(capsys):
    grid = sweep.create_sweep("lr", "mine", DistillConfig(), {"train.learning_rate": [1e-3, 1e-4]}, num_seeds=1)
    made(grid.trials()[0].run_id)
    what = comparison.deletion_of("run", "lr-00-s0")
    assert what.sweep == "lr"
    assert "Run lr-00-s0 belongs to sweep lr, which counts it no more." in deletion_words([what])
    assert run_command_line(["runs", "delete", "lr-00-s0"]) == 2
    assert "belongs to sweep lr" in capsys.readouterr().err


def test_a_run_of_a_chain_says_so(capsys):
    chain.create_chain("again", with_overrides(DistillConfig(), {"chain.kind": "iterative", "chain.rounds": 2}))
    made("again-2")
    what = comparison.deletion_of("run", "again-2")
    assert what.chain == "again"
    assert "Run again-2 belongs to chain again: going on with it would make the run anew." in deletion_words([what])
    assert run_command_line(["runs", "delete", "again-2"]) == 2
    assert "belongs to chain again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["alone", "alone-hard-labels"])
def test_a_run_that_nobody_names_goes_at_once(name):
    made(name)
    assert run_command_line(["runs", "delete", name]) == 0
    assert list_runs() == []
