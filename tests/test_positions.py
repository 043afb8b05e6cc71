"""Learning from a share of the positions: which are chosen, that only they teach, and that nothing else changes."""

import math

import numpy as np
import pytest
import torch
from steps import carry_out, train_here

from distill_core import jobs, metrics, models
from distill_core.batches import Collate, to_tensors
from distill_core.charts.share import share_chart
from distill_core.config import from_dict, hard_label_twin, with_overrides
from distill_core.errors import ConfigError
from distill_core.losses import IGNORE_INDEX
from distill_core.positions import most_uncertain, num_chosen, num_learned, ranks_to_keep, with_widest_gaps
from distill_core.runs import create_run
from distill_core.students import build_student
from distill_core.sweep import Setting, rows_by_share


def selecting(config, by, share, **more):
    return with_overrides(config, {"loss.positions": by, "loss.position_share": share} | more)


def curve(run):
    return [[row[name] for name in ("loss", "kl", "floor", "grad_norm")] for row in metrics.read(run.metrics_path) if "loss" in row]


def weights(run):
    return models.load_model(str(run.model_folder), dtype="float32").state_dict()


@pytest.mark.parametrize(("count", "share", "chosen"), [(10, 0.5, 5), (9, 0.5, 5), (0, 0.5, 0), (3, 0.1, 1), (10, 0.7, 7), (10, 1.0, 10)])
def test_how_many_are_chosen(count, share, chosen):
    assert num_chosen(count, share) == chosen


def test_most_uncertain_by_hand():
    targets = np.array([[True, True, False, True, True], [False, True, False, False, False], [False] * 5])
    entropy = np.array([[1.0, 3.0, 9.0, 3.0, 2.0]] * 3, np.float16)
    chosen = most_uncertain(targets, entropy, 0.5)
    assert chosen.tolist() == [[False, True, False, True, False], [False, True, False, False, False], [False] * 5]
    assert most_uncertain(targets, entropy, 0.25).tolist()[0] == [False, True, False, False, False], "of equal ones the earlier"


def test_widest_gaps_against_a_search():
    dice = np.random.default_rng(3)
    targets = dice.random((4, 9)) < 0.6
    targets[2] = False
    labels = torch.from_numpy(np.where(targets, dice.integers(0, 50, (4, 9)), IGNORE_INDEX))
    gaps = dice.random((4, 9)).round(1)  # with ties
    valid_rows = torch.from_numpy(np.flatnonzero(targets))
    batch = {"labels": labels, "valid_rows": valid_rows, "gap_ranks": ranks_to_keep(targets, 0.4)}
    assert num_learned(batch) == sum(math.ceil(0.4 * row.sum() - 1e-9) for row in targets)
    found = with_widest_gaps(batch, torch.from_numpy(gaps[targets]))
    expected = np.full((4, 9), IGNORE_INDEX)
    for window in range(4):
        places = sorted(np.flatnonzero(targets[window]), key=lambda place: (-gaps[window, place], place))
        for place in places[: math.ceil(0.4 * len(places) - 1e-9)]:
            expected[window, place] = labels[window, place]
    assert found["labels"].tolist() == expected.tolist()
    assert found["valid_rows"].tolist() == np.flatnonzero(expected != IGNORE_INDEX).tolist()
    assert batch["labels"] is labels


def test_entropy_is_read_only_where_it_is_asked_for(small_cache, small_config):
    batch = Collate(small_cache, small_config.loss)([0, 1])
    assert "teacher_entropy" not in small_cache.rows("train", [0])
    chosen = Collate(small_cache, selecting(small_config, "entropy", 0.25).loss)([0, 1])
    entropy = small_cache.rows("train", [0, 1])["teacher_entropy"]
    for window in range(2):
        valid = batch["labels"][window] != IGNORE_INDEX
        kept = chosen["labels"][window] != IGNORE_INDEX
        assert kept.sum() == math.ceil(0.25 * int(valid.sum()))
        assert (valid | ~kept).all()
        assert entropy[window][kept.numpy()].min() >= entropy[window][(valid & ~kept).numpy()].max()
    assert torch.equal(chosen["valid_rows"], (chosen["labels"].flatten() != IGNORE_INDEX).nonzero().flatten())


@pytest.mark.parametrize("by", ["entropy", "gap"])
def test_the_first_step_is_that_of_the_chosen_rows_alone(small_cache, small_config, by):
    """Full logits, dense KL and plain autograd over the rows that a search over all of them finds."""
    config = selecting(small_config, by, 0.3, **{"train.max_steps": 1})
    tokenizer = models.load_tokenizer(str(small_cache.tokenizer_folder))
    student = build_student(config, tokenizer=tokenizer, real_vocab_size=small_cache.plan.vocab_size).train()
    first = small_cache.order("train", seed=config.train.seed, epoch=0)[: config.train.per_device_train_batch_size]
    small_cache.read_also("teacher_entropy")
    stored = small_cache.rows("train", first)
    rows = to_tensors(stored)
    logprobs = student(input_ids=rows["input_ids"], position_ids=rows["position_ids"], use_cache=False).logits[:, :-1].log_softmax(-1)

    def dense_kl(where):
        ids, student_lp = rows["teacher_ids"][where], logprobs[where]
        rest = student_lp.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
        target = torch.cat([rows["teacher_logprobs"][where], rows["teacher_tail"][where][:, None]], -1).log_softmax(-1)
        return (target.exp() * (target - torch.cat([student_lp.gather(-1, ids), rest], -1))).sum(-1)

    valid = rows["labels"] != IGNORE_INDEX
    kl = torch.zeros(valid.shape).masked_scatter(valid, dense_kl(valid).detach())
    score = torch.from_numpy(stored["teacher_entropy"].astype(np.float32)) if by == "entropy" else kl
    chosen = torch.zeros_like(valid)
    for window in range(len(valid)):
        places = sorted(valid[window].nonzero().flatten().tolist(), key=lambda place: (-score[window, place].item(), place))
        chosen[window, places[: math.ceil(0.3 * len(places))]] = True
    loss = dense_kl(chosen).mean()
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in student.parameters())).item()
    row = metrics.read(train_here(config).metrics_path)[-1]
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("by", ["entropy", "gap"])
def test_micro_batches_change_nothing_and_judging_looks_at_all(small_cache, small_config, by):
    pairs = {"train.max_steps": 3, "train.eval_steps": 3}
    whole = train_here(selecting(small_config, by, 0.4, **pairs))
    split = train_here(
        selecting(small_config, by, 0.4, **pairs, **{"train.per_device_train_batch_size": 1, "train.gradient_accumulation_steps": 4})
    )
    np.testing.assert_allclose(np.array(curve(whole)), np.array(curve(split)), rtol=2e-4, atol=1e-9)
    plain = train_here(with_overrides(small_config, pairs))
    first_looks = [next(row["heldout_nll"] for row in metrics.read(run.metrics_path) if "heldout_nll" in row) for run in (whole, plain)]
    assert first_looks[0] == first_looks[1]
    counts = [num_learned(Collate(small_cache, each.config().loss)([0, 1, 2])) for each in (whole, plain)]
    assert 0.4 * counts[1] <= counts[0] <= 0.4 * counts[1] + 3


@pytest.mark.parametrize("by", ["entropy", "gap"])
def test_the_whole_share_is_the_plain_run_byte_for_byte(small_cache, small_config, by):
    plain, whole = train_here(small_config), train_here(selecting(small_config, by, 1.0))
    assert curve(plain) == curve(whole)
    ours, theirs = weights(plain), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("by", ["entropy", "gap"])
def test_stopped_and_resumed_it_ends_the_same(small_cache, small_config, by, monkeypatch):
    from distill_core.training.watch import Watch

    config = selecting(small_config, by, 0.4, **{"train.max_steps": 6})
    whole = train_here(config, name="whole")
    run = create_run("train", config, inputs={"cache": "small"}, name="cut")
    original = Watch.on_step_end

    def stop_after_four(self, args, state, control, **named):
        if state.global_step == 4:
            self.run.request_stop()
        return original(self, args, state, control, **named)

    monkeypatch.setattr(Watch, "on_step_end", stop_after_four)
    carry_out(run)
    assert run.status().state == "stopped"
    monkeypatch.setattr(Watch, "on_step_end", original)
    jobs.requeue(run)
    carry_out(run)
    assert curve(run) == curve(whole)
    ours, theirs = weights(run), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_settings_are_refused_in_words():
    with pytest.raises(ConfigError, match="loss.position_share 0.5 needs loss.positions 'entropy' or 'gap'"):
        from_dict({"loss": {"position_share": 0.5}})
    for share in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="loss.position_share"):
            from_dict({"loss": {"positions": "gap", "position_share": share}})


def test_the_hard_label_twin_learns_from_all_positions():
    twin = hard_label_twin(from_dict({"loss": {"positions": "entropy", "position_share": 0.5}}))
    assert (twin.loss.positions, twin.loss.position_share) == ("all", 1.0)


def test_a_sweep_over_the_share_is_drawn_as_a_curve():
    values = [{"loss.positions": by, "loss.position_share": share} for by in ("entropy", "gap") for share in (0.25, 1.0)]
    found = [Setting(each, {0: 0.5 + i, 1: 0.7 + i}, {}, {}, {0: "done", 1: "done"}) for i, each in enumerate(values)]
    rows = rows_by_share(found, "all")
    assert [(row["positions"], row["share"], row["seed"], row["kl"]) for row in rows[:3]] == [
        ("entropy", 0.25, 0, 0.5),
        ("entropy", 0.25, 1, 0.7),
        ("entropy", 1.0, 0, 1.5),
    ]
    assert rows[0]["mean"] == pytest.approx(0.6)
    drawn = share_chart(rows).to_dict()
    assert sum("seed" in row for layer in drawn["layer"] for row in layer["data"]["values"]) == 8
    assert share_chart([]).to_dict()["layer"]
    only_share = [Setting({"loss.position_share": 0.5}, {0: 1.0}, {}, {}, {0: "done"})]
    assert rows_by_share(only_share, "gap")[0]["positions"] == "gap"
    assert rows_by_share([Setting({"loss.position_share": 0.5, "loss.top_k": 3}, {0: 1.0}, {}, {}, {0: "done"})], "gap") == []
    assert rows_by_share([], "gap") == []
