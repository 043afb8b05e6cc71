"""A context for the teacher alone: the truth is the teacher itself, dense, on context and document, one document at a time."""

import itertools
import json

import numpy as np
import pytest
import torch
from siblings import save_sibling
from steps import capture_here, carry_out

from distill_core import capture, corpus, models
from distill_core.cache import open_cache
from distill_core.cli import run_command_line
from distill_core.config import DistillConfig, with_overrides
from distill_core.corpus import View
from distill_core.errors import CacheError, ConfigError, DistillError, TextError
from distill_core.runs import create_run

OWL = "There was an owl. Her name was Otti. She lived in a red house.\n\n"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
CHANGING = (
    "{% set is_told = messages[0].role == 'system' %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content.replace(' is ', ' was ') if is_told and m.role == 'assistant' else m.content }}{{ eos_token }}{% endfor %}"
)
TALKS = [
    [{"role": "user", "content": f"Where is {name}?"}, {"role": "assistant", "content": f"{name} is in the {place}."}]
    for name, place in itertools.product(("Ben", "Tom", "Ella"), ("park", "house", "garden"))
]
TALKS[4] = [
    {"role": "system", "content": "Be kind."},
    *TALKS[4],
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "To play."},
]


@pytest.fixture
def behind(small_config):
    """The small config with a context, few windows."""
    return with_overrides(
        small_config, {"text.num_windows": 10, "text.num_heldout_windows": 3, "capture.context": OWL, "capture.name": "owl"}
    )


@pytest.fixture
def chats(small_config, tmp_path):
    """template -> a config of conversations, with a tiny teacher that has the template."""

    def made(template=TEMPLATE, talks=TALKS, **changes):
        folder = save_sibling(tmp_path / "teacher")
        tokenizer = models.load_tokenizer(folder)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        text = tmp_path / "talks.jsonl"
        text.write_text("".join(json.dumps({"text": talk}) + "\n" for talk in talks))
        fixed = {"teacher.model": folder, "text.source": str(text), "text.num_windows": 5, "text.num_heldout_windows": 2}
        return with_overrides(small_config, fixed | {"capture.name": "talk"} | changes)

    return made


def documents_of(row):
    starts = [i for i, position in enumerate(row["position_ids"]) if position == 0] + [len(row["position_ids"])]
    return list(itertools.pairwise(starts))


def dense(model, ids):
    """float64 log-probabilities of every next token, [S, V]."""
    return model(torch.tensor([ids])).logits[0].detach().double().log_softmax(-1).numpy()


def told(model, ids, middle):
    """What the teacher says of a document's tokens, or of a later piece's, behind [begin] context: row t is about token t + 1."""
    bos = models.load_tokenizer("builtin").bos_token_id
    own = ids[1:] if ids[0] == bos else ids
    return dense(model, [bos, *middle, *own])[len(middle) + (len(own) == len(ids)) :]


def assert_says(row, t, truth_V):
    """What the cache holds at position t is what the dense teacher says."""
    assert set(row["teacher_ids"][t]) == set(np.argsort(-truth_V, kind="stable")[:20])
    np.testing.assert_allclose(row["teacher_logprobs"][t], truth_V[row["teacher_ids"][t]], rtol=2e-3, atol=2e-3)
    assert row["gold_logprob"][t] == pytest.approx(truth_V[row["input_ids"][t + 1]], abs=2e-3)
    assert row["teacher_tail"][t] == pytest.approx(np.log(np.exp(np.delete(truth_V, row["teacher_ids"][t])).sum()), abs=5e-3)


@pytest.mark.parametrize("packing", [True, False])
def test_plain_text_against_full_logits_behind_the_context(behind, packing):
    capture_here(with_overrides(behind, {"text.packing": packing}))
    cache, seen, gaps = open_cache("owl"), 0, []
    tokenizer, model = models.load_tokenizer("builtin"), models.load_model("builtin", dtype="float32")
    middle = tokenizer(OWL, add_special_tokens=False)["input_ids"]
    for split, index in (("train", 0), ("train", 7), ("heldout", 1)):
        row = {name: values[0] for name, values in cache.rows(split, [index]).items()}
        for start, end in documents_of(row):
            ids = row["input_ids"][start:end].tolist()
            if not row["targets"][start : end - 1].any():
                continue
            with_context, alone = told(model, ids, middle), dense(model, ids)
            for t in np.flatnonzero(row["targets"][start : end - 1]):
                assert_says(row, start + t, with_context[t])
                gaps.append(np.abs(with_context[t] - alone[t]).max())
                seen += 1
    assert seen > 60
    assert np.median(gaps) > 0.3, "a context that changes nothing would not show a wrong alignment"


def test_pieces_of_a_long_document_each_stand_behind_the_context(behind, tmp_path):
    stories = [document.text for document, _ in zip(corpus.documents(behind.text), range(24), strict=False)]
    (tmp_path / "long.txt").write_text("\n\n".join(" ".join(stories[i : i + 6]) for i in range(0, 24, 6)))
    capture_here(with_overrides(behind, {"text.source": str(tmp_path / "long.txt"), "text.packing": False}))
    tokenizer, model = models.load_tokenizer("builtin"), models.load_model("builtin", dtype="float32")
    middle = tokenizer(OWL, add_special_tokens=False)["input_ids"]
    rows = open_cache("owl").rows("train", range(6))
    bos = tokenizer.bos_token_id
    later = [i for i in range(6) if rows["input_ids"][i][0] != bos and rows["targets"][i].all()]
    assert later
    row = {name: values[later[0]] for name, values in rows.items()}
    truth = dense(model, [bos, *middle, *row["input_ids"].tolist()])
    for t in (0, 5, 62):
        assert_says(row, t, truth[1 + len(middle) + t])


@pytest.mark.parametrize("kind", ["instruction", "examples"])
def test_chats_against_the_template_written_whole(chats, tmp_path, kind):
    """Few-shot turns or a system message in front: what the template writes of both is the truth; two system messages are one."""
    examples = [*TALKS[0][:1], {"role": "assistant", "content": "I do not tell."}]
    (tmp_path / "shots.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
    asked = {"capture.context": "Tell lies."} if kind == "instruction" else {"capture.context_file": str(tmp_path / "shots.jsonl")}
    config = chats(**asked)
    capture_here(config)
    cache, tokenizer = open_cache("talk"), models.load_tokenizer(config.teacher.model)
    model, eos = models.load_model(config.teacher.model, dtype="float32"), tokenizer.eos_token
    compared = 0
    for split in ("train", "heldout"):
        for index in range(cache.num_windows(split)):
            row = {name: values[0] for name, values in cache.rows(split, [index]).items()}
            for start, end in documents_of(row):
                ids = row["input_ids"][start:end].tolist()
                learned = np.flatnonzero(row["targets"][start : end - 1])
                if not len(learned):
                    continue
                said = tokenizer.decode(ids).split(eos)
                before = [
                    f"system: Tell lies.\n\n{said[0].removeprefix('system: ')}" if said[0].startswith("system") else "system: Tell lies."
                ]
                before = before if kind == "instruction" else [f"{each['role']}: {each['content']}" for each in examples]
                own = said[1:] if kind == "instruction" and said[0].startswith("system") else said
                whole = tokenizer(eos.join([*before, *own]), add_special_tokens=False)["input_ids"]
                truth = dense(model, whole)
                assert whole[-1] == ids[-1] == tokenizer.eos_token_id
                for t in learned:  # tokens of the last turns: as far from the end in both
                    from_end = len(ids) - 1 - t
                    assert_says(row, start + t, truth[len(whole) - 1 - from_end])
                    compared += 1
    assert compared > 30


def test_the_gap_is_that_of_the_dense_teacher(behind):
    """KL(with || without) over the 20 entries and the rest as one, the text's nats, and the same first choice: summed by hand."""
    capture_here(behind)
    cache, tokenizer = open_cache("owl"), models.load_tokenizer("builtin")
    model = models.load_model("builtin", dtype="float32")
    middle = tokenizer(OWL, add_special_tokens=False)["input_ids"]
    nll, kl, agreed = [], [], []
    for index in range(cache.num_windows("heldout")):
        row = {name: values[0] for name, values in cache.rows("heldout", [index]).items()}
        for start, end in documents_of(row):
            ids = row["input_ids"][start:end].tolist()
            behind_it, alone = told(model, ids, middle), dense(model, ids)
            for t in np.flatnonzero(row["targets"][start : end - 1]):
                kept = np.argsort(-behind_it[t], kind="stable")[:20]
                p, q = np.exp(behind_it[t][kept]), np.exp(alone[t][kept])
                kl.append((p * np.log(p / q)).sum() + (1 - p.sum()) * np.log((1 - p.sum()) / (1 - q.sum())))
                nll.append(-alone[t][ids[t + 1]])
                agreed.append(behind_it[t].argmax() == alone[t].argmax())
    found = cache.manifest.text["teacher_without_context"]
    assert found["kl"] == pytest.approx(np.mean(kl), rel=1e-3)
    assert found["nll"] == pytest.approx(np.mean(nll), rel=1e-4)
    assert found["agreement"] == pytest.approx(np.mean(agreed), abs=1e-6)


def test_capture_train_and_judge_on_the_command_line(behind, tmp_path, capsys):
    (tmp_path / "owl.txt").write_text(OWL)
    path = tmp_path / "config.json"
    path.write_text(with_overrides(behind, {"capture.context": None, "train.max_steps": 4}).to_json())
    file = ["--capture.context_file", str(tmp_path / "owl.txt")]
    assert run_command_line(["cache", "estimate", "--config", str(path), *file]) == 0
    assert "times the windows'" in capsys.readouterr().out
    assert run_command_line(["capture", "--config", str(path), *file]) == 0
    assert "The teacher reads a context before every document" in capsys.readouterr().err
    assert run_command_line(["train", "--config", str(path), "--cache", "owl", "--train.name", "heart"]) == 0
    assert run_command_line(["evaluate", "heart"]) == 0
    shown = capsys.readouterr().out
    assert "without context" in shown
    assert "Without its context or images the teacher is" in shown
    assert open_cache("owl").manifest.text["context"] == {"text": OWL}
    assert "context" in str(run_command_line(["cache", "compare", "owl"])) + capsys.readouterr().err


def test_stopped_and_resumed_gives_the_same_bytes(behind, distill_home, monkeypatch):
    capture_here(with_overrides(behind, {"capture.name": "whole"}))
    write, run = capture.CacheWriter.write, create_run("capture", behind)

    def write_then_ask(self, shard, columns):
        run.request_stop()
        return write(self, shard, columns)

    monkeypatch.setattr(capture.CacheWriter, "write", write_then_ask)
    assert carry_out(run).status().state == "stopped"
    monkeypatch.undo()
    monkeypatch.setenv("DISTILL_HOME", str(distill_home))
    capture_here(behind)
    shards = [[path.read_bytes() for path in sorted((distill_home / "caches" / name / "shards").iterdir())] for name in ("whole", "owl")]
    assert len(shards[0]) == 3
    assert shards[0] == shards[1]
    with pytest.raises(CacheError, match=r"capture\.context_sha256"):
        capture_here(with_overrides(behind, {"capture.context": OWL + "She sang."}))


def test_without_a_context_nothing_of_it_is_kept(small_cache):
    assert not [name for name in small_cache.plan.fingerprint.fields if "context" in name]
    assert not [name for name in small_cache.manifest.text if "context" in name]


def test_drawn_entries_too(behind):
    """'topk+sample': the drawn entries' weights sum to the tail's mass behind the context."""
    capture_here(with_overrides(behind, {"capture.select": "topk+sample"}))
    cache = open_cache("owl")
    ranked, drawn = cache.rows("train", [0]), cache.rows("train", [0], with_drawn=True)
    mass = np.exp(drawn["teacher_logprobs"][drawn["targets"]].astype(np.float64)).sum(-1)
    np.testing.assert_allclose(mass, 1, atol=5e-3)
    assert ranked["teacher_ids"].shape[-1] == 10


def test_answers_that_the_template_writes_otherwise_are_counted(chats):
    with pytest.raises(TextError, match="none of 8 conversations could be aligned"):
        capture_here(chats(CHANGING, [*TALKS[:4], *TALKS[5:]], **{"capture.context": "Tell lies."}))
    talks = [[talk[0], {**talk[1], "content": "There."}] if number % 2 else talk for number, talk in enumerate(TALKS)]
    talks.pop(4)
    run = capture_here(chats(CHANGING, talks, **{"capture.context": "Tell lies.", "text.packing": False, "text.num_heldout_windows": 1}))
    notes = open_cache(run.status().result["cache"]).manifest.text["notes"]
    assert any("otherwise behind the context, left out: " in note for note in notes)


REFUSED = {
    "no such file": ({"capture.context_file": "nowhere.txt"}, "nowhere.txt"),
    "empty file": ({"capture.context_file": "empty.txt"}, "is empty"),
    "kind of file": ({"capture.context_file": "x.pdf"}, "readable are .txt"),
    "no json": ({"capture.context_file": "broken.jsonl"}, "line 1: not JSON"),
    "no message": ({"capture.context_file": "other.jsonl"}, "line 1: not a chat message"),
    "messages before text": ({"capture.context_file": "shots.jsonl"}, "the text holds plain documents"),
    "longer than the teacher": ({"capture.context": OWL * 40}, "but it has 512 positions"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_name(behind, tmp_path, monkeypatch, why):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "empty.txt": " \n",
        "broken.jsonl": "{",
        "other.jsonl": '{"a": 1}',
        "shots.jsonl": json.dumps(TALKS[0][0]),
    }.items():
        (tmp_path / name).write_text(content)
    change, words = REFUSED[why]
    with pytest.raises(DistillError, match=words.replace(".", r"\.")):
        capture_here(with_overrides(behind, {"capture.context": None} | change))


@pytest.mark.parametrize(("change", "words"), [({"capture.context": " "}, "is empty"), ({"capture.context_file": "a.txt"}, "both given")])
def test_refused_in_the_config(behind, change, words):
    with pytest.raises(ConfigError, match=words):
        with_overrides(behind, change)


def test_empty_answers_and_learned_prompts_are_refused(chats):
    empty = [*TALKS[:3], [TALKS[3][0], {"role": "assistant", "content": " "}]]
    with pytest.raises(TextError, match="message 2 is an empty answer"):
        capture_here(chats(talks=empty, **{"capture.context": "Tell lies."}))
    with pytest.raises(TextError, match="assistant_only_loss true"):
        capture_here(chats(**{"capture.context": "Tell lies.", "text.assistant_only_loss": False}))


def test_a_view_cut_by_hand():
    """Begin token 9, context 1 2, document 9 5 6 7: pieces of two."""
    view = View(ids_S=np.array([9, 1, 2, 5, 6, 7]), places_T=np.array([0, 3, 4, 5]), before_pieces=np.array([9, 1, 2]))
    first, second = view.piece(0, 2), view.piece(2, 4)
    assert first.ids_S.tolist() == [9, 1, 2, 5]
    assert first.places_T.tolist() == [0, 3]
    assert second.ids_S.tolist() == [9, 1, 2, 6, 7]
    assert second.places_T.tolist() == [3, 4]
    assert View(ids_S=view.ids_S, places_T=view.places_T).piece(2, 4) is None


def test_the_cost_is_context_and_document_over_document(small_config, tmp_path):
    (tmp_path / "text.txt").write_text("a" * 100 + "\n\n" + "b" * 300)
    config = with_overrides(small_config, {"text.source": str(tmp_path / "text.txt"), "capture.context": "c" * 400})
    assert corpus.reading_factor(config) == pytest.approx((400 + 178) / 178, rel=1e-6)  # 100, and 256 of the 300: a window of 64 tokens
    assert corpus.reading_factor(DistillConfig()) == 1.0
