"""Each row's divergence without a gradient, against the whole loss on that row alone."""

import pytest
import torch
from loss_cases import MODES, LargestTensor, call, made

from distill_core.errors import LossInputError
from distill_core.losses import gap_rows


def gaps_of(case, **knobs):
    hidden_ND, lm_head_VD, bias_V = case.student()
    return gap_rows(
        hidden_ND,
        lm_head_VD,
        case.ids_NK,
        case.logprobs_NK,
        teacher_tail_N=case.tail_N,
        labels_N=case.labels_N,
        bias_V=bias_V,
        **knobs,
    )


def row(case, n):
    part = slice(n, n + 1)
    fields = ("hidden_ND", "teacher_NV", "ids_NK", "logprobs_NK", "tail_N", "labels_N")
    return case.changed(**{name: getattr(case, name)[part] for name in fields})


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_every_row_is_the_reference_loss_of_that_row_alone(divergence, tail, temperature):
    case = made(n=7, v=31, d=5, k=6, temperature=temperature, ignored=2)
    knobs = {"divergence": divergence, "tail": tail, "temperature": temperature}
    found = gaps_of(case, chunk_tokens=2, **knobs)
    valid = (case.labels_N != -100).nonzero().flatten().tolist()
    alone = [call(row(case, n), row(case, n).student(), impl="reference", **knobs).kl.item() for n in valid]
    torch.testing.assert_close(found, torch.tensor(alone, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert not found.requires_grad


def test_softcap_scale_and_padded_head():
    case = made(n=5, v=17, d=4, k=3)
    knobs = {"logit_softcap": 2.0, "logit_scale": 0.7, "vocab_size": 17}
    padded = case.changed(
        lm_head_VD=torch.cat([case.lm_head_VD, torch.full((3, 4), 9.0)]), bias_V=torch.cat([case.bias_V, torch.full((3,), 50.0)])
    )
    found = gaps_of(padded, **knobs)
    alone = [call(row(case, n), row(case, n).student(), impl="reference", **knobs).kl.item() for n in range(5)]
    torch.testing.assert_close(found, torch.tensor(alone, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_no_tensor_is_tokens_by_vocabulary():
    case = made(n=256, v=512, d=8, k=4, dtype=torch.float32)
    with LargestTensor() as largest:
        gaps_of(case, chunk_tokens=16)
    assert largest.nbytes < 256 * 512 * 4 / 2


def test_nothing_to_learn_gives_nothing():
    case = made(n=3, v=9, ignored=3)
    assert gaps_of(case).shape == (0,)


def test_bad_input_is_refused_like_the_loss_does():
    case = made(n=3, v=9)
    with pytest.raises(LossInputError):
        gaps_of(case.changed(ids_NK=case.ids_NK + 100))
    with pytest.raises(TypeError, match="no setting temprature"):
        gaps_of(case, temprature=2.0)
