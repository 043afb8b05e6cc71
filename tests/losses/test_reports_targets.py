"""Public reports about alignment, masks, vocabularies and temperature: the input that exposes each, here.

Each test names the reports that it answers; what a reader of theirs would see is in the first words.
"""

import math

import pytest
import torch
from loss_cases import IMPLS, MODES, call, made, run, with_teacher

from distill_core.errors import LossInputError
from distill_core.losses import IGNORE_INDEX, check_targets, topk_kl

F32 = torch.float32
FIELDS = ("hidden_ND", "ids_NK", "logprobs_NK", "tail_N", "labels_N")


def rows_of(case, rows):
    return case.changed(**{name: getattr(case, name)[rows] for name in FIELDS})


@pytest.mark.parametrize("impl", IMPLS)
def test_report_01_teacher_of_the_wrong_position(impl):
    """The teacher's row stood at the token's own place. https://github.com/areal-project/AReaL/pull/1729

    Row t scores token t + 1: a teacher sure of 5, 6, 7 pulls row t towards its own id and no other; one row alone keeps its signal.
    """
    labels_N = torch.tensor([5, 6, 7])
    teacher_NV = torch.full((3, 9), -20.0, dtype=torch.float64).scatter(-1, labels_N[:, None], 20.0)
    case = with_teacher(torch.zeros(3, 9), torch.eye(9), None, teacher_NV, labels_N, top_k=1)
    _, (hidden_grad_ND, _) = run(case, impl)
    assert torch.equal(hidden_grad_ND.argmin(-1), labels_N)
    assert ((hidden_grad_ND < 0).sum(-1) == 1).all()
    _, (alone_ND, _) = run(rows_of(case, slice(1, 2)), impl)
    torch.testing.assert_close(alone_ND[0], hidden_grad_ND[1])


@pytest.mark.parametrize("impl", IMPLS)
def test_report_02_last_position_without_a_target(impl):
    """Neither side was shifted, and the last row, all -inf, made NaN. https://github.com/modelscope/ms-swift/pull/8436"""
    case = made(dtype=F32)
    logprobs_NK, labels_N = case.logprobs_NK.clone(), case.labels_N.clone()
    logprobs_NK[-1], labels_N[-1] = -math.inf, IGNORE_INDEX
    parts, grads = run(case.changed(logprobs_NK=logprobs_NK, labels_N=labels_N), impl)
    without, _ = run(rows_of(case, slice(0, 6)), impl)
    assert parts.loss.item() == without.loss.item()
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_04_mask_used_without_the_shift(impl):
    """labels != -100, unshifted. https://github.com/MakazhanAlpamys/Soup/issues/682

    Tokens [prompt, 5, 2] give rows that predict 5, 2 and nothing: two are supervised; the row that only sees a prompt ahead is 0.
    """
    tokens_L = torch.tensor([-100, 5, 2])
    next_N = torch.cat([tokens_L[1:], torch.tensor([-100])])
    case = made(n=3, dtype=F32).changed(labels_N=next_N)
    parts, (hidden_grad_ND, *_) = run(case, impl, ce_weight=0.5)
    assert parts.num_valid == 2
    assert (hidden_grad_ND.abs().sum(-1) > 0).tolist() == [True, True, False]


@pytest.mark.parametrize("impl", IMPLS)
def test_report_05_student_shifted_teacher_not(impl):
    """A loss above 50 for a teacher that is the student. https://github.com/DeepOpt-com/WrinkleFree-Monorepo/issues/13"""
    case = made(noise=0.0, dtype=F32)
    assert abs(call(case, case.student(), impl=impl).loss.item()) < 1e-5
    shifted = case.changed(**{name: getattr(case, name).roll(1, 0) for name in ("ids_NK", "logprobs_NK", "tail_N")})
    assert call(shifted, shifted.student(), impl=impl).loss.item() > 0.1


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("poison", [math.nan, 1e30])
def test_report_06_padding_changes_the_winner(impl, poison):
    """Padding counted in the loss; ignore_index taken and not used. https://github.com/peremartra/optipfair/issues/34
    https://github.com/linkedin/Liger-Kernel/pull/974

    NaN or 1e30 in ignored hidden states, and ids that no vocabulary has, leave every bit as it was.
    """
    case = made(dtype=F32, ignored=2)
    is_ignored = case.labels_N == IGNORE_INDEX
    hidden_ND, ids_NK, logprobs_NK, tail_N = (tensor.clone() for tensor in (case.hidden_ND, case.ids_NK, case.logprobs_NK, case.tail_N))
    hidden_ND[is_ignored], ids_NK[is_ignored], logprobs_NK[is_ignored], tail_N[is_ignored] = poison, 2**40, poison, poison
    poisoned = case.changed(hidden_ND=hidden_ND, ids_NK=ids_NK, logprobs_NK=logprobs_NK, tail_N=tail_N)
    (parts, grads), (clean, clean_grads) = run(poisoned, impl), run(case, impl)
    assert [part.item() for part in parts] == [part.item() for part in clean]
    assert all(torch.equal(a, b) for a, b in zip(grads, clean_grads, strict=True))


@pytest.mark.parametrize("impl", IMPLS)
def test_report_08_probabilities_that_make_a_negative_loss(impl):
    """Log-probabilities of the user's own making gave a loss below 0. https://github.com/axolotl-ai-cloud/axolotl/issues/2692

    They are refused, and so is a cache that is longer than the input: never the wrong end of it.
    """
    case = made(n=8, dtype=F32)
    with pytest.raises(LossInputError, match="probabilities of valid row 0 sum to"):
        call(case.changed(logprobs_NK=torch.full((8, 5), -0.5)), case.student(), impl=impl)
    longer = made(n=10, dtype=F32)
    with pytest.raises(LossInputError, match=r"teacher_ids_NK must be \[8, K\] with K >= 1, got shape \(10, 5\)"):
        call(longer, case.student(), impl=impl)


def test_report_09_vocabularies_of_different_length():
    """152,064 rows against 151,936 tokens crashed. https://github.com/microsoft/LMOps/issues/286
    https://github.com/meta-pytorch/torchtune/issues/2119 https://github.com/NVIDIA/Model-Optimizer/issues/2489

    An id that the student lacks is named; padding rows with a logit of +50 change no sum and get no gradient.
    """
    torch.manual_seed(0)
    hidden_ND, head_VD = torch.randn(2, 2), torch.randn(151936, 2)
    ids_NK, logprobs_NK = torch.tensor([[5, 152063], [7, 9]]), torch.tensor([[0.6, 0.3], [0.5, 0.25]]).log()
    tail_N = torch.tensor([0.1, 0.25]).log()
    with pytest.raises(LossInputError, match="holds id 152,063, outside the student's vocabulary of 151,936"):
        topk_kl(hidden_ND, head_VD, ids_NK, logprobs_NK, teacher_tail_N=tail_N)
    ids_NK = ids_NK.clamp(max=151935)
    padded_VD = torch.cat([head_VD, torch.zeros(128, 2)]).requires_grad_()
    bias_V = torch.cat([torch.zeros(151936), torch.full((128,), 50.0)])
    plain = topk_kl(hidden_ND, head_VD, ids_NK, logprobs_NK, teacher_tail_N=tail_N)
    padded = topk_kl(hidden_ND, padded_VD, ids_NK, logprobs_NK, teacher_tail_N=tail_N, bias_V=bias_V, vocab_size=151936)
    padded.loss.backward()
    assert padded.loss.item() == plain.loss.item()
    assert not padded_VD.grad[151936:].any()
    assert padded_VD.grad[:151936].any()


def test_report_11_ids_cut_to_17_bits(tmp_path):
    """Vocabularies above 131,072 lost their ids, and -1 came back as 131,071. https://github.com/NVIDIA/Megatron-LM/pull/5019

    Every id that a loss of 262,144 tokens can get is taken as it is, in int32 and int64; a sentinel is refused.
    """
    ids_NK = torch.tensor([[0, 65535, 65536, 131071, 131072, 151935, 262143]])
    hidden_ND, head_VD = torch.ones(1, 1), torch.zeros(262144, 1)
    logprobs_NK = torch.full((1, 7), 1 / 7).log()
    knobs = {"teacher_tail_N": torch.tensor([-math.inf])}
    for dtype in (torch.int32, torch.int64):
        head = head_VD.clone().requires_grad_()
        topk_kl(hidden_ND, head, ids_NK.to(dtype), logprobs_NK, **knobs).loss.backward()
        assert torch.equal((head.grad[:, 0] < 0).nonzero()[:, 0], ids_NK[0])
    with pytest.raises(LossInputError, match="holds id -1"):
        check_targets(torch.tensor([[3, -1]]), torch.tensor([[0.5, 0.5]]).log(), vocab_size=262144)


@pytest.mark.parametrize("impl", ["chunked", "tiled"])
@pytest.mark.parametrize(("v", "d", "n"), [(127, 7, 31), (50257, 130, 1), (129920, 7, 33), (151936, 7, 1), (50257, 896, 1)])
def test_report_12_vocabulary_that_no_block_divides(impl, v, d, n):
    """A wrong log-sum-exp at V = 129,920. https://github.com/verl-project/verl/issues/2899"""
    case = made(n=n, v=v, d=d, k=20, noise=0.3, dtype=F32, bias=False)
    case = case.changed(lm_head_VD=case.lm_head_VD / d**0.5)
    truth = call(case, case.student(requires_grad=False), impl="reference", ce_weight=0.5)
    parts = call(case, case.student(requires_grad=False), impl=impl, ce_weight=0.5)
    assert parts.loss.item() == pytest.approx(truth.loss.item(), rel=2e-5)
    assert parts.ce.item() == pytest.approx(truth.ce.item(), rel=2e-6)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_report_14_probabilities_that_ignore_the_temperature(impl, temperature):
    """Stored at T = 1, asked for at T = 2. https://github.com/vllm-project/vllm/pull/37082 https://github.com/verl-project/verl/pull/5592

    With the tail's sum at T, the K + 1 buckets are those of the dense teacher at T; without one, the loss is refused.
    """
    case = made(temperature=temperature, dtype=F32)
    p_NV, q_NV = (
        (logits_NV.double() / temperature).softmax(-1) for logits_NV in (case.hidden_ND @ case.lm_head_VD.T + case.bias_V, case.teacher_NV)
    )
    p_NK, q_NK = p_NV.gather(-1, case.ids_NK), q_NV.gather(-1, case.ids_NK)
    r_N, u_N = 1 - q_NK.sum(-1), 1 - p_NK.sum(-1)
    dense = ((q_NK * (q_NK / p_NK).log()).sum(-1) + r_N * (r_N / u_N).log()).sum().item()
    assert call(case, case.student(), impl=impl, temperature=temperature).kl.item() == pytest.approx(dense, rel=1e-5)
    with pytest.raises(LossInputError, match=f"log-sum-exp of the tokens outside the K at temperature {temperature}"):
        call(case, case.student(), impl=impl, temperature=temperature, teacher_tail_N=None)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_15_log_probabilities_divided_by_the_temperature(impl):
    """logprobs /= T without normalizing again. https://github.com/PrimeIntellect-ai/prime-rl/pull/697

    Two tokens of (0.9, 0.1) are (3/4, 1/4) at T = 2: a student that says so has nothing to learn.
    """
    bias_V = 2 * torch.tensor([0.75, 0.25]).log()
    teacher = torch.tensor([[0, 1]]), torch.tensor([[0.9, 0.1]]).log()
    knobs = {"teacher_tail_N": torch.tensor([-math.inf]), "bias_V": bias_V, "temperature": 2.0, "impl": impl}
    assert topk_kl(torch.zeros(1, 2), torch.zeros(2, 2), *teacher, **knobs).kl.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_16_fused_and_plain_path_differ(impl):
    """0.342 against 0.297, by a temperature of 0.9 and half of a cross-entropy. https://github.com/huggingface/trl/pull/5731

    With defaults, a student that is its teacher has a loss of 0, and every implementation has the definition's value.
    """
    case = made(n=31, v=200, k=20, noise=0.0, dtype=F32)
    assert abs(call(case, case.student(), impl=impl).loss.item()) < 2e-5
    case = made(n=31, v=200, k=20, dtype=F32)
    truth = call(case, case.student(), impl="reference").loss.item()
    assert call(case, case.student(), impl=impl).loss.item() == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_17_t_squared_on_the_value_alone(impl):
    """The gradient was a quarter at T = 2. https://github.com/IntelLabs/distiller/issues/122
    https://github.com/keras-team/keras-io/issues/869

    The slope of the reported value along a random direction is the gradient's, ratio 1.
    """
    dtype, step = (F32, 1e-2) if impl == "triton" else (torch.float64, 1e-5)
    case = made(n=9, v=127, d=8, k=7, temperature=2.0, dtype=dtype)
    _, (_, head_grad_VD, _) = run(case, impl, temperature=2.0)
    direction_VD = torch.randn(127, 8, dtype=dtype)
    up, down = (
        call(moved, moved.student(), impl=impl, temperature=2.0).loss.double().item()
        for moved in (case.changed(lm_head_VD=case.lm_head_VD + sign * step * direction_VD) for sign in (1, -1))
    )
    ratio = (up - down) / (2 * step) / (head_grad_VD * direction_VD).sum().item()
    assert ratio == pytest.approx(1.0, abs=5e-3 if impl == "triton" else 1e-6)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("divergence", "tail"), MODES)
def test_report_18_teacher_over_k_student_over_all(impl, divergence, tail):
    """The teacher renormalized over its K, the student not. https://github.com/AI-Hypercomputer/maxtext/pull/4056

    It exists under its name, "renormalize"; student == teacher gives 0 in every other mode, and a gradient of 0 in all but "drop".
    """
    case = made(n=31, v=200, k=20, noise=0.0)
    dtype = F32 if impl == "triton" else torch.float64
    parts, grads = run(case, impl, dtype, divergence=divergence, tail=tail)
    is_biased = tail == "renormalize" and divergence != "reverse_kl"
    assert (parts.loss.item() > 1.0) == is_biased
    assert is_biased or abs(parts.loss.item()) < 2e-5
    has_gradient = is_biased or (tail == "drop" and divergence != "jsd")
    assert all((grad.norm() > 0.1) == has_gradient for grad in grads)


@pytest.mark.parametrize("impl", IMPLS)
def test_report_20_teacher_mass_of_one_in_five_thousand(impl):
    """The fused path reported a mass of 2.1e-4 for 0.99. https://github.com/verl-project/verl/pull/7855"""
    case = made(n=31, v=200, k=100, dtype=F32)
    parts = call(case, case.student(), impl=impl)
    assert parts.teacher_mass.item() == pytest.approx(case.logprobs_NK.exp().sum().item(), rel=1e-5)
    p_NV = (case.hidden_ND @ case.lm_head_VD.T + case.bias_V).softmax(-1)
    assert parts.student_mass.item() == pytest.approx(p_NV.gather(-1, case.ids_NK).sum().item(), rel=1e-5)
