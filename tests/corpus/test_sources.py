"""Documents from every source, and what is said when a source is not what it should be."""

import itertools
import json
import subprocess
import sys
from itertools import islice

import polars as pl
import pytest

from distill_core.config import TextConfig
from distill_core.corpus import Document, documents
from distill_core.errors import TextError

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def read(path, **options):
    return list(documents(TextConfig(source=str(path), **options)))


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# ---------------------------------------------------------------- built-in
def test_builtin_stories_never_end_and_depend_on_the_seed():
    first, other = (list(islice(documents(TextConfig(seed=seed)), 50)) for seed in (0, 1))
    assert len({each.text for each in first + other}) == 100
    assert first == list(islice(documents(TextConfig(seed=0)), 50))


def in_another_process(code):
    code = f"from distill_core import corpus; from distill_core.config import TextConfig; {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8").stdout.strip()


def test_builtin_stories_are_the_same_in_another_process():
    there = in_another_process("print(next(corpus.documents(TextConfig(seed=3))).text)")
    assert there == next(documents(TextConfig(seed=3))).text


def test_reading_builtin_text_loads_no_torch():
    loaded = in_another_process("import sys; corpus.preview(TextConfig(), corpus.builtin_tokenizer()); print(*sys.modules)").split()
    assert not {"torch", "transformers", "datasets", "marimo"} & set(loaded)


# ---------------------------------------------------------------- local files
def test_txt_documents_are_separated_by_blank_lines(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes("\ufeffOne\r\nline two\r\n\r\n \r\n\r\nGrüße 日本\n".encode())
    assert [each.text for each in read(path)] == ["One\nline two", "Grüße 日本"]


def test_txt_without_blank_lines_is_read_in_bounded_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("distill_core.corpus.sources.LONGEST_TEXT", 10)
    path = tmp_path / "book.txt"
    path.write_text("one\ntwo\nthree\n" + "x" * 25 + "\n\nfour\n", encoding="utf-8")
    assert [each.text for each in read(path)] == ["one\ntwo", "three", "x" * 10, "x" * 10, "x" * 5, "four"]


def test_jsonl_holds_text_or_chat_and_blank_rows_are_kept_for_counting(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "One"}, {"text": None}, {"text": CHAT}, {"text": "  "}])
    read_back = read(path)
    assert read_back == [Document(text="One"), Document(text=""), Document(messages=tuple(CHAT)), Document(text="  ")]
    assert [each.is_blank for each in read_back] == [False, True, False, True]


def test_parquet_is_read_in_slices_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("distill_core.corpus.sources.ROWS_AT_ONCE", 4)
    texts = [f"row {number}" for number in range(11)]
    pl.DataFrame({"body": texts, "chat": [CHAT] * 11}).write_parquet(tmp_path / "a.parquet", row_group_size=3)
    assert [each.text for each in read(tmp_path / "a.parquet", column="body")] == texts
    assert read(tmp_path / "a.parquet", column="chat")[10].messages == tuple(CHAT)


def test_reading_takes_only_what_is_asked_for(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\nbad\n', encoding="utf-8")
    assert next(documents(TextConfig(source=str(path)))).text == "good"


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.jsonl", b'{"texts": "x"}\n', "text", r"line 1: no column 'text'. Did you mean 'texts'\?"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "text", "line 2: not JSON"),
        ("a.jsonl", b'["x"]\n', "text", "line 1: holds a list, not an object"),
        ("a.jsonl", b'{"text": 7}\n', "text", "holds a int: 7"),
        ("a.jsonl", b'{"text": [{"role": "user"}]}\n', "text", "chat messages: a list of"),
        ("a.jsonl", b'{"text": [{"role": "user", "content": 1}]}\n', "text", "chat messages: a list of"),
        ("a.txt", b"fine\n\nno\xff\n", "text", "not UTF-8 .*byte 0xff"),
        ("a.parquet", b"PAR1 nothing", "text", "not a readable Parquet file"),
        ("a.csv", b"text\nx\n", "text", "is a '.csv' file; readable are .txt, .jsonl, .parquet"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(tmp_path, name, content, column, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TextError, match=message) as error:
        read(path, column=column)
    assert str(path) in str(error.value)


def test_a_missing_column_of_a_parquet_file(tmp_path):
    pl.DataFrame({"content": ["x"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(TextError, match=r"no column 'contents'. Did you mean 'content'\?"):
        read(tmp_path / "a.parquet", column="contents")


def test_a_missing_file_and_a_folder(tmp_path):
    (tmp_path / "stories.txt").write_text("x", encoding="utf-8")
    with pytest.raises(TextError, match=r"no such file. Did you mean 'stories.txt'\?"):
        read(tmp_path / "storys.txt")
    with pytest.raises(TextError, match="no such file. Looked in"):
        read(tmp_path / "zzz" / "a.jsonl")
    with pytest.raises(TextError, match="is a folder"):
        read(tmp_path)


# ---------------------------------------------------------------- Hugging Face datasets
def test_a_dataset_is_streamed_with_its_split_and_subset(monkeypatch):
    asked, given = [], []

    def rows():
        for number in itertools.count():
            given.append(number)
            yield {"text": f"row {number}"}

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return rows()

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    config = TextConfig(source="owner/name", subset="en", split="validation", revision="abc")
    assert [each.text for each in islice(documents(config), 3)] == ["row 0", "row 1", "row 2"]
    assert asked == [(("owner/name",), {"name": "en", "split": "validation", "revision": "abc", "streaming": True})]
    assert given == [0, 1, 2]


def test_a_dataset_row_without_the_column(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [{"texts": "x"}])
    with pytest.raises(TextError, match=r"dataset owner/name, split train, row 1: no column 'text'. Did you mean 'texts'\?"):
        next(documents(TextConfig(source="owner/name")))


def test_a_dataset_that_breaks_off_is_told_in_words(monkeypatch):
    def rows():
        yield {"text": "x"}
        raise ConnectionError("the line went dead.\nmore that nobody needs")

    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: rows())
    reader = documents(TextConfig(source="owner/name"))
    next(reader)
    with pytest.raises(TextError, match=r"split train\): the line went dead\. Check id") as error:
        next(reader)
    assert "nobody needs" not in str(error.value)


def test_without_network_a_dataset_is_refused_and_the_way_out_named(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(TextError, match="no Hugging Face dataset that can be read .*Without network: 'builtin'"):
        next(documents(TextConfig(source="nobody/nothing-of-that-name")))
