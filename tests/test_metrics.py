"""Metrics: nothing half-read, nothing lost, no spike thinned away."""

import json
import random
import threading

from distill_core import metrics


def test_follower_waits_for_the_end_of_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = metrics.Follower(path)
    assert follower.read_new() == []
    path.write_text('{"step": 1}\n{"st')
    assert follower.read_new() == [{"step": 1}]
    with open(path, "a") as file:
        file.write('ep": 2}\n')
    assert follower.read_new() == [{"step": 2}]
    assert follower.read_new() == []


def test_floats_are_short_and_keys_kept(tmp_path):
    path = tmp_path / "m.jsonl"
    metrics.append(path, {"step": 3, "loss": 1 / 3, "note": None})
    assert metrics.read(path) == [{"step": 3, "loss": 0.3333333, "note": None}]


def test_resume_drops_rows_past_the_checkpoint_and_viewers_start_over(tmp_path):
    path = tmp_path / "m.jsonl"
    for step in range(10):
        metrics.append(path, {"step": step})
    feed = metrics.feed(path)
    rows, cursor, generation, _ = feed.rows_since(0)
    assert len(rows) == 10
    metrics.drop_after(path, 6)
    metrics.append(path, {"step": 7})
    rows, cursor, newer, is_whole = feed.rows_since(cursor, generation)
    assert is_whole
    assert newer == generation + 1
    assert [row["step"] for row in rows] == list(range(8))
    assert feed.rows_since(cursor, newer) == ([], 8, newer, False)


def test_one_parse_serves_many_viewers(tmp_path):
    path = tmp_path / "m.jsonl"
    feed = metrics.feed(path)
    assert metrics.feed(path) is feed
    seen = {i: [] for i in range(8)}

    def view(number):
        cursor, generation = 0, None
        while len(seen[number]) < 500:
            rows, cursor, generation, _ = feed.rows_since(cursor, generation)
            seen[number] += [row["step"] for row in rows]

    viewers = [threading.Thread(target=view, args=(i,)) for i in seen]
    for viewer in viewers:
        viewer.start()
    for step in range(500):
        metrics.append(path, {"step": step})
    for viewer in viewers:
        viewer.join(timeout=30)
    assert all(steps == list(range(500)) for steps in seen.values())


def noisy(dice, count):
    """A training's rows: figures that wander."""
    return [
        {"step": i, "loss": dice.random(), "grad_norm": dice.random(), "memory_gib": dice.random(), "peak_memory_gib": dice.random()}
        for i in range(count)
    ]


def test_thinning_keeps_every_extreme():
    """Property: the largest and smallest of the whole history survive wherever they are, and order is kept."""
    for seed in range(50):
        dice = random.Random(seed)
        rows = noisy(dice, dice.randrange(1, 3000))
        rows[dice.randrange(len(rows))]["loss"] = 100.0
        rows[dice.randrange(len(rows))]["memory_gib"] = 50.0
        kept = metrics.thin(rows, 300)
        assert len(kept) <= 300 + 2
        for name, pick in (("loss", max), ("loss", min), ("grad_norm", max), ("memory_gib", max), ("peak_memory_gib", max)):
            assert pick(row[name] for row in kept) == pick(row[name] for row in rows), name
        assert [row["step"] for row in kept] == sorted(row["step"] for row in kept)
        assert kept[0] == rows[0]
        assert kept[-1] == rows[-1]
        assert all(row in rows for row in kept[:: max(1, len(kept) // 5)]), "every kept row is a row as it was"


def test_a_spike_of_one_step_in_a_hundred_thousand_survives(tmp_path):
    """As a page opened late sees it: through the feed, in a few hundred rows; one spike of each figure, each in a step of its own."""
    flat = {"loss": 1.0, "kl": 0.5, "ce": 2.0, "grad_norm": 1.0, "memory_gib": 0.4, "peak_memory_gib": 0.5, "top1_agreement": 0.6}
    flat["tokens_per_s"] = 1000.0
    lines = [json.dumps({"step": 7, **flat}) + "\n"] * 100_000
    for place, name in enumerate(flat, start=1):
        lines[place * 11_111] = json.dumps({"step": 7, **flat, name: 1e6}) + "\n"
    path = tmp_path / "m.jsonl"
    path.write_text("".join(lines))
    part = metrics.feed(path).rows_since(0)
    assert (part.cursor, part.is_whole) == (100_000, True)
    assert len(part.rows) <= 1500
    assert {name: [row[name] for row in part.rows].count(1e6) for name in flat} == dict.fromkeys(flat, 1)


def test_each_stretch_keeps_its_own_spike():
    """Not only the one largest of all: a spike every 10,000 rows, all of them there."""
    rows = [{"step": i, "loss": 1.0, "memory_gib": 9.0 if i % 10_000 == 77 else 0.4} for i in range(100_000)]
    kept = metrics.thin(rows, 800)
    assert [row["step"] for row in kept if row["memory_gib"] == 9.0] == [i * 10_000 + 77 for i in range(10)]


def test_a_viewer_who_was_away_gets_the_history_again_and_others_only_what_is_new(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"step": i, "loss": 1.0}) + "\n" for i in range(3000)))
    feed = metrics.feed(path)
    first = feed.rows_since(0)
    assert (first.cursor, first.is_whole) == (3000, True)
    assert first.rows[-1]["step"] == 2999
    metrics.append(path, {"step": 3000, "loss": 1.0})
    present = feed.rows_since(first.cursor, first.generation)
    assert ([row["step"] for row in present.rows], present.is_whole) == ([3000], False)
    away = feed.rows_since(1000, first.generation)
    assert away.is_whole
    assert away.rows[0]["step"] == 0
    assert feed.rows_since(999_999, first.generation).is_whole, "a cursor from another history"


def test_memory_of_a_feed_does_not_grow_with_the_run(tmp_path):
    path = tmp_path / "m.jsonl"
    dice = random.Random(0)
    path.write_text("".join(json.dumps(row) + "\n" for row in noisy(dice, 20_000)))
    feed = metrics.feed(path)
    feed.rows_since(0)
    assert len(feed.recent) == feed.RECENT
    assert len(feed.thinned.rows()) <= feed.MAX_STRETCHES * 6 + 2


def test_a_figure_that_is_no_number_becomes_none(tmp_path):
    """NaN is no JSON: a browser would refuse the whole answer."""
    path = tmp_path / "m.jsonl"
    metrics.append(path, {"step": 1, "loss": float("nan"), "grad_norm": float("inf")})
    assert metrics.feed(path).rows_since(0).rows == [{"step": 1, "loss": None, "grad_norm": None}]


def test_thinning_keeps_looks_at_the_held_out_text():
    rows = [{"step": i, "loss": 1.0, "memory_gib": 1.0} for i in range(1000)]
    rows.insert(500, {"step": 500, "heldout_nll": 2.0})
    assert {"step": 500, "heldout_nll": 2.0} in metrics.thin(rows, 30)


def test_a_short_history_comes_whole():
    assert metrics.thin([], 10) == []
    assert metrics.thin([{"step": 1}], 10) == [{"step": 1}]
