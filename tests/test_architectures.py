"""Every causal language model of transformers through one door: loss, every gradient and the capture, against its own full logits."""

# B: windows   L: tokens in a window   P = L - 1: positions   N = B x P: rows   D: hidden size   V: vocabulary   K: teacher entries
import pytest
import torch
from architectures import REFUSED, SERVED, V, tiny

from distill_core.errors import ModelError
from distill_core.heads import HeadOps, probe_head, read_head, run_body
from distill_core.independence import check_independence
from distill_core.losses import topk_kl
from distill_core.routers import has_router_loss, router_loss_weight
from distill_core.sparse import sparse_rows

B, L, K = 2, 12, 7
N = B * (L - 1)
TEMPERATURE, KL_WEIGHT, CE_WEIGHT = 2.0, 0.7, 0.3


def ids():
    return torch.randint(3, V, (B, L), generator=torch.Generator().manual_seed(1))


def teacher():
    """(ids_NK, log-probabilities_NK, tail_N) of a random teacher."""
    logprobs_NV = (3 * torch.randn(N, V, generator=torch.Generator().manual_seed(5))).log_softmax(-1)
    top_NK, ids_NK = logprobs_NV.topk(K)
    return ids_NK, top_NK, (logprobs_NV / TEMPERATURE).scatter(1, ids_NK, -torch.inf).logsumexp(-1)


def dense_loss(logits_BLV):
    """The definition on full logits: KL over K + 1 buckets and cross-entropy, per token. Shares no code with distill_core."""
    logits_NV = logits_BLV[:, :-1].reshape(N, V)
    ids_NK, top_NK, tail_N = teacher()
    student_NV = (logits_NV / TEMPERATURE).log_softmax(-1)
    rest_N1 = student_NV.scatter(1, ids_NK, -torch.inf).logsumexp(-1, keepdim=True)
    student = torch.cat([student_NV.gather(1, ids_NK), rest_N1], 1)
    target = torch.cat([top_NK / TEMPERATURE, tail_N[:, None]], 1).log_softmax(-1)
    kl = (target.exp() * (target - student)).sum()
    ce = torch.nn.functional.cross_entropy(logits_NV, ids()[:, 1:].reshape(-1), reduction="sum")
    return (KL_WEIGHT * TEMPERATURE**2 * kl + CE_WEIGHT * ce) / N


def fused_loss(model, ops, *, kl_weight=KL_WEIGHT, ce_weight=CE_WEIGHT, router_weight=0.0):
    body = run_body(model, input_ids=ids(), with_router_loss=router_weight > 0)
    head = read_head(model, ops)
    ids_NK, top_NK, tail_N = teacher()
    loss = topk_kl(
        body.hidden_BLD[:, :-1].flatten(0, 1),
        head.weight_VD,
        ids_NK,
        top_NK,
        teacher_tail_N=tail_N,
        labels_N=ids()[:, 1:].reshape(-1),
        bias_V=head.bias_V,
        logit_scale=head.logit_scale,
        logit_softcap=head.logit_softcap,
        vocab_size=V,
        temperature=TEMPERATURE,
        kl_weight=kl_weight,
        ce_weight=ce_weight,
        divisor=float(N),
    ).loss
    return loss + router_weight * body.router_loss if router_weight else loss


def value_and_gradients(model, loss):
    """Of loss(), in training mode, with the same dropout every time."""
    model.train().zero_grad()
    torch.manual_seed(0)
    value = loss()
    value.backward()
    model.eval()
    return value.item(), {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same(ours, truth):
    """Losses within 1e-6; every parameter's gradient within 1e-5 of its own norm and 2e-6 of all gradients' norm, since some are 0 in
    exact arithmetic (OPT's key bias) and hold nothing but rounding."""
    assert ours[0] == pytest.approx(truth[0], rel=1e-6)
    assert ours[1].keys() == truth[1].keys()
    everything = torch.stack([gradient.norm() for gradient in truth[1].values()]).norm()
    assert everything > 1e-3
    for name, gradient in truth[1].items():
        assert (ours[1][name] - gradient).norm() <= 1e-5 * gradient.norm() + 2e-6 * everything, name


@pytest.mark.parametrize("name", SERVED)
def test_served(name):
    family = SERVED[name]
    model = tiny(name, family)
    ops = probe_head(model, V)
    assert ops == family.ops  # exact constants, not near ones
    check_independence(model, V, packing=family.apart, trained=True)
    if not family.apart:
        with pytest.raises(ModelError, match=r"(?s)model \w+ (does not keep|takes no position_ids).*text\.packing"):
            check_independence(model, V, packing=True, trained=True)
    truth = value_and_gradients(model, lambda: dense_loss(model(input_ids=ids()).logits))
    assert_same(value_and_gradients(model, lambda: fused_loss(model, ops)), truth)
    assert_capture_is_plain(model, ops)
    if has_router_loss(model):
        assert_router_loss_is_theirs(model, ops)


def assert_capture_is_plain(model, ops):
    """What goes into a cache is the log-softmax of the model's own logits."""
    with torch.no_grad():
        hidden_RD = run_body(model, input_ids=ids()).hidden_BLD[:, :-1].flatten(0, 1)
        gold_R = ids()[:, 1:].reshape(-1)
        kept = sparse_rows(hidden_RD, gold_R, read_head(model, ops), top_k=K, vocab_size=V, chunk_tokens=5)
        truth_RV = model(input_ids=ids()).logits[:, :-1].flatten(0, 1).log_softmax(-1)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(kept.logprobs_RK, truth_RV.topk(K).values, **close)
    torch.testing.assert_close(kept.logprobs_RK, truth_RV.gather(1, kept.ids_RK.long()), **close)
    torch.testing.assert_close(kept.gold_logprob_R, truth_RV.gather(1, gold_R[:, None])[:, 0], **close)


def assert_router_loss_is_theirs(model, ops):
    """transformers' own training loss, cross-entropy plus weight x load-balancing loss, where the config asks for it; 0 where not."""
    config = model.config.get_text_config()
    assert router_loss_weight(model, None) == 0.0, "output_router_logits is off by default"
    config.output_router_logits = True
    weight = router_loss_weight(model, None)
    assert 0 < weight < 0.1
    truth = value_and_gradients(model, lambda: model(input_ids=ids(), labels=ids()).loss)
    without = value_and_gradients(model, lambda: fused_loss(model, ops, kl_weight=0.0, ce_weight=1.0))
    ours = value_and_gradients(model, lambda: fused_loss(model, ops, kl_weight=0.0, ce_weight=1.0, router_weight=weight))
    assert_same(ours, truth)
    assert truth[0] - without[0] > 0.5 * weight, "the load-balancing loss is at least 1 by its definition, near 1 when balanced"


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    family, words = REFUSED[name]
    model = tiny(name, family)

    def as_training_begins():
        probe_head(model, V)
        check_independence(model, V, packing=False, trained=True)

    with pytest.raises(ModelError, match=rf"(?s){type(model).__name__}.*({words}).*[Pp]ick a"):
        as_training_begins()


@pytest.mark.parametrize("name", ["granite", "gemma2"])
def test_the_comparison_notices_what_the_probe_must_find(name):
    model = tiny(name, SERVED[name])
    truth = value_and_gradients(model, lambda: dense_loss(model(input_ids=ids()).logits))
    with pytest.raises(AssertionError):
        assert_same(value_and_gradients(model, lambda: fused_loss(model, HeadOps())), truth)


def test_at_least_forty_families():
    assert len({name.split(" ")[0] for name in SERVED}) >= 40
