"""From a source to train and held-out windows: what goes where, what is said, what is refused."""

import itertools
import json
import math

import numpy as np
import polars as pl
import pytest

from distill_core.config import TextConfig
from distill_core.corpus import build_windows, builtin_tokenizer, preview, show_preview
from distill_core.errors import TextError

MARKED = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}

{% endfor %}"""


def texts_of(windows):
    """The documents in windows, as text."""
    tokenizer, found = builtin_tokenizer(), set()
    for ids, lengths in zip(windows.input_ids_NL, windows.doc_lens):
        start = 0
        for length in lengths:
            found.add(tokenizer.decode(ids[start : start + length]).removeprefix("<eos>").removesuffix("<eos>"))
            start += length
    return found


def write_txt(tmp_path, texts):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return str(path)


SMALL = {"window_tokens": 16, "num_windows": 8, "num_heldout_windows": 2}


@pytest.fixture(scope="module")
def builtin():
    return build_windows(TextConfig(num_windows=100, num_heldout_windows=20), builtin_tokenizer())


def test_builtin_text_fills_what_was_asked_for(builtin):
    assert (builtin.train.input_ids_NL.shape, builtin.heldout.input_ids_NL.shape) == ((100, 256), (20, 256))
    assert builtin.notes == []
    assert builtin.train.num_tokens > 0.93 * 100 * 256, "windows are nearly full"
    assert 0.9 < builtin.share_trained < 1


def test_train_and_heldout_are_different_documents(builtin):
    train, heldout = texts_of(builtin.train), texts_of(builtin.heldout)
    assert not train & heldout
    assert len(heldout) == builtin.heldout_documents
    assert len(train) == builtin.num_documents - builtin.heldout_documents
    assert 4 < len(train) / len(heldout) < 6, "as many as the windows asked for: 100 to 20"


def test_builtin_text_is_the_same_every_time_and_another_with_another_seed(builtin):
    again = build_windows(TextConfig(num_windows=100, num_heldout_windows=20), builtin_tokenizer())
    other = build_windows(TextConfig(num_windows=100, num_heldout_windows=20, seed=1), builtin_tokenizer())
    assert (again.train.input_ids_NL == builtin.train.input_ids_NL).all()
    assert not texts_of(other.train) & texts_of(builtin.train)


def test_every_byte_is_counted(builtin):
    for windows in (builtin.train, builtin.heldout):
        for row, lengths in enumerate(windows.doc_lens[:10]):
            text = builtin_tokenizer().decode(windows.input_ids_NL[row, : sum(lengths)]).replace("<eos>", "")
            assert windows.token_bytes_NL[row].sum() == len(text.encode())


def test_more_windows_begin_with_the_same_ones(builtin):
    more = build_windows(TextConfig(num_windows=150, num_heldout_windows=30), builtin_tokenizer())
    assert (more.train.input_ids_NL[:80] == builtin.train.input_ids_NL[:80]).all()


def test_duplicates_and_blanks_are_dropped_and_told(tmp_path):
    rows = [{"text": text} for text in ("Ben ran home.", "Mia sang.", "Ben ran home.", " ", None, "Tom slept.", "Mia sang.")]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    split = build_windows(TextConfig(source=str(path), **SMALL), builtin_tokenizer())
    assert texts_of(split.train) == {"Ben ran home.", "Tom slept."}
    assert texts_of(split.heldout) == {"Mia sang."}
    assert (split.num_documents, split.heldout_documents, split.num_duplicates) == (3, 1, 2)
    assert split.notes == [
        "The text gives 1 of the 8 training windows asked for.",
        "The text gives 1 of the 2 held-out windows asked for.",
        "Exact duplicates, dropped: 2.",
        "Blank documents, skipped: 2.",
    ]


def test_two_documents_are_enough(tmp_path):
    source = write_txt(tmp_path, ["Ben ran home and slept.", "Mia sang a song."])
    split = build_windows(TextConfig(source=source, **SMALL), builtin_tokenizer())
    assert (len(split.train), len(split.heldout)) == (1, 1)


@pytest.mark.parametrize("texts", [[], ["  "], ["Ben ran home."], ["Ben ran home.", "Ben ran home."]])
def test_too_little_text_is_refused_with_the_counts(tmp_path, texts):
    source = write_txt(tmp_path, texts)
    with pytest.raises(TextError, match=r"Windows of 16 tokens: . for training, 0 held out; both need at least 1") as error:
        build_windows(TextConfig(source=source, **SMALL), builtin_tokenizer())
    assert source in str(error.value)
    assert "separated by a blank line" in str(error.value)


def test_text_without_anything_to_learn_is_refused(tmp_path, chat_tokenizer):
    path = tmp_path / "a.jsonl"
    rows = [{"text": [{"role": "user", "content": f"Where is {name}?"}]} for name in ("Ben", "Mia", "Tom")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer = chat_tokenizer()
    with pytest.raises(TextError, match="nothing is left. Chats need messages with the role 'assistant'"):
        build_windows(TextConfig(source=str(path), **SMALL), tokenizer)
    everything = build_windows(TextConfig(source=str(path), **SMALL, assistant_only_loss=False), tokenizer)
    assert everything.train.num_targets > 0


def test_an_endless_text_that_brings_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("distill_core.corpus.build.PATIENCE", 100)
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield {"text": "Ben ran home." if number % 2 else None}

    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: endless())
    with pytest.raises(TextError, match="1 different documents read, "):
        build_windows(TextConfig(source="owner/name", **SMALL), builtin_tokenizer())
    assert len(read) <= 203


def test_one_side_that_is_full_leaves_the_rest_to_the_other(tmp_path):
    source = write_txt(tmp_path, [f"{name} ran home and slept for a long time." for name in ("Ben", "Mia", "Tom", "Ida", "Max", "Leo")])
    split = build_windows(TextConfig(source=source, window_tokens=16, num_windows=1, num_heldout_windows=4), builtin_tokenizer())
    assert (len(split.train), len(split.heldout)) == (1, 4)


def test_progress_rises_to_what_was_asked_for():
    seen = []
    build_windows(TextConfig(num_windows=5, num_heldout_windows=2), builtin_tokenizer(), lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (7, 7)


def test_packing_off_pads_every_document():
    split = build_windows(TextConfig(num_windows=20, num_heldout_windows=4, packing=False), builtin_tokenizer())
    assert all(len(lengths) == 1 for lengths in split.train.doc_lens)
    padding = split.train.input_ids_NL == builtin_tokenizer().pad_token_id
    assert padding.sum() == split.train.input_ids_NL.size - split.train.num_tokens


# ---------------------------------------------------------------- preview
def test_the_preview_shows_the_text_under_every_token():
    table = preview(TextConfig(), builtin_tokenizer(), num_documents=2)
    assert table.columns == ["document", "position", "token_id", "token", "is_target", "num_bytes"]
    first = table.filter(pl.col("document") == 0)
    assert first["token"][0] == first["token"][-1] == "<eos>"
    assert not first["is_target"][0]
    assert first["is_target"][1:].all()
    assert sum(len(token.encode()) for token in first["token"][1:-1]) == first["num_bytes"].sum()
    assert first["position"].to_list() == list(range(first.height))


def test_the_preview_of_a_chat_shows_its_mask(tmp_path, chat_tokenizer, talk):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"chat": talk}) + "\n", encoding="utf-8")
    table = preview(TextConfig(source=str(path), column="chat"), chat_tokenizer())
    assert "".join(table["token"]) == chat_tokenizer().apply_chat_template(list(talk), tokenize=False)
    learned = "".join(table.filter("is_target")["token"])
    assert learned == "Ben is in the park.<|im_end|>Good night.<|im_end|>"


def test_the_preview_for_a_terminal(tmp_path):
    source = write_txt(tmp_path, ["Ben ran\nMia 🦊", "Mia sang."])
    assert show_preview(preview(TextConfig(source=source), builtin_tokenizer())) == (
        "document 1: 10 of the first 11 tokens are learned\n(<eos>)|Ben| ran|\\n|Mia| |🦊|…|…|…|<eos>\n\n"
        "document 2: 4 of the first 5 tokens are learned\n(<eos>)|Mia| sang|.|<eos>"
    )


def test_the_preview_is_short_and_skips_blanks(tmp_path):
    source = write_txt(tmp_path, ["word " * 500])
    table = preview(TextConfig(source=source), builtin_tokenizer())
    assert table.height == 120
    with pytest.raises(TextError, match="no document in it"):
        preview(TextConfig(source=write_txt(tmp_path, [" "])), builtin_tokenizer())


def test_bits_per_byte_of_a_uniform_model_can_be_told_from_the_windows(builtin):
    """A model that knows nothing spends log2(V) bits a token; per byte, that depends on the bytes of the targets alone."""
    windows = builtin.heldout
    target_bytes = windows.token_bytes_NL[:, 1:][windows.targets_NP].sum()
    bits = windows.num_targets * math.log2(len(builtin_tokenizer()))
    assert 2.5 < bits / target_bytes < 2.8  # 11 bits over about 4.15 bytes a token
    assert target_bytes == windows.token_bytes_NL.sum(), "every byte of the stories is a target: only <eos> stands first"


@pytest.mark.parametrize(
    ("template", "words"), [(None, "does not mark what the assistant says"), (MARKED, "marks what the assistant says")]
)
def test_how_the_assistant_is_found_is_said(tmp_path, chat_tokenizer, talk, template, words):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"chat": [*talk, {"role": "user", "content": str(n)}]}) for n in range(4)), encoding="utf-8")
    text = TextConfig(source=str(path), column="chat", num_windows=1, num_heldout_windows=1)
    assert any(words in note for note in build_windows(text, chat_tokenizer(template)).notes)
    silent = build_windows(text.changed(assistant_only_loss=False), chat_tokenizer(template))
    assert not any("template" in note for note in silent.notes), "nothing has to be found where all is learned"


def test_windows_are_padded_by_us_whatever_the_tokenizer_would_do(tmp_path, chat_tokenizer, talk):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"chat": [*talk, {"role": "user", "content": str(n)}]}) for n in range(4)), encoding="utf-8")
    text = TextConfig(source=str(path), column="chat", num_windows=1, num_heldout_windows=1, packing=False)
    found = []
    for side in ("left", "right"):
        tokenizer = chat_tokenizer()
        tokenizer.padding_side = tokenizer.truncation_side = side
        found.append(build_windows(text, tokenizer).train)
    assert np.array_equal(found[0].input_ids_NL, found[1].input_ids_NL)
    assert np.array_equal(found[0].targets_NP, found[1].targets_NP)
