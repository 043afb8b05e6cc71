"""topk+sample: the expected gradient is that of the whole vocabulary; plain top-K's is not."""
# C: rows   V: vocabulary   K: entries

import hashlib
import math

import numpy as np
import pytest
import torch
from steps import capture_here, train_here

from distill_core import metrics
from distill_core.batches import Collate
from distill_core.cache import browse, open_cache
from distill_core.cache.codecs import EMPTY_ID
from distill_core.config import LossConfig, from_dict, with_overrides
from distill_core.errors import CacheError, ConfigError
from distill_core.export import model_card
from distill_core.faithfulness import compare
from distill_core.heads import Head
from distill_core.losses import topk_kl
from distill_core.sparse import draw_tail, sparse_rows
from distill_core.walk import facts, lookups

V, M, K = 400, 6, 12


@pytest.fixture(scope="module")
def flat_teacher():
    """A flat teacher: the top 6 of 400 tokens hold less than half of it."""
    torch.manual_seed(0)
    return (1.3 * torch.randn(V)).log_softmax(0)


def drawn(flat_teacher, num_rows):
    """The same position again and again, with chances on a grid: (ids, log weights) of the 6 exact and 6 drawn entries."""
    top, ids = flat_teacher.topk(M)
    tail = flat_teacher.scatter(0, ids, -1000.0)
    tail_C = tail.logsumexp(0).expand(num_rows)
    chances = (torch.arange(num_rows, dtype=torch.float64) + 0.5) / num_rows
    more_ids, log_weights = draw_tail(tail.expand(num_rows, -1), tail_C, chances, num_draws=K - M)
    return torch.cat([ids.expand(num_rows, -1), more_ids], 1), torch.cat([top.expand(num_rows, -1), log_weights], 1)


def gradient(student_V, ids_CK, logprobs_CK, **knobs):
    """Mean gradient of the loss in the student's logits: hidden state 1, the head is the logits."""
    logits_V1 = student_V[:, None].clone().requires_grad_()
    ids_CK = torch.where(logprobs_CK.isneginf(), 0, ids_CK)
    topk_kl(torch.ones(len(ids_CK), 1), logits_V1, ids_CK, logprobs_CK, impl="chunked", **knobs).loss.backward()
    return logits_V1.grad[:, 0] / len(ids_CK)


def test_the_expected_gradient_is_that_of_the_whole_vocabulary(flat_teacher):
    torch.manual_seed(1)
    student_V = flat_teacher + 0.5 * torch.randn(V)
    whole_V = student_V.softmax(0) - flat_teacher.exp()
    rows = 2000
    ids_CK, logprobs_CK = drawn(flat_teacher, rows)
    ours_V = gradient(student_V, ids_CK, logprobs_CK, teacher_tail_N=torch.full((rows,), -math.inf), tail="bucket")
    top, ids = flat_teacher.topk(K)
    tail_1 = flat_teacher.scatter(0, ids, -math.inf).logsumexp(0)[None]
    bias = {
        tail: (gradient(student_V, ids[None], top[None], tail=tail, teacher_tail_N=tail_1) - whole_V).norm()
        for tail in ("renormalize", "drop", "bucket")
    }
    assert (ours_V - whole_V).norm() < 5e-3 * whole_V.norm()
    for tail, size in bias.items():
        assert size > 0.1 * whole_V.norm(), f"plain top-K with tail {tail} is biased"
        assert size > 30 * (ours_V - whole_V).norm(), tail


def test_the_gradient_vanishes_on_average_where_the_student_is_the_teacher(flat_teacher):
    """Plain top-K, renormalised, pulls even a perfect student away."""
    rows = 2000
    ids_CK, logprobs_CK = drawn(flat_teacher, rows)
    ours_V = gradient(flat_teacher, ids_CK, logprobs_CK, teacher_tail_N=torch.full((rows,), -math.inf))
    top, ids = flat_teacher.topk(K)
    assert ours_V.norm() < 1e-3
    assert gradient(flat_teacher, ids[None], top[None], tail="renormalize").norm() > 0.05


def test_weights_by_hand():
    """A tail of 0.3, 0.15 and 0.05 in two draws, chance 0.5: points at 0.125 and 0.375 of 0.5: the first token and the second."""
    tail = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    tail[0, 0] = -1000.0
    ids, log_weights = draw_tail(tail, torch.tensor([math.log(0.5)]), torch.tensor([0.5], dtype=torch.float64), num_draws=2)
    assert ids.tolist() == [[1, 2]]
    assert log_weights.exp().tolist() == [[pytest.approx(0.25), pytest.approx(0.25)]]


def test_a_token_met_again_is_one_entry():
    """Nearly all of the tail is one token: it is met by each of four draws, weighs all of the tail, and three entries are empty."""
    tail = torch.tensor([[-1000.0, -9.0, 0.0, -9.0]])
    ids, log_weights = draw_tail(tail, torch.tensor([-1.5]), torch.tensor([0.5], dtype=torch.float64), num_draws=4)
    assert ids.tolist() == [[2, EMPTY_ID, EMPTY_ID, EMPTY_ID]]
    assert log_weights[0].tolist() == [pytest.approx(-1.5), -math.inf, -math.inf, -math.inf]


@pytest.mark.parametrize("vocab", [13, 1000, 50_000])
def test_every_row_weighs_one(vocab):
    torch.manual_seed(2)
    head = Head(torch.randn(vocab, 8), None, 1.0, None)
    kept = sparse_rows(
        torch.randn(40, 8), torch.zeros(40, dtype=torch.int64), head, top_k=12, num_exact=5, vocab_size=vocab, chunk_tokens=7
    )
    whole = sparse_rows(torch.randn(0, 8), torch.zeros(0, dtype=torch.int64), head, top_k=12, num_exact=5, vocab_size=vocab, chunk_tokens=7)
    assert kept.ids_RK.shape == (40, 12) and whole.ids_RK.shape[1:] in ((12,), (5,))
    torch.testing.assert_close(kept.logprobs_RK.double().exp().sum(1), torch.ones(40, dtype=torch.float64), atol=1e-5, rtol=0)
    for row in kept.ids_RK.tolist():
        used = [token for token in row if token != EMPTY_ID]
        assert len(set(used)) == len(used)


SAMPLED = {"capture.select": "topk+sample", "capture.num_exact": 8, "capture.name": "sampled"}


@pytest.fixture
def sampled(small_cache, small_config):
    capture_here(with_overrides(small_config, SAMPLED))
    return open_cache("sampled")


def test_a_sampled_cache_beside_the_plain_one(sampled, small_cache):
    plain, ours = small_cache.rows("train", [0, 7], top_k=8), sampled.rows("train", [0, 7])
    np.testing.assert_array_equal(ours["teacher_ids"], plain["teacher_ids"])
    np.testing.assert_allclose(ours["teacher_logprobs"], plain["teacher_logprobs"], atol=1e-3)
    np.testing.assert_allclose(ours["teacher_tail"], plain["teacher_tail"], atol=2e-3)
    for T in (1.0, 3.0):
        np.testing.assert_allclose(sampled.kept_mass(T), small_cache.kept_mass(T, top_k=8), atol=2e-3)
    assert sampled.manifest.mean("kept_mass", "train") < small_cache.manifest.mean("kept_mass", "train")
    drawn_too = sampled.rows("train", [0, 7], with_drawn=True)
    targets = drawn_too["targets"]
    assert drawn_too["teacher_ids"].shape[-1] == 20
    np.testing.assert_allclose(np.exp(drawn_too["teacher_logprobs"][targets]).sum(-1), 1.0, atol=5e-3)
    assert np.isneginf(drawn_too["teacher_tail"]).all()
    assert browse(sampled, "train", 0).height > 10
    assert compare(sampled, num_windows=3, device="cpu").is_faithful


def test_the_same_draws_every_time(sampled, small_config, distill_home):
    capture_here(with_overrides(small_config, SAMPLED | {"capture.name": "again"}))
    sums = [
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((distill_home / "caches" / name / "shards").iterdir())]
        for name in ("sampled", "again")
    ]
    assert sums[0] == sums[1]


def test_a_student_learns_from_it(sampled, small_config):
    run = train_here(with_overrides(small_config, SAMPLED), cache="sampled")
    looks = [row["heldout_kl"] for row in metrics.read(run.metrics_path) if "heldout_kl" in row]
    assert looks[-1] < looks[0]
    card = model_card(run, sampled, num_parameters=1, dtype="float32")
    assert "log-probabilities, top 8 and 12 drawn per position." in card
    assert "| K | 8 and 12 drawn |" in card
    assert "is in the top 8," in facts.cache_facts(sampled, lookups.kept_mass_at(sampled, 1.0)), (
        "the kept mass is that of the ranked entries"
    )


@pytest.mark.parametrize(
    ("loss", "words"),
    [({"temperature": 2.0}, "not for loss.temperature 2"), ({"top_k": 5}, "not for loss.top_k 5")],
)
def test_what_its_weights_are_not_right_for_is_refused(sampled, loss, words):
    with pytest.raises(CacheError, match=f"select 'topk.sample'.*{words}.*--capture.select topk"):
        Collate(sampled, LossConfig(**loss))([0])


def test_reverse_kl_is_refused(sampled):
    with pytest.raises(ConfigError, match="not that of loss.divergence 'reverse_kl'"):
        Collate(sampled, LossConfig(divergence="reverse_kl"))


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        ({"num_exact": 5}, "only read with capture.select 'topk.sample'"),
        ({"select": "topk+sample", "codec": "packed"}, "needs capture.codec 'exact'"),
        ({"select": "topk+sample", "num_exact": 100}, "num_exact 100 must be at least 1 and below capture.top_k 100"),
        ({"select": "topk+sample", "top_k": 1}, "num_exact 0 must be at least 1"),
    ],
)
def test_settings_that_contradict(capture, words):
    with pytest.raises(ConfigError, match=words):
        from_dict({"capture": capture})


def test_half_of_the_entries_are_exact_by_default():
    assert from_dict({"capture": {"select": "topk+sample"}}).capture.num_ranked == 50
    assert from_dict({}).capture.num_ranked == 100


def test_a_vocabulary_that_fits_needs_no_draws(small_config):
    with pytest.raises(ConfigError, match="holds the whole vocabulary"):
        capture_here(with_overrides(small_config, SAMPLED | {"capture.top_k": 5000}))
