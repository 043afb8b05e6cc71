"""What is kept of a distribution, against float64 log-softmax of the whole vocabulary."""
# R: rows   D: hidden size   V: vocabulary   K: entries kept

import math

import pytest
import torch

from distill_core.cache.tail import ANCHORS, AT_ONE
from distill_core.heads import Head
from distill_core.sparse import sparse_rows, widened


def case(rows, vocab, *, scale=0.6, seed=0, pad=3, bias=False, softcap=None, logit_scale=1.0):
    torch.manual_seed(seed)
    head = Head(torch.randn(vocab + pad, 24) * scale, torch.randn(vocab + pad) if bias else None, logit_scale, softcap)
    return torch.randn(rows, 24) * 2, torch.randint(vocab, (rows,)), head


def truth(hidden_RD, head, vocab):
    logits_RV = hidden_RD.double() @ head.weight_VD.double().T
    if head.bias_V is not None:
        logits_RV = logits_RV + head.bias_V.double()
    logits_RV = logits_RV * head.logit_scale
    if head.logit_softcap:
        logits_RV = head.logit_softcap * torch.tanh(logits_RV / head.logit_softcap)
    return logits_RV[:, :vocab].log_softmax(-1)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize(("rows", "vocab", "top_k"), [(33, 127, 10), (1, 500, 100), (20, 11, 10), (5, 11, 11), (9, 300, 1)])
@pytest.mark.parametrize("extra", [{}, {"bias": True, "logit_scale": 0.125}, {"softcap": 5.0}])
def test_against_the_whole_vocabulary(rows, vocab, top_k, chunk, extra):
    hidden_RD, gold_R, head = case(rows, vocab, **extra)
    kept = sparse_rows(hidden_RD, gold_R, head, top_k=top_k, vocab_size=vocab, chunk_tokens=chunk)
    logprobs_RV = truth(hidden_RD, head, vocab)
    top_RK, ids_RK = logprobs_RV.topk(top_k)
    assert torch.equal(kept.ids_RK.sort(1).values, ids_RK.sort(1).values)
    torch.testing.assert_close(kept.logprobs_RK.double(), top_RK, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(kept.gold_logprob_R.double(), logprobs_RV.gather(1, gold_R[:, None])[:, 0], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(kept.entropy_R.double(), -(logprobs_RV.exp() * logprobs_RV).sum(-1), atol=2e-4, rtol=1e-4)
    tail_RV = logprobs_RV.scatter(1, ids_RK, -math.inf)
    for column, temperature in enumerate(ANCHORS):
        torch.testing.assert_close(kept.tail_RA[:, column].double(), (tail_RV / temperature).logsumexp(-1), atol=2e-5, rtol=1e-5)
        if top_k < vocab:
            mean_R = (torch.softmax(tail_RV / temperature, -1) * logprobs_RV).sum(-1)
            torch.testing.assert_close(kept.tail_mean_RA[:, column].double(), mean_R, atol=2e-5, rtol=1e-5)


def test_padded_head_rows_have_no_probability():
    """Rows of the head beyond the real vocabulary, made enormous, change nothing."""
    hidden_RD, gold_R, head = case(6, 40)
    plain = sparse_rows(hidden_RD, gold_R, head, top_k=5, vocab_size=40, chunk_tokens=4)
    loud = head._replace(weight_VD=head.weight_VD.clone())
    loud.weight_VD[40:] *= 1e4
    assert torch.equal(sparse_rows(hidden_RD, gold_R, loud, top_k=5, vocab_size=40, chunk_tokens=4).logprobs_RK, plain.logprobs_RK)


def test_a_tail_of_e_to_the_minus_70_is_still_a_number():
    """One token far above the rest: 1 - kept mass would be 0 in float32; the tail summed itself is exact."""
    weight_VD = torch.zeros(50, 2)
    weight_VD[7, 0] = 70.0
    kept = sparse_rows(
        torch.tensor([[1.0, 0.0]]), torch.tensor([7]), Head(weight_VD, None, 1.0, None), top_k=1, vocab_size=50, chunk_tokens=8
    )
    assert kept.tail_RA[0, AT_ONE].item() == pytest.approx(math.log(49) - 70, abs=1e-4)
    assert kept.ids_RK.tolist() == [[7]]


def test_ties_are_sorted_by_id():
    kept = sparse_rows(torch.ones(1, 1), torch.tensor([0]), Head(torch.zeros(9, 1), None, 1.0, None), top_k=9, vocab_size=9, chunk_tokens=8)
    assert kept.ids_RK.tolist() == [list(range(9))]


def test_no_rows_at_all():
    hidden_RD, gold_R, head = case(0, 40)
    kept = sparse_rows(hidden_RD, gold_R, head, top_k=5, vocab_size=40, chunk_tokens=4)
    assert kept.ids_RK.shape == (0, 5)
    assert kept.tail_RA.shape == kept.tail_mean_RA.shape == (0, len(ANCHORS))


def test_half_precision_weights_are_widened_on_a_cpu():
    """bf16 logits would be 0.125 apart at 30; widened ones agree with float64 on the same weights."""
    hidden_RD, gold_R, head = case(30, 200, scale=2.0)
    half = head._replace(weight_VD=head.weight_VD.bfloat16())
    hidden_RD = hidden_RD.bfloat16()
    kept = sparse_rows(hidden_RD, gold_R, widened(half), top_k=20, vocab_size=200, chunk_tokens=8)
    expected = truth(hidden_RD, half, 200).topk(20).values
    assert (kept.logprobs_RK - expected).abs().max() < 1e-4
