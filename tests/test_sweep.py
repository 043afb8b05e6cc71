"""The sweep: a grid of ordinary runs, resumable, and words that claim no more than the spread over seeds allows."""

import json
import random
import signal
import statistics
import subprocess
import sys

import pytest
from test_jobs import until

from distill_core import metrics, runs, sweep
from distill_core.charts.sweep import sweep_chart
from distill_core.cli import run_command_line
from distill_core.config import with_overrides
from distill_core.errors import ConfigError, RunError
from distill_core.sweep import losers
from distill_core.sweep.results import advantage


def small(config):
    return with_overrides(config, {"train.max_steps": 4, "train.eval_steps": 2, "train.save_steps": 2, "capture.name": None})


def pretend(trial, kl, *, state="done", looks=None):
    """A run of the trial that has ended with this KL, without training."""
    run = runs.create_run("train", trial.config(), inputs={"cache": trial.sweep.cache}, name=trial.run_id)
    for step, value in (looks or {4: kl}).items():
        row = {"step": step, "time_s": 1.0, "heldout_nll": value, "heldout_kl": value}
        metrics.append(run.metrics_path, row | {"heldout_bits_per_byte": value / 2, "heldout_top1_agreement": 0.5})
    run.update(state=state)
    return run


@pytest.fixture
def grid(small_config):
    values = {"loss.temperature": ["1", "2"], "train.learning_rate": ["1e-3", "3e-3"]}
    return sweep.create_sweep("mine", "small", small(small_config), values, num_seeds=3)


def test_the_trials_of_a_grid(grid, small_config):
    trials = grid.trials()
    assert len(trials) == 12
    assert len({trial.run_id for trial in trials}) == 12
    assert {trial.seed for trial in trials[:4]} == {0}, "all settings with the first seed come first"
    config = trials[-1].config()
    assert (config.loss.temperature, config.train.learning_rate, config.train.seed) == (2.0, 3e-3, 2)
    assert config.student == small(small_config).student
    assert sweep.open_sweep("mine") == grid
    assert sweep.list_sweeps() == [grid]


def test_the_same_sweep_again_is_opened_and_another_of_the_name_refused(grid, small_config):
    values = {"loss.temperature": ["1", "2"], "train.learning_rate": ["0.001", "0.003"]}
    assert sweep.create_sweep("mine", "small", small(small_config), values, num_seeds=3) == grid
    with pytest.raises(RunError, match="the name is taken"):
        sweep.create_sweep("mine", "small", small(small_config), values, num_seeds=2)
    with pytest.raises(RunError, match="Did you mean 'mine'"):
        sweep.open_sweep("mime")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text.window_tokens": "64,128"}, "one cache serves all runs"),
        ({"train.seed": "1,2"}, "--seeds"),
    ],
)
def test_what_cannot_be_swept(given, words):
    with pytest.raises(ConfigError, match=words):
        sweep.grid_of(given)


def test_one_value_is_no_axis_and_brackets_are_one_value():
    given = {"loss.temperature": "1, 2,1", "train.max_steps": "9", "student.keep_layers": "[0,1]"}
    assert sweep.grid_of(given) == ({"loss.temperature": ["1", "2"]}, {"train.max_steps": "9", "student.keep_layers": "[0,1]"})


@pytest.mark.parametrize(
    ("values", "seeds", "words"),
    [
        ({}, 3, "nothing to sweep"),
        ({"loss.temperature": ["1", "20"]}, 3, "loss.temperature"),
        ({"loss.temperature": ["1", "2"]}, 0, "0 seeds"),
        ({"loss.temperature": ["1", "2"]}, 500, "1,?000 runs"),
        ({"loss.kl_weight": ["0", "1"]}, 1, "nothing would be learned"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_its_first_run(small_config, values, seeds, words):
    with pytest.raises(ConfigError, match=words):
        sweep.create_sweep("mine", "small", small(small_config), values, num_seeds=seeds)
    assert sweep.list_sweeps() == []


def two_settings(small_config, first, second):
    made = sweep.create_sweep("two", "small", small(small_config), {"loss.temperature": ["1", "2"]}, num_seeds=len(first))
    for trial in made.trials():
        pretend(trial, (first, second)[trial.number][trial.seed])
    return made


def test_the_interval_by_hand(small_config):
    """Differences 0.1, 0.2, 0.3: mean 0.2, s = 0.1, t(0.975, 2) = 4.3027: 0.2 ± 4.3027 * 0.1 / sqrt(3)."""
    made = two_settings(small_config, [1.0, 1.5, 2.0], [1.1, 1.7, 2.3])
    best, other = sweep.settings(made)
    gain = advantage(best, other)
    assert gain.mean == pytest.approx(0.2)
    assert gain.low == pytest.approx(0.2 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert "NO CLEAR BEST" in sweep.verdict([best, other]), "the interval reaches below 0"


def test_the_best_is_named_when_every_seed_says_so(small_config):
    made = two_settings(small_config, [1.0, 1.5, 2.0], [1.2, 1.7, 2.21])  # seeds differ by far more than settings: pairs show it
    found = sweep.settings(made)
    assert sweep.verdict(found).startswith("BEST: temperature 1, 1.5000 nats")
    assert "look below it too" in sweep.from_results(made)


def test_with_one_seed_none_is_called_the_best(small_config):
    words = sweep.verdict(sweep.settings(two_settings(small_config, [1.0], [5.0])))
    assert words.startswith("One seed")
    assert "no setting is called the best" in words


def test_settings_that_are_the_same_are_rarely_told_apart(small_config):
    """Noise alone: of 200 sweeps with 3 seeds and two equal settings, about 2.5 % may name a best one."""
    noise = random.Random(0)
    made = two_settings(small_config, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    first, second = sweep.settings(made)
    named = 0
    for _ in range(200):
        for setting in (first, second):
            setting.kl.update({seed: 1 + noise.gauss(0, 0.1) for seed in range(3)})
        named += sweep.verdict(sorted([first, second], key=lambda setting: setting.mean)).startswith("BEST")
    assert named <= 20, "two-sided 95 %: 5 % are expected, 10 of 200"


def test_an_unfinished_sweep_says_so(grid):
    assert "fewer than two settings" in sweep.from_results(grid)
    pretend(grid.trials()[0], 0.5)
    pretend(grid.trials()[1], 0.7, state="stopped")
    grid.note_stopped(grid.trials()[1].run_id, 2)
    shown = sweep.table(sweep.settings(grid))
    assert "1/3" in shown
    assert "given up" in shown
    assert "waiting" in shown


def test_the_median_rule_agrees_with_its_definition():
    """Beside statistics.median: the best look so far against the median of the others' best looks up to that step."""
    curves = random.Random(1)
    for _ in range(50):
        finished = [{step: curves.uniform(0, 1) for step in range(10, 101, 10)} for _ in range(curves.randint(3, 6))]
        mine = {step: curves.uniform(0, 1) for step in range(10, curves.choice([40, 70, 100]) + 1, 10)}
        at = max(mine)
        expected = min(mine.values()) > statistics.median(looks[at] for looks in finished)
        assert losers.is_losing(mine, finished, max_steps=100) == expected


def test_nothing_is_given_up_before_there_is_enough_to_go_by():
    good = [{10: 0.1, 60: 0.1}] * 3
    assert not losers.is_losing({60: 9.0}, good[:2], max_steps=100)
    assert not losers.is_losing({10: 9.0}, good, max_steps=100), "too early in the run"
    assert not losers.is_losing({}, good, max_steps=100)
    assert losers.is_losing({60: 9.0}, good, max_steps=100)


def test_advice_from_the_cache(small_cache, small_config, capsys):
    by_name = {each.setting: each for each in sweep.from_cache(small_cache, small_config)}
    kept = float(small_cache.kept_mass(2.0).mean())
    assert f"{kept:.1%} at T = 2" in by_name["loss.temperature"].why
    tried = [float(value) for value in (by_name["loss.temperature"].try_also or "1").split(",")]
    assert all(float(small_cache.kept_mass(value).mean()) >= 0.8 or value == 1 for value in tried)
    assert "knows this text" in by_name["loss.ce_weight"].why
    assert run_command_line(["sweep", "advice", "--cache", "small"]) == 0
    assert "python -m distill_core sweep --cache small" in capsys.readouterr().out


def test_a_teacher_that_does_not_know_the_text(small_cache, small_config, monkeypatch):
    told = {"gold_logprob": -3.0, "entropy": 1.0}
    monkeypatch.setattr(type(small_cache.manifest), "mean", lambda _, quantity, split: told[quantity])
    mixture = next(each for each in sweep.from_cache(small_cache, small_config) if each.setting == "loss.ce_weight")
    assert "does not know" in mixture.why


def test_the_chart_shows_every_seed_and_survives_none(grid):
    for trial in grid.trials():
        pretend(trial, 0.5 + 0.1 * trial.number + 0.01 * trial.seed)
    chart = sweep_chart(sweep.rows(sweep.settings(grid))).to_dict()
    values = [row for layer in chart["layer"] for row in layer.get("data", {}).get("values", []) if "seed" in row]
    assert len(values) == 12
    assert sweep_chart([]).to_dict()["layer"]


def test_a_killed_sweep_goes_on_and_takes_what_is_finished(small_cache, small_config, tmp_path, capsys):
    """The driver is killed when its first run has ended; the resumed sweep trains the second only."""
    path = tmp_path / "config.json"
    path.write_text(small(small_config).to_json())
    begin = ["sweep", "run", "mine", "--cache", "small", "--config", str(path), "--loss.temperature", "1,2", "--seeds", "1"]
    driver = subprocess.Popen([sys.executable, "-m", "distill_core", *begin], stdout=subprocess.DEVNULL)
    until(lambda: any(run.status().state == "done" for run in runs.list_runs("train")))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    finished = {run.id: run.stored_status().ended_s for run in runs.list_runs("train") if run.status().state == "done"}
    until(lambda: not any(run.status().is_active for run in runs.list_runs("train")))  # the run at work outlives its driver
    assert run_command_line(["sweep", "resume", "mine", "--chart", str(tmp_path / "chart.json")]) == 0
    said = capsys.readouterr().out
    assert "2 of 2" in said
    assert "1/1" in said
    assert json.loads((tmp_path / "chart.json").read_text())["layer"]
    for run_id, ended_s in finished.items():
        assert runs.open_run(run_id).stored_status().ended_s == ended_s, "not trained again"
    assert {run.status().label for run in runs.list_runs("train")} == {"sweep mine: temperature 1", "sweep mine: temperature 2"}


@pytest.mark.slow
def test_losers_are_given_up_with_their_other_seeds(small_cache, small_config, monkeypatch):
    """Three finished curves far better than any student can be after 4 steps: the next setting ends early and gets no second seed."""
    values = {"loss.temperature": ["1", "1.5", "2", "4"]}
    long = with_overrides(small(small_config), {"train.max_steps": 100_000, "train.eval_steps": 2})
    made = sweep.create_sweep("mine", "small", long, values, num_seeds=2, stop_losers=True)
    monkeypatch.setattr(losers, "WARM_UP_SHARE", 0.0)
    for trial in made.trials():
        if trial.number < 3:
            pretend(trial, 0.01, looks=dict.fromkeys(range(2, 400, 2), 0.01))
    said = []
    assert sweep.carry_on(made, said.append)
    loser = made.trials()[3]
    assert loser.run_id in made.stopped()
    assert runs.open_run(loser.run_id).status().state == "stopped"
    with pytest.raises(RunError):
        runs.open_run(made.trials()[7].run_id)
    assert "given up" in "\n".join(said)
    assert "Given up early, and not compared: 1 of 4 settings" in sweep.verdict(sweep.settings(made))


@pytest.mark.slow
def test_a_stopped_sweep_stops_its_run_and_is_driven_by_one_only(small_cache, small_config):
    long = with_overrides(small(small_config), {"train.max_steps": 100_000, "train.eval_steps": 50_000})
    made = sweep.create_sweep("mine", "small", long, {"loss.temperature": ["1", "2"]}, num_seeds=1)
    sweep.start_in_background(made)
    until(lambda: any(run.status().done > 1 for run in runs.list_runs("train")))
    with pytest.raises(RunError, match="worked on by another process"):
        sweep.carry_on(made, print)
    assert run_command_line(["sweep", "stop", "mine"]) == 0
    until(lambda: "stopped. Go on with it" in made.log_path.read_text())
    (run,) = runs.list_runs("train")
    until(lambda: run.status().state == "stopped")


def test_a_foreign_run_of_a_trials_name_is_refused(grid, small_config):
    runs.create_run("train", small_config, inputs={"cache": "small"}, name=grid.trials()[0].run_id)
    with pytest.raises(RunError, match="other settings than the sweep's trial"):
        sweep.carry_on(grid, print)


def test_without_optuna_the_install_line_is_said(grid, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'distill-core\[sweep\]'"):
        sweep.carry_on(grid.model_copy(update={"stop_losers": True}), print)


def test_commands_that_lack_something(capsys):
    for words in (["sweep", "--loss.temperature", "1,2"], ["sweep", "show"], ["sweep", "show", "none"]):
        assert run_command_line(words) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert run_command_line(["sweep", "list"]) == 0
