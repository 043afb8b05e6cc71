"""Chains: links of ordinary caches and runs, resumable, each student judged by the first teacher."""

import itertools
import json
import math
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from steps import carry_out
from test_jobs import until

from distill_core import chain, comparison, jobs, metrics, models, room, runs
from distill_core.cache import open_cache
from distill_core.chain import checks, drive
from distill_core.charts.chain import chain_chart
from distill_core.cli import run_command_line
from distill_core.config import from_dict, with_overrides
from distill_core.errors import CacheError, ConfigError, RoomError, RunError, VocabularyError
from distill_core.language import in_language
from distill_core.paths import caches_dir

TWO = {"chain.kind": "progressive", "chain.links": [{"student.hidden_size": 48}, {"student.hidden_size": 32, "train.max_steps": 6}]}


@pytest.fixture
def tiny(small_config):
    """The small config, its students' sizes left to the chain."""
    student = {"num_layers": 1, "hidden_size": None, "num_attention_heads": None, "intermediate_size": None}
    changes = {f"student.{name}": value for name, value in student.items()}
    return with_overrides(
        small_config, {**changes, "train.max_steps": 4, "train.eval_steps": 2, "train.save_steps": 2, "capture.name": None}
    )


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs are carried out where they are submitted: no process for each, which would take seconds to start."""
    monkeypatch.setattr(jobs, "start", carry_out)


def captured(made, home):
    """The small cache as the chain's first, as if its capture had been done."""
    link = made.links()[0]
    shutil.copytree(home / "caches" / "small", home / "caches" / link.cache)
    runs.create_run("capture", link.config(), name=link.capture_id).update(state="done", started_s=1.0, ended_s=3.0)


def test_the_links_of_a_progressive_chain(tiny):
    made = chain.create_chain("steps", with_overrides(tiny, {**TWO, "chain.with_direct": True}))
    one, two, direct = made.links()
    assert [link.name for link in made.links()] == ["steps-1", "steps-2", "steps-direct"]
    assert [link.teacher for link in made.links()] == ["builtin", "run:steps-1", "builtin"]
    assert [link.cache for link in made.links()] == ["steps-1-cache", "steps-2-cache", "steps-1-cache"]
    assert [link.config().student.hidden_size for link in made.links()] == [48, 32, 32]
    assert [link.config().train.max_steps for link in made.links()] == [4, 6, 10], "the direct student has as many steps as both"
    assert [link.config().train.seed for link in made.links()] == [0, 1, 0]
    assert one.config().text == two.config().text == direct.config().text
    assert direct.config().student == two.config().student
    assert all(link.config().chain.kind is None for link in made.links()), "a link is an ordinary run"
    assert chain.open_chain("steps") == made
    assert chain.list_chains() == [made]


def test_sizes_that_follow_the_teacher_are_written_down(tiny):
    """Half of the teacher, then half of that; the direct student is like the last, not half of its own teacher."""
    facts = checks.facts_along([], tiny)[0]
    free = with_overrides(
        tiny, {"student.num_layers": None, "chain.kind": "progressive", "chain.links": [{}, {}], "chain.with_direct": True}
    )
    sizes = [link.config().student for link in chain.create_chain("halves", free).links()]
    assert [student.num_layers for student in sizes] == [facts.num_layers // 2, facts.num_layers // 4, facts.num_layers // 4]
    assert [student.hidden_size for student in sizes] == [facts.hidden_size // 2, facts.hidden_size // 4, facts.hidden_size // 4]


def test_a_student_cut_from_a_student(tiny):
    cut = with_overrides(tiny, {"student.init": "prune_layers", "student.num_layers": None, "student.hidden_size": None})
    links = [{"student.num_layers": 3}, {"student.keep_layers": [0, 2]}]
    made = chain.create_chain("cut", with_overrides(cut, {"chain.kind": "progressive", "chain.links": links, "chain.with_direct": True}))
    _, two, direct = made.links()
    assert (two.config().student.keep_layers, two.teacher) == ((0, 2), "run:cut-1")
    assert (direct.config().student.keep_layers, direct.config().student.num_layers) == (None, 2), "those were the middle student's layers"


def test_rounds_of_one_student(tiny):
    again = chain.create_chain("again", with_overrides(tiny, {"chain.kind": "iterative", "chain.rounds": 3}))
    assert [link.teacher for link in again.links()] == ["builtin", "run:again-1", "run:again-2"]
    assert len({(link.config().student, link.config().train.max_steps) for link in again.links()}) == 1, "same size and budget"
    assert {link.config().student.hidden_size for link in again.links()} == {96}, "half of the first teacher's, in every round"
    assert {link.config().loss.kl_weight for link in again.links()} == {1.0}
    born = chain.create_chain("born", with_overrides(tiny, {"chain.kind": "born_again", "chain.rounds": 2, "chain.with_direct": True}))
    assert [link.teacher for link in born.links()] == ["builtin", "run:born-1", "run:born-2", "builtin"]
    assert [(link.config().loss.kl_weight, link.config().loss.ce_weight) for link in born.links()] == [(0, 1), (1, 0), (1, 0), (1, 0)]
    assert [link.config().train.seed for link in born.links()] == [0, 1, 2, 0], "each round begins from other random weights"
    assert born.links()[3].config().train.max_steps == 12


def test_on_policy_rounds_go_on_from_their_own_weights(tiny):
    learner = {"chain.kind": "on_policy", "chain.rounds": 3, "chain.with_direct": True, "text.synthetic_share": 0.25}
    made = chain.create_chain("own", with_overrides(tiny, {**learner, "train.learning_rate": 1e-3, "write.seed": 7}))
    one, two, three, direct = made.links()
    assert {link.teacher for link in made.links()} == {"builtin"}, "the teacher judges every round"
    assert [link.writes for link in made.links()] == [False, True, True, False]
    assert (one.config().text.synthetic, two.config().text.synthetic) == (None, "written:own-2-text")
    assert [link.config().student.model for link in (two, three)] == ["run:own-1", "run:own-2"]
    assert (three.config().write.by, three.config().write.name, three.config().write.seed) == ("run:own-2", "own-3-text", 9)
    assert direct.config().student == one.config().student, "from the start, on real text"
    assert (direct.config().text.synthetic, direct.config().train.max_steps) == (None, 12)
    assert {link.config().text.synthetic_share for link in made.links()} == {0.25}
    assert made.run_ids()[3:7] == ["own-2-write", "own-2-capture", "own-2", "own-2-judged"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chain.kind": "on_policy", "chain.rounds": 2, "text.synthetic": "written:mine"}, "what the student writes"),
        ({"chain.kind": "progressive"}, "chain.links is empty"),
        ({"chain.kind": "iterative"}, "needs chain.rounds"),
        ({"chain.kind": "iterative", "chain.rounds": 0}, "chain.rounds"),
        ({"chain.rounds": 2}, "only read with chain.kind"),
        ({**TWO, "chain.rounds": 3}, "chain.rounds 3 contradicts the 2 chain.links"),
        ({"chain.kind": "born_again", "chain.links": [{"student.num_layers": 2}]}, "keeps its student"),
        ({"chain.kind": "progressive", "chain.links": [{"text.num_windows": 9}]}, "text.num_windows of link 1 cannot differ"),
        ({"chain.kind": "progressive", "chain.links": [{"train.name": "mine"}]}, "train.name of link 1"),
        ({"chain.kind": "progressive", "chain.links": [{"student.hiden_size": 32}]}, "Did you mean 'hidden_size'"),
        ({"chain.kind": "progressive", "chain.links": [{}, {"student.hidden_size": 31}]}, "31 cannot be split"),
        ({"chain.kind": "iterative", "chain.rounds": 2, "student.init": "prune_layers"}, "as its own teacher"),
        ({"chain.kind": "backwards"}, "chain.kind"),
        ({}, "describes no chain"),
    ],
)
def test_what_makes_no_chain_is_refused_by_name(tiny, changes, words):
    with pytest.raises(ConfigError, match=words):
        chain.create_chain("wrong", with_overrides(tiny, changes))
    assert chain.list_chains() == []


def test_links_with_other_tokenizers_are_refused_before_the_first(tiny, tmp_path):
    shutil.copytree(models.catalog.builtin_folder(), tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    stored = json.loads(path.read_text())
    first, second = list(stored["model"]["vocab"])[300:302]
    vocabulary = stored["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(stored))
    links = [{"student.hidden_size": 48}, {"student.init": "pretrained", "student.model": str(tmp_path / "other")}]
    with pytest.raises(VocabularyError, match="chain link 2.*differ in 2 tokens"):
        chain.create_chain("mixed", with_overrides(tiny, {"chain.kind": "progressive", "chain.links": links}))
    shutil.copytree(models.catalog.builtin_folder(), tmp_path / "same")
    links[1]["student.model"] = str(tmp_path / "same")
    made = chain.create_chain("alike", with_overrides(tiny, {"chain.kind": "progressive", "chain.links": links}))
    assert chain.warnings_of(made)[0].startswith("link 2: the student has 2.16M parameters"), "larger than its teacher: said, not refused"


def test_the_same_chain_again_is_opened_and_another_of_the_name_refused(tiny):
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    assert chain.create_chain("steps", with_overrides(tiny, TWO)) == made
    stored = json.loads((made.folder / "chain.json").read_text())
    del stored["config"]["write"]
    (made.folder / "chain.json").write_text(json.dumps(stored))
    assert chain.create_chain("steps", with_overrides(tiny, TWO)).name == "steps", "made by a version that had fewer settings"
    with pytest.raises(RunError, match="the name is taken"):
        chain.create_chain("steps", with_overrides(tiny, {**TWO, "chain.with_direct": True}))
    with pytest.raises(RunError, match="Did you mean 'steps'"):
        chain.open_chain("step")


def dense_figures(run_id, cache):
    """KL to the teacher's stored entries and tail, bits per byte and agreement, by full logits, one document at a time, in NumPy."""
    model = models.load_model(f"run:{run_id}", dtype="float32")
    kl, nll, agreed, count, num_bytes = 0.0, 0.0, 0, 0, 0
    for window in range(cache.num_windows("heldout")):
        row = {name: values[0] for name, values in cache.rows("heldout", [window]).items()}
        starts = [place for place, position in enumerate(row["position_ids"]) if position == 0] + [len(row["position_ids"])]
        for start, end in itertools.pairwise(starts):
            logits = model(torch.tensor(row["input_ids"][None, start:end])).logits[0].detach().double().numpy()
            for place in range(start, end - 1):
                if not row["targets"][place]:
                    continue
                student = logits[place - start] - np.logaddexp.reduce(logits[place - start])
                ids, teacher = row["teacher_ids"][place], row["teacher_logprobs"][place].astype(float)
                kl += (np.exp(teacher) * (teacher - student[ids])).sum()
                tail, rest = math.exp(row["teacher_tail"][place]), 1 - np.exp(student[ids]).sum()
                kl += tail * (math.log(tail) - math.log(rest))
                nll -= student[row["input_ids"][place + 1]]
                agreed += student.argmax() == ids[0]
                count += 1
                num_bytes += row["token_bytes"][place + 1]
    return kl / count, nll / math.log(2) / num_bytes, agreed / count


def test_two_links_through_the_command_line(small_cache, tiny, distill_home, tmp_path, in_this_process, capsys):
    path = tmp_path / "config.json"
    path.write_text(tiny.to_json())
    words = ["chain", "run", "steps", "--config", str(path), "--chain.kind", "progressive", "--student.hidden_size", "48,32"]
    assert run_command_line([*words, "--with-direct", "--chart", str(tmp_path / "chart.json")]) == 0
    said = capsys.readouterr().out
    assert "2 of 3: steps-2, taught by run:steps-1" in said
    assert "the chain is" in said
    made = chain.open_chain("steps")
    first, found = open_cache("steps-1-cache"), chain.rows(made)
    assert [row["name"] for row in found] == ["builtin", "steps-1", "steps-2", "steps-direct"]
    assert chain.state_of(made) == "done"
    for row in found[1:]:
        kl, bits, agreement = dense_figures(row["name"], first)
        assert row["kl_to_teacher"] == pytest.approx(kl, rel=1e-4)
        assert row["bits_per_byte"] == pytest.approx(bits, rel=1e-4)
        assert row["top1_agreement"] == pytest.approx(agreement)
        assert row["num_parameters"] == models.load_model(f"run:{row['name']}").num_parameters()
    assert open_cache("steps-2-cache").manifest.teacher.model == "run:steps-1"
    assert drive.is_same_heldout(first, open_cache("steps-2-cache"))
    own = comparison.qualities([runs.open_run("steps-2")])["steps-2"]
    assert own["kl_to_teacher"] != found[2]["kl_to_teacher"], "a run's own page speaks of its own teacher"
    points = json.loads((tmp_path / "chart.json").read_text())["layer"][1]["data"]["values"]
    assert [point["kl"] for point in points] == [row["kl_to_teacher"] for row in found[1:]]

    before = {run.id: run.stored_status() for run in runs.list_runs()}
    assert run_command_line(["chain", "resume", "steps"]) == 0, "nothing is done twice"
    assert {run.id: run.stored_status() for run in runs.list_runs()} == before
    assert run_command_line(["chain", "delete", "steps"]) == 0
    assert runs.list_runs() == []
    assert [folder.name for folder in (distill_home / "caches").iterdir()] == ["small"]
    assert run_command_line(["chain", "show", "steps"]) == 2


def test_an_on_policy_round_writes_reads_and_goes_on(small_cache, tiny, distill_home, in_this_process):
    rounds = {"chain.kind": "on_policy", "chain.rounds": 2, "write.num_texts": 40, "write.max_new_tokens": 24, "write.min_new_tokens": 1}
    made = chain.create_chain("own", with_overrides(tiny, {**rounds, "write.max_repeated": 1}))
    captured(made, distill_home)
    assert chain.carry_on(made, lambda _: None)
    first, second = open_cache("own-1-cache"), open_cache("own-2-cache")
    assert drive.is_same_heldout(first, second), "what is held out is always real"
    changed = [not np.array_equal(first.stored("train", i)["input_ids"], second.stored("train", i)["input_ids"]) for i in range(24)]
    assert any(changed) and not all(changed), "a share of the text is the student's own"
    before, after = (models.load_model(f"run:own-{number}").state_dict() for number in (1, 2))
    start = metrics.read(runs.open_run("own-2").metrics_path)[0]
    assert start["step"] == 0
    kept = json.loads((runs.open_run("own-1").model_folder / "best.json").read_text())
    assert start["heldout_nll"] == pytest.approx(kept["nll"], rel=1e-5), "it begins where the round before ended"
    assert {name: weight.shape for name, weight in before.items()} == {name: weight.shape for name, weight in after.items()}
    assert [row["state"] for row in chain.rows(made)] == ["done"] * 3
    chain.delete_chain(made)
    assert list((distill_home / "texts").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_chain_goes_on_and_takes_what_is_finished(small_cache, tiny, distill_home, monkeypatch):
    """The driver is killed when its first student is trained; the resumed chain makes the rest, under the same names, nothing twice."""
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    captured(made, distill_home)
    driver = subprocess.Popen([sys.executable, "-m", "distill_core", "chain", "resume", "steps"], stdout=subprocess.DEVNULL)
    until(lambda: any(run.status().state == "done" for run in runs.list_runs("train")))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert chain.state_of(made) == "stopped"
    until(lambda: not any(run.status().is_active for run in runs.list_runs()))  # the run at work outlives its driver
    finished = {run.id: run.stored_status() for run in runs.list_runs() if run.status().state == "done"}
    monkeypatch.setattr(jobs, "start", carry_out)
    assert chain.carry_on(made, lambda _: None)
    names = ["steps-1-capture", "steps-1", "steps-1-judged", "steps-2-capture", "steps-2", "steps-2-judged"]
    assert sorted(run.id for run in runs.list_runs()) == sorted(names)
    assert {run_id: runs.open_run(run_id).stored_status() for run_id in finished} == finished
    assert [row["state"] for row in chain.rows(made)] == ["done"] * 3


def test_a_failed_link_says_why_and_goes_on_when_it_can(small_cache, tiny, distill_home, in_this_process, capsys):
    made = chain.create_chain("steps", with_overrides(tiny, {"chain.kind": "iterative", "chain.rounds": 1}))
    captured(made, distill_home)
    shard = next((distill_home / "caches" / "steps-1-cache" / "shards").glob("*.parquet"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9] + b"x" + whole[-8:])
    with pytest.raises(CacheError):
        chain.carry_on(made, lambda _: None)
    assert chain.state_of(made) == "failed"
    shown = chain.table(chain.rows(made))
    assert "failed: cache steps-1-cache" in shown
    assert run_command_line(["chain", "show", "steps"]) == 0
    shard.write_bytes(whole)
    assert chain.carry_on(made, lambda _: None)
    assert chain.state_of(made) == "done"


def test_a_run_that_fails_elsewhere_ends_the_chain_with_its_reason(small_cache, tiny, distill_home, monkeypatch):
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    captured(made, distill_home)
    monkeypatch.setattr(jobs, "start", lambda run: run.update(state="failed", error="no memory left."))
    with pytest.raises(RunError, match=r"chain steps ends at steps-1, which failed: no memory left\.\n.*chain resume steps"):
        chain.carry_on(made, lambda _: None)


def test_a_stopped_chain_stops_its_run(small_cache, tiny, distill_home, monkeypatch):
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    captured(made, distill_home)
    monkeypatch.setattr(jobs, "start", lambda run: made.ask_to_stop())
    said = []
    assert not chain.carry_on(made, said.append)
    (run,) = runs.list_runs("train")
    assert run.stop_requested()
    assert "steps-1" in said[-1]
    run.update(state="stopped")
    monkeypatch.setattr(jobs, "start", lambda run: run.update(state="stopped"))
    assert not chain.carry_on(made, said.append), "its run was stopped by hand: the chain waits to be resumed"
    assert chain.state_of(made) == "stopped"


def test_other_text_in_a_later_link_is_refused(small_cache, tiny, distill_home, in_this_process):
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    other = with_overrides(tiny, {"text.seed": 5, "capture.name": "other", "text.num_windows": 8})
    jobs.submit_capture(other)
    assert not drive.is_same_heldout(open_cache("small"), open_cache("other"))
    assert drive.is_same_heldout(open_cache("small"), open_cache("small"))
    captured(made, distill_home)
    two = made.links()[1]
    shutil.copytree(distill_home / "caches" / "other", distill_home / "caches" / two.cache)
    runs.create_run("capture", two.config(), name=two.capture_id).update(state="done")
    with pytest.raises(CacheError, match="steps-2-cache holds other held-out text than steps-1-cache"):
        drive._capture(two, two.config(), print)


def test_a_foreign_run_of_a_links_name_is_refused(tiny):
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    runs.create_run("train", tiny, inputs={"cache": "small"}, name="steps-1")
    with pytest.raises(RunError, match="other settings than the chain's run"):
        chain.carry_on(made, print)


def test_a_chain_is_driven_by_one_only_and_not_deleted_meanwhile(tiny, monkeypatch):
    made = chain.create_chain("steps", with_overrides(tiny, TWO))
    monkeypatch.setattr(drive, "LOOK_S", 0.05)

    def second(_words):
        with pytest.raises(RunError, match="worked on by another process"):
            chain.carry_on(made, print)
        with pytest.raises(RunError, match="Stop it first"):
            chain.delete_chain(made)
        assert chain.state_of(made) == "running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chain.carry_on(made, second)
    assert chain.state_of(made) == "stopped"
    assert chain.delete_chain(made) == 0


def made_row(link, kl, *, seconds=60.0):
    figures = {"kl_to_teacher": kl, "bits_per_byte": kl, "top1_agreement": 0.5, "num_parameters": 1000, "disk_bytes": 4000}
    costs = {"train_s": seconds, "before_s": 30.0, "cache_bytes": 5, "steps": 100}
    return {"name": f"x-{link}", "link": link, "teacher": "builtin", "state": "done", "error": None, **figures, **costs}


def test_the_verdict_says_which_is_nearer_and_what_it_took():
    links = [made_row(1, 0.4), made_row(2, 0.5)]
    assert "chain.with_direct" in chain.verdict(links)
    direct = made_row("direct", 0.55) | {"before_s": 0.0}
    words = chain.verdict([*links, direct])
    assert "0.0500 nearer" in words
    assert "3 min 00 s of work against 1 min 30 s" in words, "two captures and two trainings; the first capture and the direct training"
    assert "0.1000 further" in chain.verdict([*links, direct | {"kl_to_teacher": 0.4}])
    assert chain.verdict([links[0], made_row(2, None), direct]) == "No verdict yet: 1 of 2 links are judged."


def test_the_table_speaks_the_visitors_language():
    rows = [made_row("teacher", 0.0) | {"teacher": None, "steps": None, "train_s": None}, made_row(1, 0.4), made_row("direct", None)]
    first, second, third = chain.table_rows(rows, say=in_language("pt"))
    assert (first["aluno"], first["passos"]) == ("professor: x-teacher", "")
    assert (second["KL ao primeiro professor"], second["mesma primeira escolha"], second["estado"]) == ("0,4000", "50,0%", "feito")
    assert third["KL ao primeiro professor"] == ""
    assert "0,1000 mais longe" in chain.verdict([made_row(1, 0.5), made_row("direct", 0.4)], say=in_language("pt"))


def test_in_a_room_a_chain_belongs_to_its_visitor(tiny, tmp_path, monkeypatch):
    (tmp_path / "policy.json").write_text("{}")
    monkeypatch.setenv(room.POLICY_VARIABLE, str(tmp_path / "policy.json"))
    begun = []
    monkeypatch.setattr(drive, "start_detached", lambda command, _log: begun.append(command[-3:]))
    config, ada, bob = with_overrides(tiny, TWO), room.Visitor("Ada"), room.Visitor("Bob")
    with pytest.raises(RoomError, match="name of its visitor"):
        chain.submit("steps", config)
    made = chain.submit("steps", config, owner="Ada")
    assert begun == [["chain", "resume", "steps"]]
    with pytest.raises(RunError, match="the name is taken"):
        chain.submit("steps", config, owner="Bob")
    for touch in (chain.stop, chain.resume, chain.delete_chain):
        with pytest.raises(RoomError, match="chain steps belongs to Ada"):
            touch(made, by=bob)
    foreign = {"chain.kind": "progressive", "chain.links": [{"student.init": "pretrained", "student.model": "/etc"}]}
    with pytest.raises(RoomError, match="outside the folders"):
        chain.submit("other", with_overrides(tiny, foreign), owner="Ada")
    monkeypatch.setattr(jobs, "start", lambda run: run.update(state="failed", error="no memory left."))
    with pytest.raises(RunError, match="steps-1-capture, which failed"):
        chain.carry_on(made, lambda _: None)
    assert [run.stored_status().owner for run in runs.list_runs()] == ["Ada"]
    (caches_dir() / "steps-1-cache").mkdir(parents=True)  # begun: still hers when her chain goes
    chain.stop(made, by=ada)
    chain.delete_chain(made, by=ada)
    assert chain.list_chains() == runs.list_runs() == list(caches_dir().iterdir()) == []


def test_the_chart_leaves_out_what_was_not_judged():
    assert chain_chart([]).to_dict()["layer"]
    rows = [made_row("teacher", 0.0), made_row(1, 0.4), made_row(2, None), made_row("direct", 0.6)]
    points = chain_chart(rows).to_dict()["layer"][1]["data"]["values"]
    assert [point["link"] for point in points] == [1, "direct"]


def test_commands_that_lack_something(capsys):
    for words in (
        ["chain", "show"],
        ["chain", "show", "none"],
        ["chain", "run", "x"],
        ["chain", "run", "x", "--chain.kind", "progressive", "--student.hidden_size", "64,32", "--train.max_steps", "4,5,6"],
    ):
        assert run_command_line(words) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert run_command_line(["chain", "list"]) == 0


def test_a_config_file_holds_the_whole_chain(tiny):
    whole = with_overrides(tiny, {**TWO, "chain.with_direct": True})
    assert from_dict(json.loads(whole.to_json())) == whole
