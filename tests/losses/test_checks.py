"""What the loss cannot be computed from is refused: what, which value, what next."""

import pytest
import torch
from loss_cases import call, made

from distill_core.errors import LossInputError
from distill_core.losses import topk_kl

CASE = made(dtype=torch.float32)
INF, NAN = float("inf"), float("nan")

BAD_KNOBS = [
    ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ({"temperature": -1.0}, "temperature must be above 0, got -1.0"),
    ({"temperature": NAN}, "temperature must be above 0, got nan"),
    ({"kl_weight": -0.5}, "kl_weight must be 0 or more, got -0.5"),
    ({"ce_weight": NAN}, "ce_weight must be 0 or more, got nan"),
    ({"divergence": "forwards_kl"}, "divergence: 'forwards_kl' does not exist. Did you mean 'forward_kl'?"),
    ({"tail": "other"}, "tail: 'other' does not exist. Known: bucket, drop, renormalize"),
    ({"impl": "chunk"}, "impl: 'chunk' does not exist. Did you mean 'chunked'?"),
    ({"impl": "triton"}, "impl='triton' needs a GPU, the student is on cpu. Use impl='chunked'"),
    ({"chunk_tokens": 0}, "chunk_tokens must be 1 or more, got 0"),
    ({"logit_scale": 0.0}, "logit_scale must be a finite number other than 0"),
    ({"logit_softcap": 0.0}, "logit_softcap must be above 0, got 0.0"),
    ({"vocab_size": 14}, "vocab_size 14 does not fit a head of 13 rows"),
    ({"teacher_tail_N": None}, "tail='bucket' needs teacher_tail_N"),
    ({"teacher_tail_N": None, "tail": "drop"}, "tail='drop' needs teacher_tail_N"),
    ({"labels_N": None, "ce_weight": 0.5}, "ce_weight is 0.5, but labels_N is None"),
]


@pytest.mark.parametrize(("knobs", "words"), BAD_KNOBS, ids=[words[:40] for _, words in BAD_KNOBS])
def test_settings(knobs, words, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(LossInputError) as refused:
        call(CASE, CASE.student(), **knobs)
    assert words in str(refused.value)


def put(tensor, at, value):
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


BAD_TENSORS = [
    ({"hidden_ND": torch.zeros(2, 3, 4)}, "hidden_ND must have 2 dimensions, got shape (2, 3, 4). Flatten"),
    ({"hidden_ND": torch.zeros(7, 5)}, "hidden_ND is 5 wide, lm_head_VD 4"),
    ({"hidden_ND": torch.zeros(7, 4, dtype=torch.int64)}, "hidden_ND must be floating point, got torch.int64"),
    ({"hidden_ND": torch.zeros(8, 4)}, "teacher_ids_NK must be [8, K] with K >= 1, got shape (7, 5)"),
    ({"lm_head_VD": torch.zeros(52)}, "lm_head_VD must have 2 dimensions, got shape (52,). Pass the whole, gathered weight"),
    ({"lm_head_VD": torch.zeros(0, 4), "bias_V": None}, "lm_head_VD is empty, shape (0, 4): a sharded weight"),
    ({"bias_V": torch.zeros(12)}, "bias_V must be floating point with one entry for each of the 13 head rows"),
    ({"ids_NK": torch.zeros(7, 0, dtype=torch.int64)}, "got shape (7, 0)"),
    ({"logprobs_NK": torch.zeros(7, 4)}, "teacher_logprobs_NK has shape (7, 4), teacher_ids_NK (7, 5)"),
    ({"ids_NK": CASE.logprobs_NK.float()}, "teacher_ids_NK must be whole numbers, got torch.float32. Are arguments swapped?"),
    ({"tail_N": torch.zeros(7, 1)}, "teacher_tail_N must have shape (7,), got (7, 1)"),
    ({"labels_N": torch.zeros(6, dtype=torch.int64)}, "labels_N must have shape (7,), got (6,)"),
    ({"labels_N": torch.zeros(7)}, "labels_N must be whole numbers, got torch.float32"),
    ({"ids_NK": put(CASE.ids_NK, (3, 2), 13)}, "teacher_ids_NK holds id 13, outside the student's vocabulary of 13"),
    ({"ids_NK": put(CASE.ids_NK, (3, 2), -1)}, "teacher_ids_NK holds id -1"),
    ({"labels_N": put(CASE.labels_N, 2, 40)}, "labels_N holds 40, outside the student's vocabulary of 13. Use -100"),
    ({"logprobs_NK": put(CASE.logprobs_NK, (3, 2), NAN)}, "teacher_logprobs_NK holds nan"),
    (
        {"logprobs_NK": put(CASE.logprobs_NK, (3, 2), 4.5)},
        "teacher_logprobs_NK holds 4.5: a natural-log probability is never above 0. Are these logits?",
    ),
    ({"logprobs_NK": put(CASE.logprobs_NK, 3, -INF)}, "teacher_logprobs_NK: valid row 3 has no entry"),
    ({"tail_N": put(CASE.tail_N, 3, INF)}, "teacher_tail_N holds NaN or +inf"),
    ({"tail_N": put(CASE.tail_N, 3, NAN)}, "teacher_tail_N holds NaN or +inf"),
]


@pytest.mark.parametrize(("fields", "words"), BAD_TENSORS, ids=[words[:40] for _, words in BAD_TENSORS])
def test_tensors(fields, words):
    case = CASE.changed(**fields)
    with pytest.raises(LossInputError) as refused:
        topk_kl(
            case.hidden_ND,
            case.lm_head_VD,
            case.ids_NK,
            case.logprobs_NK if case.logprobs_NK.dtype == torch.float32 else case.logprobs_NK.float(),
            teacher_tail_N=case.tail_N,
            labels_N=case.labels_N,
            bias_V=case.bias_V,
        )
    assert words in str(refused.value)


def test_id_beyond_the_real_vocabulary():
    """151,936 rows in the head do not make id 152,063 real; nor does a padded head its padding (microsoft/LMOps#286)."""
    with pytest.raises(LossInputError, match=r"holds id \d+, outside the student's vocabulary of 6"):
        call(CASE, CASE.student(), vocab_size=6)


def test_different_devices():
    case = CASE.changed(tail_N=CASE.tail_N.to("meta"))
    with pytest.raises(LossInputError, match="teacher_tail_N on meta"):
        call(case, case.student())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_quantized_head_by_its_type(dtype):
    """8-bit floats call themselves floating point; bitsandbytes' and GPTQ's weights are whole numbers."""
    with pytest.raises(LossInputError, match=f"lm_head_VD must be floating point, got {dtype}.*must be dequantized"):
        call(CASE, (CASE.hidden_ND, torch.zeros(13, 4).to(dtype), CASE.bias_V))


def test_quantized_head_by_its_class():
    """A wrapper that says float32 and holds something else, as torchao's tensors do."""
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(LossInputError, match=r"\(TwoTensor\). A quantized head must be dequantized first"):
        call(CASE, (CASE.hidden_ND, TwoTensor(CASE.lm_head_VD, CASE.lm_head_VD), CASE.bias_V))
