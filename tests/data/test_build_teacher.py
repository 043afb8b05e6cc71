"""Building a teacher, on a recipe of seconds: the same every time, whole or absent, and going on after a kill."""

import dataclasses
import json

import build_teacher
import pytest
import torch
import transformers
from build_teacher import Recipe, build, optimizers, train, train_tokenizer
from measure_teacher import Example, groups, heldout_examples, measure, predict

TINY = Recipe(
    vocab_size=400,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=2,
    tokenizer_documents=100,
    steps=6,
    documents_per_step=4,
    heldout_documents=20,
)


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TINY)


def test_the_tokenizer_is_the_same_every_time(tokenizer):
    assert train_tokenizer(TINY).to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == 400
    assert (tokenizer.token_to_id("<eos>"), tokenizer.token_to_id("<pad>")) == (0, 1)


def test_a_killed_training_goes_on_to_the_same_weights(tokenizer, tmp_path, monkeypatch):
    whole, progress = train(TINY, tokenizer, tmp_path)
    (tmp_path / "killed").mkdir()
    real_step, done = build_teacher.train_step, []

    def step_until_killed(*arguments):
        if len(done) == 3:
            raise KilledError
        done.append(1)
        return real_step(*arguments)

    monkeypatch.setattr(build_teacher, "CHECKPOINT_S", -1)
    monkeypatch.setattr(build_teacher, "train_step", step_until_killed)
    with pytest.raises(KilledError):
        train(TINY, tokenizer, tmp_path / "killed")
    monkeypatch.setattr(build_teacher, "train_step", real_step)
    resumed, later = train(TINY, tokenizer, tmp_path / "killed")
    assert (later["step"], later["tokens"]) == (progress["step"], progress["tokens"]) == (6, progress["tokens"])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(resumed.parameters(), whole.parameters()))


def test_the_checkpoint_of_another_recipe_is_not_gone_on_from(tokenizer, tmp_path, capsys):
    train(dataclasses.replace(TINY, steps=2), tokenizer, tmp_path)
    _, progress = train(dataclasses.replace(TINY, steps=3, weight_decay=0.0), tokenizer, tmp_path)
    assert progress["step"] == 3
    assert "another recipe: starting from nothing" in capsys.readouterr().out


def test_a_build_replaces_the_old_teacher_only_when_it_is_measured(tmp_path, monkeypatch):
    out = tmp_path / "teacher"
    out.mkdir()
    (out / "old.txt").write_text("old", encoding="utf-8")

    def no_measure(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(build_teacher, "measure", no_measure)
        with pytest.raises(KilledError):
            build(TINY, out)
    assert [path.name for path in out.iterdir()] == ["old.txt"]
    figures = build(TINY, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["teacher"]
    assert json.loads((out / "training.json").read_text(encoding="utf-8")) == figures
    assert figures["heldout"]["gap"] == pytest.approx(figures["heldout"]["loss"] - figures["heldout"]["entropy"])
    assert figures["versions"]["torch"] == torch.__version__
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert model.dtype == torch.float16
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<eos>", "<eos>", "<pad>")


def test_every_weight_is_trained_once(tokenizer):
    model = build_teacher.fresh_teacher(TINY)
    trained = [weight for optimizer in optimizers(model, TINY) for group in optimizer.param_groups for weight in group["params"]]
    assert sorted(map(id, trained)) == sorted(map(id, model.parameters()))


def test_heldout_stories_are_not_trained_on(tokenizer):
    _, unseen = heldout_examples(TINY.heldout_documents, TINY.seed, tokenizer)
    first = next(build_teacher.batches(TINY, tokenizer, frozenset(), 0))
    texts = [tokenizer.decode(each.token_ids) for each in first]
    without = next(build_teacher.batches(TINY, tokenizer, unseen | {texts[0]}, 0))
    assert [each.token_ids for each in without] == [each.token_ids for each in first[1:]]


# ---------------------------------------------------------------- measuring
def test_padding_and_grouping_change_nothing(tokenizer):
    model = build_teacher.fresh_teacher(TINY).eval()
    examples, _ = heldout_examples(20, 0, tokenizer)
    alone = [predict(model, [each])[0] for each in sorted(examples, key=lambda each: len(each.token_ids))]
    together = [predict(model, group)[0] for group in groups(examples, 7)]
    torch.testing.assert_close(torch.cat(together), torch.cat(alone), atol=1e-5, rtol=0)


def test_a_measure_by_hand():
    """Logits that always say token 2 with 3/4: two of three tokens cost ln 4/3, the other one ln 12 (a third of the last quarter)."""
    example = Example(token_ids=[0, 2, 3, 2], is_determined=[False, True, True, False], nats=1.5)

    class Always2(torch.nn.Module):
        def model(self, *, input_ids, use_cache):
            del use_cache
            return transformers.modeling_outputs.BaseModelOutputWithPast(last_hidden_state=torch.zeros(*input_ids.shape, 4))

        def lm_head(self, hidden):
            return torch.tensor([1 / 12, 1 / 12, 3 / 4, 1 / 12]).log().expand(len(hidden), 4)

    quality = measure(Always2(), [example])
    expected = (2 * torch.log(torch.tensor(4 / 3)) + torch.log(torch.tensor(12.0))).item() / 3
    assert quality.loss == pytest.approx(expected)
    assert (quality.entropy, quality.gap) == (pytest.approx(0.5), pytest.approx(expected - 0.5))
    assert (quality.tokens, quality.probe_tokens, quality.probe_accuracy) == (3, 2, 0.5)
