"""HTML pieces: nothing from outside is taken for markup, and every state has its words."""

import re

import pytest

from distill_core import catalog
from distill_core.walk import STEPS, facts, pieces, reading, scoreboard

EVIL = "<script>alert('x')</script>"
LOOKED_AT = {"position": 1, "token": "a", "is_target": True, "probability": 0.25, "kept_mass": 0.5, "choices": []}


def test_text_from_outside_is_escaped():
    token = {"document": 0, "token": EVIL, "token_id": 1, "is_target": True}
    row = {"who": EVIL, "samples": [EVIL], "bits_per_byte": 1.0}
    made = [
        reading.tokens([token]),
        pieces.notes([EVIL]),
        pieces.plain(EVIL),
        pieces.facts([(EVIL, EVIL)]),
        pieces.locked(EVIL, EVIL),
        pieces.aside(EVIL),
        facts.stale([EVIL]),
        facts.suggestions([(EVIL, 5)]),
        reading.window([{"position": 0, "token": EVIL, "is_target": False}], temperature=1.0),
        reading.window([LOOKED_AT | {"token": EVIL}], temperature=1.0),
        reading.window([LOOKED_AT | {"choices": [{"token": EVIL, "probability": 0.5}]}], temperature=1.0),
        scoreboard.judge_table([row]),
        scoreboard.samples([EVIL], [row]),
    ]
    for piece in made:
        assert "<script" not in piece
        assert "&lt;script&gt;" in piece


@pytest.mark.parametrize("state", list(pieces.SAID))
def test_every_state_is_said_in_words_not_only_in_colour(state):
    states = dict.fromkeys(STEPS, state)
    assert pieces.SAID[state] in pieces.step_heading("train", states)
    bar = pieces.step_bar(states, "train", "Press")
    assert bar.count(f": {pieces.SAID[state]}") == 9
    assert bar.count("<li") == 9


def test_bar_links_to_headings():
    states = dict.fromkeys(STEPS, "ready")
    targets = set(re.findall(r'href="#([\w-]+)"', pieces.step_bar(states, "train", "Press")))
    assert targets == {re.search(r'id="([\w-]+)"', pieces.step_heading(key, states)).group(1) for key in STEPS}


@pytest.mark.parametrize(
    ("hard", "temperature", "divergence", "said"),
    [
        (0, 1, "forward_kl", "loss = 1 × KL(teacher ‖ student)"),
        (0.5, 2, "forward_kl", "loss = 0.5 × 2² × KL(teacher ‖ student) at T = 2 + 0.5 × cross-entropy with the text's next token"),
        (1, 2, "reverse_kl", "loss = 1 × cross-entropy with the text's next token"),
        (0, 1.5, "reverse_kl", "loss = 1 × 1.5² × KL(student ‖ teacher) at T = 1.5"),
    ],
)
def test_formula(hard, temperature, divergence, said):
    loss = {
        "hard_share": hard,
        "temperature": temperature,
        "divergence": divergence,
        "z_loss_weight": 0,
        "adversarial_weight": 0,
        "hidden_weight": 0,
        "positions": "all",
    }
    assert said in facts.formula(loss).replace("&#x27;", "'")
    assert "over 25% of each window" in facts.formula(loss | {"positions": "gap", "position_share": 0.25})
    assert "+ 2 × hidden states" in facts.formula(loss | {"hidden_weight": 2})
    assert "+ 0.5 × the same on changed input" in facts.formula(loss | {"adversarial_weight": 0.5})


def test_tokens_show_the_mask():
    rows = [{"document": 0, "token": word, "token_id": i, "is_target": i > 0} for i, word in enumerate(("<eos>", "Once", "\n"))]
    shown = reading.tokens(rows)
    assert shown.count('class="seen" title') == 1
    assert shown.count('class="learned" title') == 2
    assert "⏎" in shown


def test_a_window_shows_what_the_teacher_expected():
    choices = [{"token": "\n", "probability": 0.5}, {"token": "a", "probability": 0.25}]
    shown = reading.window([{"position": 0, "token": "<eos>", "is_target": False}, LOOKED_AT | {"choices": choices}], temperature=2.0)
    assert shown.count("only read") == 1
    assert "<td>25.00%</td><td>50.00%</td>" in shown
    assert shown.index("⏎ <small>50.0%") < shown.index("a <small>25.0%")
    assert shown.count("class=hit") == 1
    assert "choices at T = 2." in shown


def test_the_table_has_a_line_for_each_and_dashes_for_what_is_unknown():
    rows = [{"who": "hard labels", "bits_per_byte": 1.5}, {"who": "teacher", "bits_per_byte": 0.25, "num_parameters": 2_160_000}]
    table = scoreboard.judge_table(rows)
    assert table.index("teacher") < table.index("hard-label twin"), "teacher first"
    assert "2.16M" in table
    assert "–" in table


def test_facts_of_the_built_in_teacher():
    shown = facts.model_facts(catalog.facts("builtin"))
    assert "2,048" in shown
    assert "Apache-2.0" in shown
