"""A cache in another tokenizer's tokens: every kept row is the teacher's own, every other number of it in the tail."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from steps import carry_out

from distill_core import corpus, faithfulness, jobs, metrics, models, playground, trainer
from distill_core.batches import Collate
from distill_core.cache import ANCHORS, CacheWriter, browse, open_cache, verify_records
from distill_core.cli import run_command_line
from distill_core.config import LossConfig, TextConfig, with_overrides
from distill_core.errors import CacheError, ConfigError, ModelError, VocabularyError
from distill_core.losses import topk_kl
from distill_core.paths import caches_dir
from distill_core.translation import Rows, align, byte_strings, placed, rebuilt, translated, twins


def wrapped(tokenizer, **special):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level(pieces, *, bos=None, eos="</s>"):
    """A byte-level tokenizer whose pieces are these, of one byte each or of two pieces that stand before."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [name for name in (bos, eos) if name]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet, *["".join(pair) for pair in pieces]])}
    made = Tokenizer(BPE(vocab=vocabulary, merges=pieces))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    return wrapped(made, eos_token=eos, **({"bos_token": bos} if bos else {}))


def sentencepiece(pieces):
    """As Llama's: a space before the text, spaces as a mark, bytes for letters that have no piece."""
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    alphabet = ["\u2581", *"abcdefghijklmnopqrstuvwxyz."]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: number for number, token in enumerate(["<unk>", "</s>", *single, *alphabet, *["".join(pair) for pair in pieces]])}
    made = Tokenizer(BPE(vocab=vocabulary, merges=pieces, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "</s>"])
    return wrapped(made, eos_token="</s>", unk_token="<unk>")


def pair(teacher, student, text, *, cut=slice(None)):
    """(known bytes of both, the teacher's tokens placed, the student's) of one document."""
    known = byte_strings(teacher, "one"), byte_strings(student, "two")
    encoded = corpus.encode(corpus.Document(text=text), teacher, assistant_only_loss=False)
    there = placed(encoded.token_ids[cut], encoded.token_bytes[cut].astype(np.int64), known[0])
    assert there is not None
    made = rebuilt(there, student, known[1])
    assert made is not None
    return known, there, made[1]


# ---------------------------------------------------------------- rows against brute force
A = byte_level([("a", "b"), ("ab", "a"), ("b", "b"), ("\u0120", "a")])
B = byte_level([("b", "a"), ("a", "b"), ("ba", "b"), ("\u0120", "a"), ("\u00c3", "\u00a9")])


@pytest.mark.parametrize("seed", range(4))
def test_rows_against_every_token_of_a_tiny_teacher(seed):
    """The truth: all of the teacher's tokens by their strings, compared one by one; the tail is what the row does not name."""
    dice = np.random.default_rng(seed)
    text = "".join(dice.choice(["a", "b", "ab", "bb", " a", " ", "é", "ba"], 30))
    known, there, here = pair(A, B, text)
    logits = dice.normal(size=(len(there.ids_T), known[0].vocab_size)) * 3
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order, top_k, betas = np.argsort(-logprobs, -1), 40, 1 / np.array(ANCHORS)
    rest = np.take_along_axis(logprobs, order[:, top_k:], -1)
    powers = np.exp(rest[..., None] * betas)
    stored = Rows(
        order[:, :top_k], np.take_along_axis(logprobs, order[:, :top_k], -1), np.log(powers.sum(1)),
        (powers * rest[..., None]).sum(1) / powers.sum(1),
    )  # fmt: skip
    found_rows = align(there, here)
    found = translated(Rows(*(part[found_rows.teacher_rows] for part in stored)), twins(*known), top_k=top_k)

    strings = [[side.of_id[token] for token in ids] for side, ids in zip(known, (there.ids_T.tolist(), here.ids_T.tolist()), strict=True)]
    starts = [[b"".join(piece or b"" for piece in pieces[:place]) for place in range(len(pieces))] for pieces in strings]
    expected = [
        (i - 1, j - 1)
        for i, j in itertools.product(range(1, len(strings[0])), range(1, len(strings[1])))
        if starts[0][i] == starts[1][j] and strings[0][i] == strings[1][j]
    ]
    assert sorted(zip(found_rows.teacher_rows.tolist(), found_rows.student_rows.tolist(), strict=True)) == sorted(expected)
    assert len(expected) >= 4
    for place, row in enumerate(found_rows.teacher_rows):
        truth = {}
        for token in order[row, :top_k]:
            string = known[0].of_id[token]
            twin = known[1].eos_id if token == known[0].eos_id else known[1].id_of.get(string) if string is not None else None
            if twin is not None:
                truth[twin] = (logprobs[row, token], int(token))
        count = len(truth)
        assert dict(zip(found.ids_RK[place, :count].tolist(), found.logprobs_RK[place, :count].tolist(), strict=True)) == {
            twin: value for twin, (value, _) in truth.items()
        }
        assert np.isneginf(found.logprobs_RK[place, count:]).all()
        assert (np.diff(found.logprobs_RK[place, :count]) <= 0).all()
        others = np.delete(logprobs[row], [token for _, token in truth.values()])
        for anchor, beta in enumerate(betas):
            weights = np.exp(others * beta)
            assert found.tail_RA[place, anchor] == pytest.approx(np.log(weights.sum()))
            assert found.tail_mean_RA[place, anchor] == pytest.approx((weights * others).sum() / weights.sum())


def test_an_empty_tail_stays_empty_and_a_cut_row_keeps_its_mass():
    rows = Rows(np.array([[0, 1, 2]]), np.log([[0.5, 0.3, 0.2]]), np.full((1, 6), -np.inf), np.zeros((1, 6)))
    same = translated(rows, np.array([7, 8, 9]), top_k=3)
    assert same.ids_RK.tolist() == [[7, 8, 9]]
    assert np.isneginf(same.tail_RA).all()
    assert (same.tail_mean_RA == 0).all()
    cut = translated(rows, np.array([7, -1, 9]), top_k=1)
    assert cut.ids_RK.tolist() == [[7]]
    np.testing.assert_allclose(cut.tail_RA[0], np.log(0.3 ** (1 / np.array(ANCHORS)) + 0.2 ** (1 / np.array(ANCHORS))))


def test_equal_entries_stand_by_rising_id_and_empty_ones_last():
    rows = Rows(np.array([[0, 1, 2, 0xFFFFFFFF]]), np.array([[-1.0, -1.0, -2.0, -np.inf]]), np.full((1, 6), -3.0), np.full((1, 6), -4.0))
    found = translated(rows, np.array([9, 3, -1]), top_k=4)
    assert found.ids_RK.tolist() == [[3, 9, 0, 0]]
    assert found.logprobs_RK.tolist() == [[-1.0, -1.0, -np.inf, -np.inf]]


# ---------------------------------------------------------------- bytes of tokens
@pytest.mark.parametrize("text", ["It was late.  Ben slept. ", " a", "naïve 😀 café\n\n  end", "ab\tba\r\n", "日本語 テキスト"])
def test_the_text_comes_back_out_of_the_tokens(text):
    for tokenizer in (models.load_tokenizer("builtin"), A, sentencepiece([("\u2581", "b"), ("\u2581b", "e")])):
        known = byte_strings(tokenizer, "it")
        encoded = corpus.encode(corpus.Document(text=text), tokenizer, assistant_only_loss=False)
        found = placed(encoded.token_ids, encoded.token_bytes.astype(np.int64), known)
        assert found is not None
        assert found.text.decode() == text


def test_half_a_character_at_a_windows_end_is_no_text():
    tokenizer = models.load_tokenizer("builtin")
    encoded = corpus.encode(corpus.Document(text="ab😀"), tokenizer, assistant_only_loss=False)
    assert placed(encoded.token_ids[:4], encoded.token_bytes[:4].astype(np.int64), byte_strings(tokenizer, "it")) is None


def test_other_bytes_than_were_counted_are_no_text():
    encoded = corpus.encode(corpus.Document(text="ab ba"), A, assistant_only_loss=False)
    bytes_T = encoded.token_bytes.astype(np.int64)
    bytes_T[0] += 1
    assert placed(encoded.token_ids, bytes_T, byte_strings(A, "it")) is None


def test_a_space_that_sentencepiece_puts_before_the_text_is_no_space_of_the_text():
    """'be' at the beginning is the piece ' be' there: that one place is left out, ' be' later on is a twin."""
    llama = sentencepiece([("\u2581", "b"), ("\u2581b", "e")])
    other = byte_level([("\u0120", "b"), ("\u0120b", "e"), ("b", "e")], bos="<s>")
    known, there, here = pair(llama, other, "be be.")
    rows = align(there, here)
    pieces = [known[0].of_id[there.ids_T[row + 1]] for row in rows.teacher_rows]
    assert pieces == [b" be", b".", None], "the end token by its role"
    assert [known[1].of_id[here.ids_T[row + 1]] for row in rows.student_rows] == [b" be", b".", None]


def test_single_bytes_of_sentencepiece_are_no_second_a():
    llama, twin = byte_strings(sentencepiece([]), "it"), None
    assert llama.of_id[llama.id_of[b"a"]] == b"a"
    single = 2 + ord("a")
    assert llama.of_id[single] == b"a"
    assert llama.id_of[b"a"] != single
    twin = twins(llama, byte_strings(A, "other"))
    assert twin[single] == -1
    assert len(set(twin[twin >= 0].tolist())) == (twin >= 0).sum(), "no two have the same twin"


def test_roles_have_twins_and_other_special_tokens_none():
    ours, theirs = byte_strings(byte_level([], bos="<s>"), "one"), byte_strings(byte_level([]), "two")
    found = twins(ours, theirs)
    assert found[ours.eos_id] == theirs.eos_id
    assert found[ours.bos_id] == -1, "the other has no begin token"


def test_a_document_cut_by_its_window_has_no_end_to_learn():
    _, there, here = pair(A, B, "ab ba ab", cut=slice(0, -1))
    assert not there.ends_itself
    assert here.ids_T[-1] != B.eos_token_id


def test_tokens_that_do_not_say_their_bytes_are_refused_by_name():
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import WordPiece

    made = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    with pytest.raises(VocabularyError, match="tokenizer bert: WordPiece tokens do not say their bytes"):
        byte_strings(wrapped(made), "bert")
    lower = byte_level([])
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(VocabularyError, match=r"tokenizer low: it writes text anew \(Lowercase\)"):
        byte_strings(lower, "low")


# ---------------------------------------------------------------- the whole step
@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    """A second tokenizer, trained on other stories than the built-in teacher's cache is of."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE

    made = Tokenizer(BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = (document.text for document in itertools.islice(corpus.documents(TextConfig(seed=5)), 300))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    sizes = {"vocab_size": 900, "special_tokens": ["<s>", "</s>"], "initial_alphabet": alphabet, "show_progress": False}
    made.train_from_iterator(texts, trainers.BpeTrainer(**sizes))
    folder = tmp_path_factory.mktemp("other")
    wrapped(made, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return str(folder)


def translated_here(other_folder, name="other", **more):
    carry_out(jobs.new_translation("small", other_folder, name, **more))
    return open_cache(name)


def test_every_row_is_the_teachers_own(small_cache, other_folder):
    """The truth: texts before a place, decoded by either tokenizer, looked up in the source's own windows."""
    other = translated_here(other_folder, unaligned="skip")
    other.verify()
    verify_records(other)
    tokenizers = [models.load_tokenizer(str(cache.tokenizer_folder)) for cache in (small_cache, other)]
    compared = 0
    for window in (0, 7, 23):
        theirs, ours = (spoken(cache, tokenizer, window) for cache, tokenizer in zip((small_cache, other), tokenizers, strict=True))
        assert set(ours) <= set(theirs)
        for place, (entries, tail, gold) in ours.items():
            source, source_tail, source_gold = theirs[place]
            assert gold == source_gold
            assert {text: value for text, value in entries.items() if "\ufffd" not in text}.items() <= source.items(), "to the last bit"
            gone = sum(np.exp(value / 2) for text, value in source.items() if text not in entries)
            assert np.exp(tail) == pytest.approx(np.exp(source_tail) + gone, rel=2e-5)
            compared += 1
    assert compared > 60


def spoken(cache, tokenizer, window):
    """(document, text before, next text) -> ({text: log-probability}, tail at T = 2, the text's own) of one training window."""
    row = {name: values[0] for name, values in cache.rows("train", [window], temperature=2.0).items()}
    starts = [*np.flatnonzero(row["position_ids"] == 0), len(row["position_ids"])]
    found = {}
    for document, (start, end) in enumerate(itertools.pairwise(starts)):
        for t in range(start, end - 1):
            if row["targets"][t]:
                before = tokenizer.decode(row["input_ids"][start : t + 1], skip_special_tokens=True)
                following = tokenizer.decode([row["input_ids"][t + 1]], skip_special_tokens=True)
                pairs = zip(row["teacher_ids"][t].tolist(), row["teacher_logprobs"][t].tolist(), strict=True)
                entries = {tokenizer.decode([token]).replace("</s>", "<eos>"): value for token, value in pairs if value > -np.inf}
                found[document, before, following] = entries, row["teacher_tail"][t], row["gold_logprob"][t]
    return found


def test_windows_hold_the_same_documents_in_the_same_order(small_cache, other_folder):
    other = translated_here(other_folder)
    one, two = (models.load_tokenizer(str(cache.tokenizer_folder)) for cache in (small_cache, other))
    assert [other.num_windows(split) for split in ("train", "heldout")] == [24, 6]
    for split, window in (("train", 3), ("heldout", 5)):
        theirs, ours = small_cache.stored(split, window), other.stored(split, window)
        texts = []
        for row, tokenizer in ((theirs, one), (ours, two)):
            ends = np.cumsum([0, *row["doc_lens"]])
            texts.append(
                [tokenizer.decode(row["input_ids"][start:end], skip_special_tokens=True) for start, end in itertools.pairwise(ends)]
            )
        assert texts[0] == texts[1]
        assert ours["token_bytes"].sum() == theirs["token_bytes"].sum()
    told = other.manifest.text["translated"]
    assert told["aligned"] + told["hard"] == other.manifest.all_positions
    assert told["source_positions"] == small_cache.manifest.all_positions
    assert told["num_lost"] == 0
    assert other.manifest.teacher.prompts == small_cache.manifest.teacher.prompts
    assert [two.decode(ids) for ids in other.manifest.teacher.prompt_ids] == list(other.manifest.teacher.prompts)
    assert browse(other, "train", 0, num_choices=3).height == sum(other.stored("train", 0)["doc_lens"])


def test_what_is_not_aligned_is_learned_as_hard_labels_in_training_and_not_judged(small_cache, other_folder):
    """Every token but each document's first is trained on; rows that 'skip' has are the same, the others hold the next token alone."""
    hard, skip = translated_here(other_folder, "hard"), translated_here(other_folder, "skip", unaligned="skip")
    num_hard = 0
    for window in range(24):
        ours, theirs = hard.stored("train", window), skip.stored("train", window)
        starts = np.cumsum(ours["doc_lens"])
        wanted = np.arange(len(ours["targets"])) < starts[-1] - 1
        wanted[starts[:-1] - 1] = False
        assert (ours["targets"] == wanted).all()
        for name in ("teacher_ids", "teacher_logprobs", "tail_logsumexp", "gold_logprob"):
            assert (ours[name][theirs["targets"]] == theirs[name][theirs["targets"]]).all()
        new = ours["targets"] & ~theirs["targets"]
        assert (ours["teacher_ids"][new][:, 0] == ours["input_ids"][1:][new]).all()
        assert (ours["teacher_logprobs"][new][:, 0] == 0).all()
        assert np.isneginf(ours["teacher_logprobs"][new][:, 1:]).all() and np.isneginf(ours["tail_logsumexp"][new]).all()
        num_hard += int(new.sum())
    assert num_hard == hard.manifest.text["translated"]["hard"] > 0
    for window in range(6):
        assert (hard.stored("heldout", window)["targets"] == skip.stored("heldout", window)["targets"]).all()
    assert (hard.kept_mass(1.0) == skip.kept_mass(1.0)).all(), "kept mass speaks of the teacher"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_forward_kl_to_a_hard_label_is_cross_entropy(small_cache, other_folder, temperature):
    cache = translated_here(other_folder, "hard")
    batch = Collate(cache, LossConfig(temperature=temperature))([0, 1])
    is_hard = batch["teacher_tail"].isneginf() & (batch["labels"] >= 0)
    hidden_ND = torch.randn(int(is_hard.sum()), 12, generator=torch.Generator().manual_seed(0))
    head_VD = torch.randn(cache.plan.vocab_size, 12, generator=torch.Generator().manual_seed(1))
    rows = {name: batch[name][is_hard] for name in ("teacher_ids", "teacher_logprobs", "teacher_tail", "labels")}
    tail = {"teacher_tail_N": rows["teacher_tail"]}
    parts = topk_kl(hidden_ND, head_VD, rows["teacher_ids"], rows["teacher_logprobs"], **tail, temperature=temperature)
    truth = torch.nn.functional.cross_entropy(hidden_ND.double() @ head_VD.double().T / temperature, rows["labels"], reduction="sum")
    assert float(parts.kl) == pytest.approx(float(truth), rel=1e-5)


def test_reverse_kl_to_hard_labels_is_refused(small_cache, other_folder):
    cache = translated_here(other_folder, "hard")
    with pytest.raises(ConfigError, match="infinitely far"):
        Collate(cache, LossConfig(divergence="reverse_kl"))
    Collate(cache, LossConfig(divergence="jsd"))


def test_the_teachers_line_counts_its_own_rows_only(small_cache, other_folder, small_config):
    """One step over the whole text: the teacher's line is what the manifest says of the cache without hard labels."""
    hard, skip = translated_here(other_folder, "hard"), translated_here(other_folder, "skip", unaligned="skip")
    sizes = {"student.init": "fresh", "student.model": None, "train.max_steps": 1, "train.per_device_train_batch_size": 24}
    teacher_nll, gold = -skip.manifest.mean("gold_logprob", "train"), "gold_logprob"
    assert -hard.manifest.mean(gold, "train") < 0.95 * teacher_nll, "with hard labels counted as 0 it would look better than it is"
    run = carry_out(jobs.new_training(with_overrides(small_config, sizes), "hard"))
    row = next(row for row in metrics.read(run.metrics_path) if "teacher_nll" in row)
    assert row["teacher_nll"] == pytest.approx(teacher_nll, rel=1e-5)


def test_the_playground_asks_the_teacher_where_it_was_asked(small_cache, other_folder):
    translated_here(other_folder, "hard"), translated_here(other_folder, "skip", unaligned="skip")
    one, two = (playground.open_shared(name).window("train", 0) for name in ("hard", "skip"))
    asked = [one.is_asked(token) for token in range(one.num_tokens)]
    assert asked == [two.is_asked(token) for token in range(two.num_tokens)]
    assert any(asked) and one.row["targets"].sum() > sum(asked)


def test_positions_by_entropy_are_refused_where_hard_labels_have_none(small_cache, other_folder):
    cache = translated_here(other_folder, "hard")
    with pytest.raises(ConfigError, match="whose entropy is 0"):
        Collate(cache, LossConfig(positions="entropy", position_share=0.5))
    Collate(cache, LossConfig(positions="gap", position_share=0.5))


def test_the_same_again_finds_it_done_and_after_a_break_it_goes_on(small_cache, other_folder, monkeypatch):
    whole = translated_here(other_folder)
    write, calls = CacheWriter.write, []

    def breaks(self, shard, columns):
        calls.append(shard.name)
        if len(calls) == 2:
            raise RuntimeError("the lights went out")
        return write(self, shard, columns)

    monkeypatch.setattr(CacheWriter, "write", breaks)
    with pytest.raises(RuntimeError):
        translated_here(other_folder, "again")
    with pytest.raises(CacheError, match="unfinished"):
        open_cache("again")
    again = translated_here(other_folder, "again")
    assert calls.count(calls[0]) == 1, "what was finished is kept"
    assert [entry.sha256 for entry in again.manifest.entries] == [entry.sha256 for entry in whole.manifest.entries]
    assert again.manifest.text == whole.manifest.text
    num_calls = len(calls)
    translated_here(other_folder, "again")
    assert len(calls) == num_calls, "nothing is written twice"


@pytest.mark.slow
def test_killed_and_started_again_gives_the_same_bytes(small_cache, other_folder):
    run = jobs.new_translation("small", other_folder, "killed")
    process = subprocess.Popen([sys.executable, "-m", "distill_core", "runs", "work", run.id], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(caches_dir().glob("killed/manifest.d/*.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    jobs.requeue(run)
    carry_out(run)
    whole = translated_here(other_folder)
    assert [entry.sha256 for entry in open_cache("killed").manifest.entries] == [entry.sha256 for entry in whole.manifest.entries]


def test_through_the_command_line_to_a_judged_student(small_cache, other_folder, capsys):
    asked = ["cache", "translate", "small", "--to", other_folder, "--name", "said"]
    assert run_command_line(asked) == 0
    said = capsys.readouterr().out
    assert "of the student's" in said and said.count("note        ") == 1
    assert run_command_line(["cache", "verify", "said"]) == 0
    assert run_command_line(["train", "--cache", "said", "--train.name", "learner", "--train.max_steps", "4"]) == 0
    assert run_command_line(["evaluate", "learner"]) == 0
    assert "nats per token from the teacher" in capsys.readouterr().out
    model = models.load_config(str(caches_dir().parent / "runs" / "learner" / "model"))
    assert model.vocab_size == open_cache("said").plan.vocab_size


def test_below_the_least_coverage_it_is_refused_with_the_figures(small_cache, other_folder):
    with pytest.raises(VocabularyError, match=r"of the student's [\d,]+ tokens \(.*%\) .* below --min-coverage 0.99"):
        translated_here(other_folder, min_coverage=0.99)
    assert not (caches_dir() / "other").exists()


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        (("nothing", "builtin", "new"), CacheError, "no cache 'nothing'"),
        (("small", "/no/such/folder", "new"), ModelError, "no such folder"),
        (("small", "builtin", "small"), ConfigError, "--name small is the cache itself"),
        (("small", "builtin", "a/b"), ConfigError, "cannot be a folder name"),
    ],
)
def test_what_can_only_fail_is_said_before_there_is_a_run(small_cache, asked, error, words):
    with pytest.raises(error, match=words):
        jobs.submit_translate(*asked)
    with pytest.raises(ConfigError, match="is no share"):
        jobs.submit_translate("small", "builtin", "new", min_coverage=1.5)


def test_what_is_not_the_teachers_own_words_is_refused(small_cache, other_folder, small_config):
    other = translated_here(other_folder)
    with pytest.raises(CacheError, match="is a translation itself"):
        jobs.new_translation("other", "builtin", "back")
    with pytest.raises(CacheError, match="speaks other tokens than its teacher's"):
        faithfulness.compare(other)
    sizes = ("hidden_size", "num_attention_heads", "intermediate_size")
    pruned = with_overrides(small_config, {"student.init": "prune_layers"} | {f"student.{name}": None for name in sizes})
    with pytest.raises(ConfigError, match="cut out of the teacher cannot learn from it"):
        jobs.new_training(pruned, "other")
    progress = SimpleNamespace(phase=lambda _: None, say=lambda _: None)
    with pytest.raises(ConfigError, match="cut out of the teacher cannot learn from it"):
        trainer.make_student(pruned, other, None, None, progress)
    made_by = json.loads((other.folder / "made_by.json").read_text())
    assert "cache translate small" in made_by["command"]
