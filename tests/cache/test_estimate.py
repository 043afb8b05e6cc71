"""What a capture will cost: by rule before there is a cache of that teacher, as measured afterwards."""

import pytest
from made import make

from distill_core.cache import estimate, open_cache
from distill_core.cache.estimate import OTHER_BYTES, bytes_per_position
from distill_core.config import DistillConfig, from_dict

CONFIG = from_dict(
    {
        "teacher": {"model": "made"},
        "text": {"num_windows": 100, "num_heldout_windows": 20, "window_tokens": 51},
        "capture": {"top_k": 8},
        "train": {"max_steps": 50, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    }
)


def test_by_hand_without_a_cache():
    """120 windows of 51 tokens, 50 positions each; 400 visits of 100 windows are 4 readings, for two students 8."""
    cost = estimate(CONFIG, vocab_size=256, num_students=2)
    assert cost.num_tokens == 6120
    assert cost.disk_bytes == pytest.approx(6000 * (8 * (1.35 + 1.05) + OTHER_BYTES))
    assert cost.readings == 8
    assert (cost.tokens_per_s, cost.capture_s, cost.online_s) == (None, None, None)
    assert "time       unknown (this teacher has captured nothing here yet)" in cost.to_text()
    assert "one reading instead of 8" in cost.to_text()


def test_a_cache_of_the_same_teacher_gives_bytes_and_speed():
    make("before", read_tokens_per_s=612.0)
    opened = open_cache("before")
    num_positions = opened.manifest.num_positions("train") + opened.manifest.num_positions("heldout")
    cost = estimate(CONFIG, vocab_size=60)
    assert cost.disk_bytes == pytest.approx(6000 * opened.manifest.num_bytes / num_positions)
    assert cost.capture_s == pytest.approx(10.0)
    assert cost.online_s == pytest.approx(40.0)
    assert "10 s (612 tokens/s, measured by cache before)" in cost.to_text()
    assert "saves 30 s" in cost.to_text()
    other = estimate(CONFIG.changed(teacher=CONFIG.teacher.changed(model="other")), vocab_size=60)
    assert (other.tokens_per_s, "by rule" in other.bytes_from) == (None, True)
    packed = estimate(CONFIG.changed(capture=CONFIG.capture.changed(codec="packed")), vocab_size=60)
    assert "by rule" in packed.bytes_from
    assert packed.capture_s == pytest.approx(10.0)


def test_one_reading_has_not_paid():
    config = CONFIG.changed(train=CONFIG.train.changed(max_steps=5))
    assert "has not paid after 0.4 readings" in estimate(config, vocab_size=256).to_text()


@pytest.mark.parametrize(
    ("codec", "top_k", "vocab_size", "measured"),
    [
        ("exact", 100, 151_936, 364), ("exact", 50, 151_936, 204), ("exact", 20, 151_936, 105), ("exact", 100, 2048, 320),
        ("packed", 100, 151_936, 255), ("packed", 50, 151_936, 155), ("packed", 20, 151_936, 93), ("packed", 100, 2048, 178),
    ],
)  # fmt: skip
def test_the_rule_against_bench_cache(codec, top_k, vocab_size, measured):
    assert bytes_per_position(codec, top_k=top_k, vocab_size=vocab_size) == pytest.approx(measured, rel=0.15)


def test_defaults_fit_on_any_disk():
    assert 1e6 < estimate(DistillConfig(), vocab_size=2048).disk_bytes < 1e8
