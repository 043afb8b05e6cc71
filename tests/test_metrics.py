"""Metrics: nothing half-read, nothing lost, no spike thinned away."""

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
    rows, cursor, generation = feed.rows_since(0)
    assert len(rows) == 10
    metrics.drop_after(path, 6)
    metrics.append(path, {"step": 7})
    rows, cursor, newer = feed.rows_since(cursor, generation)
    assert newer == generation + 1
    assert [row["step"] for row in rows] == list(range(8))
    assert feed.rows_since(cursor, newer) == ([], 8, newer)


def test_one_parse_serves_many_viewers(tmp_path):
    path = tmp_path / "m.jsonl"
    feed = metrics.feed(path)
    assert metrics.feed(path) is feed
    seen = {i: [] for i in range(8)}

    def view(number):
        cursor, generation = 0, None
        while len(seen[number]) < 500:
            rows, cursor, generation = feed.rows_since(cursor, generation)
            seen[number] += [row["step"] for row in rows]

    viewers = [threading.Thread(target=view, args=(i,)) for i in seen]
    for viewer in viewers:
        viewer.start()
    for step in range(500):
        metrics.append(path, {"step": step})
    for viewer in viewers:
        viewer.join(timeout=30)
    assert all(steps == list(range(500)) for steps in seen.values())


def test_thinning_keeps_every_extreme():
    """Property: the largest memory, largest loss and smallest loss of the whole history survive, and order is kept."""
    for seed in range(50):
        dice = random.Random(seed)
        rows = [{"step": i, "loss": dice.random(), "memory_gib": dice.random()} for i in range(dice.randrange(1, 3000))]
        rows[dice.randrange(len(rows))]["loss"] = 100.0
        rows[dice.randrange(len(rows))]["memory_gib"] = 50.0
        kept = metrics.thin(rows, 300)
        assert len(kept) <= max(300, 3)
        assert max(row["loss"] for row in kept) == max(row["loss"] for row in rows)
        assert min(row["loss"] for row in kept) == min(row["loss"] for row in rows)
        assert max(row["memory_gib"] for row in kept) == max(row["memory_gib"] for row in rows)
        assert [row["step"] for row in kept] == sorted(row["step"] for row in kept)


def test_thinning_keeps_looks_at_the_held_out_text():
    rows = [{"step": i, "loss": 1.0, "memory_gib": 1.0} for i in range(1000)]
    rows.insert(500, {"step": 500, "heldout_nll": 2.0})
    assert {"step": 500, "heldout_nll": 2.0} in metrics.thin(rows, 30)
