"""Teachers that see: the truth is the whole image-text model, dense, on the processor's tokens and pixels, one pair at a time."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
import seeing
from siblings import save_sibling
from steps import capture_here, train_here

from distill_core import corpus, images, models
from distill_core.cache import open_cache
from distill_core.cli import run_command_line
from distill_core.config import TextConfig, with_overrides
from distill_core.errors import ConfigError, DistillError, ModelError, VocabularyError
from distill_core.students import build_student

NUM_PAIRS = 12
SIZES = itertools.cycle([(16, 16), (12, 30), (40, 20)])
PICTURES = [seeing.picture(seed, size) for seed, size in zip(range(NUM_PAIRS), SIZES, strict=False)]
STORIES = [document.text for document, _ in zip(corpus.documents(TextConfig()), range(NUM_PAIRS), strict=False)]
KINDS = {"llava": seeing.llava, "idefics3": seeing.idefics3}


@pytest.fixture
def pairs(small_config, tmp_path):
    """(kind of teacher, texts, images) -> a config that captures pairs from a Parquet file."""

    def made(kind="llava", texts=STORIES, pictures=PICTURES, **changes):
        pl.DataFrame({"text": texts, "image": pictures}).write_parquet(tmp_path / "pairs.parquet")
        fixed = {
            "teacher.model": KINDS[kind](tmp_path / kind),
            "text.source": str(tmp_path / "pairs.parquet"),
            "text.image_column": "image",
            "text.packing": False,
            "text.window_tokens": 128,
            "text.num_windows": 8,
            "text.num_heldout_windows": 3,
            "capture.name": "seen",
        }
        return with_overrides(small_config, fixed | changes)

    return made


def dense(config, text, picture):
    """(ids, float64 log-probabilities of every next token [S, V]) of the whole model on one written text and its image."""
    model, processor = (
        models.load_model(config.teacher.model, dtype="float32", sees_images=True),
        models.load_processor(config.teacher.model),
    )
    made = processor(text=[text], images=[[images.open_image(picture)]], add_special_tokens=False, return_tensors="pt")
    return made["input_ids"][0].tolist(), model(**made).logits[0].detach().double().log_softmax(-1).numpy()


def assert_says(row, t, truth_V, size):
    truth_V = truth_V[:size] - np.log(np.exp(truth_V[:size]).sum())
    np.testing.assert_allclose(row["teacher_logprobs"][t], np.sort(truth_V)[::-1][:20], rtol=2e-3, atol=4e-3)
    np.testing.assert_allclose(row["teacher_logprobs"][t], truth_V[row["teacher_ids"][t]], rtol=2e-3, atol=4e-3)
    assert row["gold_logprob"][t] == pytest.approx(truth_V[row["input_ids"][t + 1]], abs=4e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_against_the_whole_model(pairs, kind):
    config = pairs(kind)
    capture_here(config)
    cache, tokenizer = open_cache("seen"), models.load_tokenizer(config.teacher.model)
    bos, seen, gaps = tokenizer.bos_token, 0, []
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    for split, index in (("train", 0), ("train", 4), ("heldout", 1), ("heldout", 2)):
        row = {name: values[0] for name, values in cache.rows(split, [index]).items()}
        assert image_id not in row["input_ids"]
        length = int(np.flatnonzero(row["targets"])[-1]) + 2
        ids = row["input_ids"][:length].tolist()
        number = next(i for i, story in enumerate(STORIES) if tokenizer.decode(ids).startswith(f"{bos}{story[:40]}"))
        whole, truth = dense(config, f"{bos}<image>{STORIES[number]}{bos}", PICTURES[number])
        _, other = dense(config, f"{bos}<image>{STORIES[number]}{bos}", PICTURES[(number + 3) % NUM_PAIRS])
        assert whole[-(length - 1) :] == ids[1:], "the text's tokens are the same with an image before them"
        for t in np.flatnonzero(row["targets"]):
            place = len(whole) - length + t
            assert_says(row, t, truth[place], cache.plan.vocab_size)
            gaps.append(np.abs(truth[place] - other[place]).max())
            seen += 1
    assert seen > 100
    assert np.median(gaps) > 0.1, "an image that changes nothing would not show a wrong one"


def test_chats_against_the_template_written_whole(pairs):
    """The image stands before the first question; answers are aligned, the question is not learned."""
    talks = [
        [{"role": "user", "content": f"Who is {name}?"}, {"role": "assistant", "content": f"{name} is an owl."}]
        for name in ("Ben", "Tom", "Ella", "Otto", "Otti", "Sam", "Mia", "Lily", "Max", "Anna", "Theo", "Zoe")
    ]
    config = pairs(texts=talks)
    capture_here(config)
    cache, tokenizer = open_cache("seen"), models.load_tokenizer(config.teacher.model)
    end, compared = tokenizer.eos_token, 0
    for index in range(4):
        row = {name: values[0] for name, values in cache.rows("train", [index]).items()}
        learned = np.flatnonzero(row["targets"])
        ids = row["input_ids"][: learned[-1] + 2].tolist()
        number = next(i for i, talk in enumerate(talks) if talk[1]["content"] in tokenizer.decode(ids))
        name = talks[number][1]["content"]
        whole, truth = dense(config, f"user: <image>\n{talks[number][0]['content']}{end}assistant: {name}{end}", PICTURES[number])
        assert tokenizer.decode(np.array(ids)[learned + 1]).strip() == f"{name}{end}"
        for t in learned:
            assert_says(row, t, truth[len(whole) - len(ids) + t], cache.plan.vocab_size)
            compared += 1
    assert compared > 15


def test_capture_train_and_judge_on_the_command_line(pairs, tmp_path, capsys):
    """Paths in a .jsonl file beside the images; a student that reads the text alone; the table shows the teacher without its images."""
    folder = tmp_path / "files"
    folder.mkdir()
    with open(folder / "pairs.jsonl", "w", encoding="utf-8") as file:
        for number, (story, picture) in enumerate(zip(STORIES, PICTURES, strict=True)):
            (folder / f"{number}.png").write_bytes(picture)
            file.write(json.dumps({"text": story, "image": f"{number}.png"}) + "\n")
    config = pairs(**{"text.source": str(folder / "pairs.jsonl"), "train.max_steps": 2})
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert run_command_line(["capture", "--config", str(path)]) == 0
    assert "The teacher sees an image before every text, of at most 5 tokens" in capsys.readouterr().err
    assert run_command_line(["train", "--config", str(path), "--cache", "seen", "--train.name", "blind"]) == 0
    assert run_command_line(["evaluate", "blind"]) == 0
    shown = capsys.readouterr().out
    assert "without images" in shown
    assert "Without its context or images the teacher is" in shown
    assert run_command_line(["cache", "compare", "seen"]) == 2
    assert "images" in capsys.readouterr().err


def test_another_image_is_another_cache(pairs):
    capture_here(pairs())
    with pytest.raises(DistillError, match=r"text\.images_sha256"):
        capture_here(pairs(pictures=[*PICTURES[:-1][::-1], PICTURES[-1]]))


REFUSED = {
    "no such column": ({"text.image_column": "picture"}, "no column 'picture'. Did you mean|Known"),
    "a text file": ({"text.source": "a.txt"}, "has no column 'image'"),
    "built-in stories": ({"text.source": "builtin"}, "is for local .parquet and .jsonl files"),
    "a text-only teacher": ({"teacher.model": "builtin"}, "reads text only"),
    "a context too": ({"capture.context": "Look."}, "both given"),
    "an image file that is not there": ({"text.source": "gone.jsonl"}, "line 1: image .*gone.png cannot be read"),
    "no image in a row": ({"text.source": "none.jsonl"}, "line 1: column 'image' holds a NoneType"),
    "a text with the placeholder": ({"text.source": "place.jsonl"}, "its text holds <image>"),
    "an empty answer": ({"text.source": "empty.jsonl"}, "message 2 is an empty answer"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_name(pairs, tmp_path, monkeypatch, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.png").write_bytes(PICTURES[0])
    talk = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": ""}]
    rows = {
        "gone": {"text": "a", "image": "gone.png"},
        "none": {"text": "a", "image": None},
        "place": {"text": "An <image> of it.", "image": "0.png"},
        "empty": {"text": talk, "image": "0.png"},
    }
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    (tmp_path / "a.txt").write_text("A text.")
    change, words = REFUSED[why]
    with pytest.raises(DistillError, match=words):
        capture_here(pairs(**change))


def test_an_image_that_is_none_is_named(pairs):
    with pytest.raises(DistillError, match="the image of pair 2 cannot be read"):
        capture_here(pairs(pictures=[PICTURES[0], b"not an image", *PICTURES[2:]]))


def test_packing_is_refused_in_the_config(small_config):
    with pytest.raises(ConfigError, match=r"text\.packing false"):
        with_overrides(small_config, {"text.image_column": "image"})


def test_a_student_of_another_tokenizer_is_refused(pairs, tmp_path):
    config = pairs()
    capture_here(config)
    student = save_sibling(tmp_path / "student")  # it lacks the image's token
    with pytest.raises(VocabularyError, match="2,048|2048"):
        train_here(with_overrides(config, {"student": {"init": "pretrained", "model": student}}), cache="seen")


def test_a_student_cut_from_such_a_teacher_is_refused(pairs):
    config = pairs(**{"student.init": "prune_layers", "student.num_layers": 1})
    with pytest.raises(ModelError, match="no student is cut from such a model"):
        build_student(config, tokenizer=models.load_tokenizer(config.teacher.model), real_vocab_size=2049)
