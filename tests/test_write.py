"""Texts that a model writes: each from its own random numbers, every rejected one with its reason, the same bytes after a kill."""

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import torch
from steps import capture_here, carry_out, train_here

from distill_core import continued, corpus, jobs, models, write
from distill_core.cache import open_cache
from distill_core.cli import run_command_line
from distill_core.config import from_dict, with_overrides
from distill_core.errors import ConfigError, ModelError, TextError
from distill_core.paths import texts_dir
from distill_core.runs import create_run
from distill_core.texts import Draw, Judge, delete_text, list_texts, open_text, repeated_share
from distill_core.write_config import WriteConfig

SIZES = {"text": {"window_tokens": 64, "num_windows": 12, "num_heldout_windows": 4}, "device": "cpu"}
WRITE = {"name": "few", "num_texts": 12, "max_new_tokens": 24, "batch_texts": 5, "min_new_tokens": 4}


def config(**overrides):
    return with_overrides(from_dict({**SIZES, "write": WRITE}), {f"write.{name}": value for name, value in overrides.items()})


def written_here(settings):
    carry_out(jobs.new_writing(settings))
    return open_text(settings.write.name)


# ---------------------------------------------------------------- one token
def picks(probs, uniforms, *, temperature=1.0, top_p=1.0):
    scores = torch.tensor([probs]).log().repeat(len(uniforms), 1)
    pick = continued.Pick(torch.tensor(uniforms)[:, None], prompt_length=3, temperature=temperature, top_p=top_p, vocab_size=len(probs))
    return pick(torch.zeros(len(uniforms), 3, dtype=torch.long), scores).argmax(-1).tolist()


def test_a_number_falls_on_its_token_by_hand():
    """Side by side, the likeliest first: token 2 to 0.5, token 0 to 0.8, token 1 to 1."""
    assert picks([0.3, 0.2, 0.5], [0.0, 0.49, 0.51, 0.79, 0.81, 0.999]) == [2, 2, 0, 0, 1, 1]
    assert picks([0.3, 0.2, 0.5], [0.0, 0.62, 0.63, 0.999], top_p=0.7) == [2, 2, 0, 0], "0.5 and 0.3 are kept: the border is 5/8"
    assert picks([0.3, 0.2, 0.5], [0.0, 0.999], top_p=0.1) == [2, 2], "the likeliest stays whatever top_p is"


def test_evenly_spread_numbers_give_the_probabilities_at_a_temperature():
    probs, count = np.random.default_rng(0).dirichlet(np.ones(7)), 20_000
    found = np.bincount(picks(probs.tolist(), ((np.arange(count) + 0.5) / count).tolist(), temperature=2.0), minlength=7) / count
    np.testing.assert_allclose(found, probs**0.5 / (probs**0.5).sum(), atol=1.5 / count)


def test_a_batch_of_any_prompts_writes_what_each_would_alone():
    """The truth: one text at a time, the whole sequence read anew for every token, and the cumulative sum written out."""
    model, tokenizer = models.load_model("builtin", dtype="float32"), models.load_tokenizer("builtin")
    beginnings = ("Once upon a time", "Ben", "The little dog was very sad because")
    prompts = [tokenizer(words, add_special_tokens=True)["input_ids"][:9] for words in beginnings]
    prompts = [prompt[:-1] if prompt[-1] == tokenizer.eos_token_id else prompt for prompt in prompts]
    settings = {"seed": 3, "max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9, "vocab_size": 2048}
    ends = continued.end_ids(model, tokenizer)
    together = continued.sample(model, prompts, numbers=[4, 5, 6], end_ids=ends, **settings)
    for number, prompt, found in zip((4, 5, 6), prompts, together, strict=True):
        dice, made = np.random.default_rng([3, number]).random(12), []
        for uniform in dice:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + made])).logits[0, -1].double().numpy() / 0.9
            shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            order = np.argsort(-shares)
            keep = np.searchsorted(np.cumsum(shares[order]), 0.9) + 1
            border = np.cumsum(shares[order][:keep])
            token = int(order[np.searchsorted(border, uniform * border[-1], side="right")])
            if token in ends:
                break
            made.append(token)
        assert found.token_ids == made
        assert found.is_finished == (len(made) < 12)


# ---------------------------------------------------------------- what is kept
def drawn(text, *, number=0, num_tokens=10, is_finished=True, repeated=0.0):
    return Draw(number=number, prompt="Once", text=text, num_tokens=num_tokens, is_finished=is_finished, repeated=repeated)


def test_every_reason():
    judge = Judge(WriteConfig(keep_unfinished=False, max_repeated=0.5), ["Once there was a king."])
    assert judge.reason(drawn("Once a cat.")) == ""
    assert judge.reason(drawn("Once  A  cat.")) == "duplicate", "but for case and spaces"
    assert judge.reason(drawn("once there was a King.")) == "in the source"
    assert judge.reason(drawn("Once two cats.", num_tokens=7)) == "too short"
    assert judge.reason(drawn("Once \n ")) == "too short", "blank"
    assert judge.reason(drawn("Once three cats.", is_finished=False)) == "cut off"
    assert judge.reason(drawn("Once \ufffd.")) == "broken characters"
    assert judge.reason(drawn("Once cats cats cats", repeated=0.51)) == "repetitive"
    assert judge.reason(drawn("Once two cats.")) == "", "what was rejected does not make a duplicate"


def test_repeated_four_token_sequences_by_hand():
    assert repeated_share([1, 2, 3]) == 0
    assert repeated_share([1, 2, 3, 4, 5]) == 0
    assert repeated_share([7] * 8) == pytest.approx(4 / 5), "five sequences, one of them different"
    assert repeated_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)


# ---------------------------------------------------------------- the whole step
@pytest.fixture(scope="module")
def few_home(tmp_path_factory):
    """The small text, written once."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("written")
        patch.setenv("DISTILL_HOME", str(home))
        written_here(config())
        return home


@pytest.fixture
def few(few_home, distill_home):
    import shutil

    shutil.copytree(few_home / "texts", distill_home / "texts")
    return open_text("few")


def test_all_that_was_written_is_kept_or_counted(few):
    kept, rejected = pl.read_parquet(few.path), pl.read_parquet(few.folder / "rejected.parquet")
    assert kept.height == few.manifest.num_texts == 12
    assert rejected.height == sum(few.manifest.rejected.values())
    assert sorted([*kept["number"], *rejected["number"]]) == list(range(few.manifest.num_drawn)), "no text vanishes"
    assert all(text.startswith(prompt) for text, prompt in kept.select("text", "prompt").iter_rows())
    assert kept["text"].n_unique() == 12
    assert few.manifest.num_tokens == kept["num_tokens"].sum()
    assert not (few.folder / "parts").exists()


def test_beginnings_are_of_documents_that_are_trained_on(few):
    tokenizer = models.load_tokenizer("builtin")
    split = corpus.build_windows(config().text, tokenizer)
    sides = {}
    for name in ("train", "heldout"):
        windows = getattr(split, name)
        rows = zip(windows.input_ids_NL, windows.doc_lens, strict=True)
        starts = [(ids, np.cumsum([0, *lens])[:-1]) for ids, lens in rows]
        sides[name] = {tokenizer.decode(ids[start:], skip_special_tokens=True)[:30] for ids, begins in starts for start in begins}
    for prompt in pl.read_parquet(few.path)["prompt"]:
        assert any(text.startswith(prompt[:30]) for text in sides["train"])


def test_any_batch_size_writes_the_same(few):
    other = written_here(config(name="other", batch_texts=12))
    assert pl.read_parquet(other.path).equals(pl.read_parquet(few.path))


def test_the_same_again_finds_it_finished(few, monkeypatch):
    monkeypatch.setattr(models, "load_model", lambda *_, **__: pytest.fail("the writer was loaded"))
    assert written_here(config()).manifest == few.manifest


def test_broken_off_and_begun_again_gives_the_same_bytes(few, monkeypatch, distill_home):
    settings, calls, sample = config(name="again"), [], write.sample

    def breaks(*arguments, **more):
        calls.append(more["numbers"])
        if len(calls) == 2:
            raise RuntimeError("the lights went out")
        return sample(*arguments, **more)

    monkeypatch.setattr(write, "sample", breaks)
    with pytest.raises(RuntimeError):
        written_here(settings)
    assert len(list((texts_dir() / "again" / "parts").iterdir())) == 1
    with pytest.raises(TextError, match="again is unfinished"):
        open_text("again")
    again = written_here(settings)
    assert calls[2] == calls[1], "the first batch was not written again"
    assert again.path.read_bytes() == few.path.read_bytes()


@pytest.mark.slow
def test_killed_and_started_again_gives_the_same_bytes(few):
    settings = config(name="killed", batch_texts=2)
    run = create_run("write", settings)
    process = subprocess.Popen([sys.executable, "-m", "distill_core", "runs", "work", run.id], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((texts_dir() / "killed").glob("parts/*.parquet")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    jobs.requeue(run)
    carry_out(run)
    assert pl.read_parquet(open_text("killed").path).equals(pl.read_parquet(few.path))


def test_other_settings_are_refused_by_name(few):
    with pytest.raises(TextError, match=r"(?s)few was begun from something else:.*write.temperature: 1.0 there, 0.5 now"):
        written_here(config(temperature=0.5))


def test_a_damaged_text_is_not_read(few):
    content = bytearray(few.path.read_bytes())
    content[40] ^= 1
    few.path.write_bytes(content)
    with pytest.raises(TextError, match=r"texts.parquet is damaged"):
        corpus.build_windows(with_overrides(config(), {"text.source": "written:few"}).text, models.load_tokenizer("builtin"))


def test_names_that_are_not_there():
    with pytest.raises(TextError, match="no written text 'more'"):
        corpus.build_windows(with_overrides(config(), {"text.synthetic": "written:more"}).text, models.load_tokenizer("builtin"))
    with pytest.raises(ModelError, match="no run of that name"):
        jobs.submit_write(config(by="run:nobody"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"by": "somebody"}, "write.by 'somebody' is not 'teacher' or 'run:NAME'"),
        ({"instruction": "Say it again."}, "has no place for the beginning"),
        ({"top_p": 0}, "write.top_p"),
        ({"temperature": 0}, "write.temperature"),
    ],
)
def test_bad_settings_never_get_in(overrides, words):
    with pytest.raises(ConfigError, match=words):
        config(**overrides)


def test_what_the_model_cannot_do_is_said_before_it_is_loaded(monkeypatch):
    monkeypatch.setattr(models, "load_model", lambda *_, **__: pytest.fail("the writer was loaded"))
    with pytest.raises(ConfigError, match="is more than the 512 that builtin can read"):
        written_here(config(max_new_tokens=510))
    with pytest.raises(ConfigError, match="needs a model with a chat template; builtin has none"):
        written_here(config(instruction="In other words: {text}"))


def test_where_nothing_can_be_kept_the_reasons_are_counted():
    with pytest.raises(TextError, match=r"none of the 20 written texts can be kept: cut off 20"):
        written_here(config(num_texts=5, max_new_tokens=2, min_new_tokens=1, keep_unfinished=False))


def test_fewer_than_asked_for_are_said(monkeypatch):
    """The writer says one and the same again and again: all but the first for each beginning are duplicates."""
    made = continued.Sampled([40, 41, 42, 43, 44], True)
    monkeypatch.setattr(write, "sample", lambda model, prompts, **_: [made for _ in prompts])
    monkeypatch.setattr(write, "_prompts", lambda *_: [[50, 51, 52], [60, 61, 62]])
    found = written_here(config(num_texts=5))
    assert found.manifest.num_texts == 2
    assert found.manifest.rejected == {"duplicate": 18}, "four batches of five, four times what was asked for"


def test_an_instruction_is_put_into_the_chat_template(tmp_path):
    tokenizer = models.load_tokenizer("builtin")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{% if add_generation_prompt %}[answer] {% endif %}"
    )
    models.load_model("builtin", dtype="float32").save_pretrained(tmp_path / "chatty")
    tokenizer.save_pretrained(tmp_path / "chatty")
    settings = with_overrides(
        config(name="told", instruction="Tell this: {text}", num_texts=2, prompt_tokens=6, min_new_tokens=1, max_repeated=1.0),
        {"teacher.model": str(tmp_path / "chatty")},
    )
    rows = pl.read_parquet(written_here(settings).path)
    assert rows["prompt"].str.starts_with("[user] Tell this: ").all()
    assert rows["prompt"].str.ends_with("[answer]").all() or rows["prompt"].str.ends_with("[answer] ").all()
    assert not rows["text"].str.contains("Tell this").any(), "the answer alone is kept"


# ---------------------------------------------------------------- learned from
def test_written_windows_take_their_share_and_nothing_of_the_held_out_side(few):
    tokenizer = models.load_tokenizer("builtin")
    plain = corpus.build_windows(config().text, tokenizer)
    mixed = corpus.build_windows(with_overrides(config(), {"text.synthetic": "written:few", "text.synthetic_share": 0.25}).text, tokenizer)
    assert (len(mixed.train), mixed.num_synthetic) == (12, 3)
    np.testing.assert_array_equal(mixed.heldout.input_ids_NL, plain.heldout.input_ids_NL)
    np.testing.assert_array_equal(mixed.train.input_ids_NL[:9], plain.train.input_ids_NL[:9])
    decoded = tokenizer.decode(mixed.train.input_ids_NL[9][: mixed.train.doc_lens[9][0]], skip_special_tokens=True)
    assert any(text.startswith(decoded) for text in pl.read_parquet(few.path)["text"])
    assert any("3 of the 12 training windows are of text.synthetic" in note for note in mixed.notes)


def test_what_is_held_out_is_never_trained_on_as_written(tmp_path):
    tokenizer = models.load_tokenizer("builtin")
    stories = [document.text for document, _ in zip(corpus.documents(config().text), range(200), strict=False)]
    pl.DataFrame({"text": [*stories, "A new one about a king and his cat."]}).write_parquet(tmp_path / "copied.parquet")
    settings = with_overrides(
        config(), {"text.synthetic": str(tmp_path / "copied.parquet"), "text.num_windows": 300, "text.num_heldout_windows": 40}
    )
    mixed = corpus.build_windows(settings.text, tokenizer)
    assert mixed.num_synthetic == 1
    assert "king and his cat" in tokenizer.decode(mixed.train.input_ids_NL[-1])
    pl.DataFrame({"text": stories}).write_parquet(tmp_path / "copied.parquet")
    with pytest.raises(TextError, match="none of its 200 documents can be used; 200 are blank, or the same"):
        corpus.build_windows(settings.text, tokenizer)


def test_written_text_is_in_the_fingerprint(few, small_config):
    texts = {"text.num_windows": 8, "text.num_heldout_windows": 2, "capture.num_samples": 0}
    capture_here(with_overrides(small_config, {**texts, "capture.name": "plain"}))
    capture_here(with_overrides(small_config, {**texts, "capture.name": "mixed", "text.synthetic": "written:few"}))
    plain, mixed = (open_cache(name).plan.fingerprint.fields for name in ("plain", "mixed"))
    assert not [name for name in plain if "synthetic" in name]
    assert (mixed["text.synthetic"], mixed["text.synthetic_share"]) == ("written:few", "0.5")
    assert mixed["text.windows_sha256"] != plain["text.windows_sha256"]


def test_sequence_level_distillation_learns_the_teachers_texts_alone(few, small_config):
    """Kim and Rush 2016: the loss is the mean -log p of written tokens, whatever the cached distributions say."""
    settings = with_overrides(
        small_config,
        {
            "text.num_windows": 4, "text.num_heldout_windows": 2, "text.synthetic": "written:few", "text.synthetic_share": 1.0,
            "capture.name": "sequences", "capture.num_samples": 0, "loss.kl_weight": 0.0, "loss.ce_weight": 1.0,
            "train.max_steps": 1, "train.learning_rate": 1e-12, "train.eval_steps": 1, "train.name": "sequences",
        },
    )  # fmt: skip
    capture_here(settings)
    cache = open_cache("sequences")
    assert cache.manifest.text["num_synthetic"] == cache.num_windows("train")
    run = train_here(settings, cache="sequences", name="sequences")
    from distill_core import metrics

    rows = cache.rows("train", list(range(cache.num_windows("train"))))
    model = models.load_model("run:sequences", dtype="float32")
    total = count = 0.0
    for ids, positions, targets in zip(rows["input_ids"], rows["position_ids"], rows["targets"], strict=True):
        starts = [*np.flatnonzero(positions == 0), len(ids)]
        for start, end in itertools.pairwise(starts):
            logprobs = model(torch.tensor(ids[None, start:end])).logits[0].log_softmax(-1)
            for t in range(start, end - 1):
                if targets[t]:
                    total, count = total - float(logprobs[t - start, ids[t + 1]].detach()), count + 1
    logged = next(row for row in metrics.read(run.metrics_path) if "loss" in row)
    assert logged["loss"] == pytest.approx(total / count, rel=1e-3)


def test_through_the_command_line(capsys):
    sizes = ["--text.window_tokens", "64", "--text.num_windows", "6", "--text.num_heldout_windows", "2", "--device", "cpu"]
    given = ["--write.name", "said", "--write.num_texts", "3", "--write.max_new_tokens", "12"]
    assert run_command_line(["write", *sizes, *given]) == 0
    assert "3 texts" in capsys.readouterr().out
    assert run_command_line(["texts", "list"]) == 0
    assert capsys.readouterr().out.startswith("said  3 texts")
    assert run_command_line(["texts", "info", "said"]) == 0
    assert "rejected" in capsys.readouterr().out
    assert run_command_line(["data", "info", *sizes, "--text.synthetic", "written:said", "--text.synthetic_share", "0.2"]) == 0
    assert "1 of the 6 training windows are of text.synthetic 'written:said'" in capsys.readouterr().out
    assert run_command_line(["texts", "delete", "said"]) == 0
    assert list_texts() == []
    assert run_command_line(["texts", "info", "said"]) == 2
    assert "no written text 'said'" in capsys.readouterr().err


def test_deleting_what_is_being_written_is_refused(few):
    from filelock import FileLock

    with FileLock(few.folder / "writer.lock"), pytest.raises(TextError, match="is being written"):
        delete_text("few")
    assert hashlib.sha256(few.path.read_bytes()).hexdigest() == few.manifest.sha256
