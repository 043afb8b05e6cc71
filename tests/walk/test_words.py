"""Words: steps, glossary and lesson are complete in both languages; what opens can be opened by keyboard; the export is watched."""

import itertools
import re

import pytest

from distill_core import paths, walk
from distill_core.config import DistillConfig
from distill_core.errors import RunError
from distill_core.language import in_language
from distill_core.runs import create_run
from distill_core.walk import glossary, lesson, options, pieces, scoreboard, steps, take_home
from distill_core.walk.controls import control_values

BOTH = [in_language("en"), in_language("pt")]


def test_every_step_has_its_words_and_every_word_its_explanation():
    assert list(steps.WORDS) == list(walk.STEPS)
    assert {term for words in steps.WORDS.values() for term in words.terms} <= set(glossary.TERMS)
    for key in ("loss", "train", "judge", "home"):  # those that are locked at first say what they need and what will come
        assert steps.WORDS[key].needs and steps.WORDS[key].then


def test_every_control_shows_a_value_of_the_config_and_has_its_choice():
    values = control_values(DistillConfig())
    for section, shown in values.items():
        controls = options.FORMS[section]
        assert set(controls) - set(shown) <= {"twin"}
        for name, value in shown.items():
            if controls[name].kind in ("radio", "dropdown"):
                assert value in options.offered(controls[name], value).values()
    assert options.offered(options.FORMS["train"]["learning_rate"], "0.0042")["0.0042"] == "0.0042"
    assert options.offered(options.FORMS["text"]["window_tokens"], 100)["100"] == 100
    assert all(name in options.FORMS.get(section, options.FORMS["student"]) for section, names in options.MORE.items() for name in names)


@pytest.mark.parametrize("say", BOTH, ids=lambda say: say.code)
def test_explanations_open_by_keyboard_and_answers_are_hidden(say):
    shown = lesson.lesson(say=say)
    assert shown.count("<details") == shown.count("<summary") == 1 + len(lesson.PARTS) + 3
    assert "<details open" not in shown and " open>" not in shown
    why = glossary.why("kl", "tail", say=say)
    assert why.count("<summary>") == 2
    assert say(glossary.TERMS["tail"][1]) in why
    assert glossary.glossary(say=say).count("<dt>") == len(glossary.TERMS)


def test_the_lesson_takes_45_minutes_without_a_gap():
    times = [tuple(map(int, part.minutes.split("–"))) for part in lesson.PARTS]
    assert times[0][0] == 0 and times[-1][1] == 45
    assert all(before[1] == after[0] for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("say", BOTH, ids=lambda say: say.code)
def test_the_frame_says_its_language(say):
    states = dict.fromkeys(walk.STEPS, "next")
    for piece in (pieces.hero(say), pieces.step_bar(states, "train", "x", say=say), lesson.lesson(say=say)):
        assert f'lang="{say.code}"' in piece


def test_the_verdict_is_said_in_the_visitors_language():
    rows = [
        {"who": "student", "kl_to_teacher": 0.4, "bits_per_byte": 0.38},
        {"who": "hard labels", "kl_to_teacher": 0.5, "bits_per_byte": 0.4},
    ]
    gains = {"outcome": "BEATS", "kl": [0.1, 0.09, 0.11], "bits": [0.02, 0.01, 0.03]}
    evaluation = {"rows": rows, "verdict": "in English", "gains": gains}
    said = scoreboard.verdict(evaluation, say=in_language("pt"))
    assert "MELHOR" in said and "0,400" in said and "0,090" in said
    assert scoreboard.verdict(evaluation | {"gains": None}, say=in_language("pt")) == "in English", "an older judgement has no figures"
    assert set(scoreboard.OUTCOMES) == set(re.findall(r'outcome = "([^"]+)"', (paths.PACKAGE / "judgement.py").read_text()))


def test_a_failed_export_says_why_and_a_guess_of_its_time_is_there(small_cache):
    run = create_run("train", DistillConfig(), inputs={"cache": "small"})
    run.update(state="failed", error="no")
    with pytest.raises(RunError, match=run.id):
        list(take_home.exporting(run.id))
    assert take_home.export_s(run.id) == take_home.START_S
    assert "8 s" in take_home.left(2.0, 10.0)
    assert "longer" in take_home.left(11.0, 10.0)
