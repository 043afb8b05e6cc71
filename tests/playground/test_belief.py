"""One position's belief and its lessons, against the whole distribution and against the loss itself."""

import math

import made
import numpy as np
import pytest
import torch

from distill_core import playground
from distill_core.cache import ANCHORS
from distill_core.errors import CacheError, ConfigError
from distill_core.losses import topk_kl

TEMPERATURES = (0.5, 0.7, 1.0, 1.2, 4 / 3, 1.75, 2.0, 3.0, 5.0, 8.0)


def place_of(logprobs_V, top_k, gold=0):
    """A position as a cache would hold it, made here from the whole distribution."""
    order = np.argsort(-logprobs_V)
    rest = logprobs_V[order[top_k:]]
    powers = np.exp(rest[:, None] / np.array(ANCHORS))
    with np.errstate(divide="ignore", invalid="ignore"):
        tail, mean = np.log(powers.sum(0)), np.nan_to_num((powers * rest[:, None]).sum(0) / powers.sum(0))
    return playground.Place(
        ids_K=order[:top_k],
        logprobs_K=logprobs_V[order[:top_k]].astype(np.float32),
        tail_A=tail.astype(np.float32),
        tail_mean_A=mean.astype(np.float16),
        gold_id=gold,
        gold_logprob=float(logprobs_V[gold]),
    )


def drawn(seed, vocab=300, scale=2.5):
    logits = np.random.default_rng(seed).normal(size=vocab) * scale
    return logits - np.log(np.exp(logits).sum())


def dense(logprobs_V, temperature):
    powers = np.exp(logprobs_V / temperature)
    return np.sort(powers / powers.sum())[::-1]


def test_by_hand():
    """Probabilities 1/2, 1/4, 1/8, 1/8 with two stored: at T = 1 the rest is 1/4, the entropy 1.75 bits; at 1/2 squares."""
    place = place_of(np.log(np.array([0.5, 0.25, 0.125, 0.125])), 2)
    belief = playground.believe(place, temperature=1.0, top_k=2)
    assert belief.probabilities_K == pytest.approx([0.5, 0.25], rel=1e-6)
    assert belief.rest == pytest.approx(0.25, rel=1e-5)
    assert belief.entropy == pytest.approx(1.75 * math.log(2), abs=3e-4), "the tail's mean is rounded to float16"
    sharp = playground.believe(place, temperature=0.5, top_k=1)
    assert sharp.probabilities_K == pytest.approx([16 / 22], rel=1e-6)
    assert sharp.kept_mass == pytest.approx(16 / 22, rel=1e-5)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("top_k", [1, 7, 20])
def test_against_the_whole_distribution(temperature, top_k):
    for seed in range(30):
        logprobs = drawn(seed, scale=1 + seed % 4)
        truth = dense(logprobs, temperature)
        belief = playground.believe(place_of(logprobs, 20), temperature=temperature, top_k=top_k)
        true_rest, true_entropy = truth[top_k:].sum(), -(truth * np.log(truth)).sum()
        assert belief.probabilities_K == pytest.approx(truth[:top_k], rel=5e-3)
        assert belief.rest == pytest.approx(true_rest, abs=2e-3)
        assert belief.entropy == pytest.approx(true_entropy, abs=0.02)
        for bound, value, ours in (
            (belief.rest_bound, true_rest, belief.rest),
            (belief.entropy_bound, true_entropy, belief.entropy),
            (belief.kept_mass_bound, 1 - true_rest, belief.kept_mass),
        ):
            assert bound[0] <= value + 1e-6 and value - 1e-6 <= bound[1], "but for the entries' float32"
            assert bound[0] <= ours <= bound[1]
        if temperature in ANCHORS:
            assert belief.rest_bound[1] - belief.rest_bound[0] < 1e-4, "the tail is stored there"


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_all_of_the_vocabulary_stored(temperature):
    """Nothing is left to guess: every number has its dense truth, and no error bar."""
    logprobs = drawn(3, vocab=12)
    truth = dense(logprobs, temperature)
    belief = playground.believe(place_of(logprobs, 12), temperature=temperature, top_k=12)
    assert belief.probabilities_K == pytest.approx(truth, rel=1e-5)
    assert belief.rest == 0 and belief.rest_bound == (0, 0)
    assert belief.entropy == pytest.approx(-(truth * np.log(truth)).sum(), rel=1e-5)
    cut = playground.believe(place_of(logprobs, 12), temperature=temperature, top_k=5)
    assert cut.rest == pytest.approx(truth[5:].sum(), rel=1e-5), "what is cut off joins the rest, exactly"
    assert cut.entropy == pytest.approx(belief.entropy)


@pytest.mark.parametrize("top_k", [0, 21])
def test_a_top_k_that_is_not_there_is_refused(top_k):
    with pytest.raises(ConfigError, match="1 to 20"):
        playground.believe(place_of(drawn(0), 20), temperature=1.0, top_k=top_k)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
@pytest.mark.parametrize("tail", ["bucket", "renormalize", "drop"])
def test_a_lesson_is_where_the_loss_itself_ends(tail, divergence, temperature):
    """A student that is nothing but its logits, trained by this package's loss until it stands still."""
    logprobs = drawn(5, vocab=9, scale=1.5)
    place = place_of(logprobs, 4)
    belief = playground.believe(place, temperature=temperature, top_k=4)
    logits_1V = torch.zeros(1, 9, dtype=torch.float64, requires_grad=True)
    with np.errstate(divide="ignore"):
        rest_at_T = np.log(np.exp(np.sort(logprobs)[::-1][4:] / temperature).sum())
    targets = torch.from_numpy(place.ids_K)[None], torch.from_numpy(place.logprobs_K.astype(float))[None], torch.tensor([rest_at_T])
    optimizer = torch.optim.LBFGS([logits_1V], lr=1, max_iter=2000, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        loss = topk_kl(
            logits_1V,
            torch.eye(9, dtype=torch.float64),
            *targets[:2],
            teacher_tail_N=targets[2],
            temperature=temperature,
            divergence=divergence,
            tail=tail,
            impl="reference",
        ).loss
        loss.backward()
        return loss

    optimizer.step(closure)
    student_V = torch.softmax(logits_1V.detach()[0] / temperature, -1).numpy()
    entries, rest = student_V[place.ids_K], 1 - student_V[place.ids_K].sum()
    lesson = playground.lesson(belief, tail=tail, divergence=divergence)
    if lesson.rest is None:
        assert entries / entries.sum() == pytest.approx(lesson.probabilities_K, abs=2e-3)
    else:
        assert entries == pytest.approx(lesson.probabilities_K, abs=2e-3)
        assert rest == pytest.approx(lesson.rest, abs=2e-3)


# ---- a window of a real cache folder


@pytest.fixture
def opened(distill_home):
    _, truth = made.make("made", 12)
    return playground.open_shared("made"), truth


def test_a_window_against_what_it_was_made_from(opened):
    shared, truth = opened
    window = shared.window("train", 3)
    doc_lens = truth.doc_lens[3]
    assert window.num_tokens == sum(doc_lens)
    assert window.token_ids == truth.input_ids_NL[3][: window.num_tokens].tolist()
    assert [token for token in range(made.L + 2) if not window.is_asked(token)][:2] == [0, doc_lens[0]]
    assert (window.first_asked, window.nearest_asked(0), window.nearest_asked(doc_lens[0]), window.nearest_asked(99)) == (1, 1, 4, 8)
    place = window.place(2)
    expected = dense(truth.logprobs_NPV[3, 1], 2.0)
    belief = playground.believe(place, temperature=2.0, top_k=5)
    assert belief.probabilities_K == pytest.approx(expected[:5], rel=2e-3)
    assert belief.rest == pytest.approx(expected[5:].sum(), abs=1e-3)
    assert place.gold_logprob == pytest.approx(truth.logprobs_NPV[3, 1, place.gold_id], rel=1e-5)
    with pytest.raises(CacheError, match="not asked"):
        window.place(0)
    with pytest.raises(CacheError, match="no window 8"):
        shared.window("train", 8)


def test_a_cache_is_opened_once_for_all_and_again_when_it_is_another(opened):
    shared, _ = opened
    assert playground.open_shared("made") is shared
    made.make("other", 12)
    assert playground.open_shared("other") is not shared


def test_tokens_with_the_teachers_choices(small_cache):
    """The strip says what `cache browse` says, which reads the cache another way."""
    from distill_core.cache import browse

    tokens = playground.open_shared("small").window("train", 1).tokens()
    told = browse(small_cache, "train", 1).to_dicts()
    assert [token["text"] for token in tokens] == [row["token"] for row in told]
    assert [token["asked"] for token in tokens] == [row["is_target"] for row in told]
    for token, row in zip(tokens, told, strict=True):
        if row["is_target"]:
            assert token["p"] == pytest.approx(row["probability"], abs=1e-5)
            assert [choice[0] for choice in token["choices"]] == [choice["token"] for choice in row["choices"]]
            assert [choice[1] for choice in token["choices"]] == pytest.approx(
                [choice["probability"] for choice in row["choices"]], abs=2e-3
            )
            assert all(is_this == (text == row["token"]) or text == row["token"] for text, _, is_this in token["choices"])
