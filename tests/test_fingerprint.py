"""What makes two captures different, field by field: each change is refused by its own name with both values, and nothing else is."""

import copy

import pytest

from distill_core import capture, corpus, models
from distill_core.cache import CacheWriter
from distill_core.config import from_dict, with_overrides
from distill_core.errors import CacheError
from distill_core.paths import caches_dir

BASE = from_dict({"text": {"window_tokens": 64, "num_windows": 6, "num_heldout_windows": 2}, "capture": {"top_k": 10}})
WEIGHTS = {"commit": "abc", "files": {"config.json": "1" * 64, "model.safetensors": "2" * 64}}


class OtherTokens:
    """A tokenizer with another map from ids to tokens, or another chat template."""

    def __init__(self, tokenizer, vocabulary=None, chat_template=None):
        self._tokenizer, self._vocabulary, self.chat_template = tokenizer, vocabulary, chat_template

    def get_vocab(self):
        return self._vocabulary or self._tokenizer.get_vocab()


@pytest.fixture(scope="module")
def tokenizer():
    return models.load_tokenizer("builtin")


def planned(tokenizer, *, changes=None, weights=WEIGHTS, dtype="float32", asked=None):
    config = with_overrides(BASE, changes or {})
    text = corpus.build_windows(config.text, tokenizer)
    windows = {"train": text.train, "heldout": text.heldout}
    return capture.make_plan(config, windows, asked or tokenizer, weights=weights, dtype=dtype)


def other_weights(name):
    weights = copy.deepcopy(WEIGHTS)
    weights["files"][name] = "3" * 64
    return weights


def swapped(tokenizer):
    vocabulary = tokenizer.get_vocab()
    one, other = sorted(vocabulary, key=vocabulary.get)[100:102]
    return {**vocabulary, one: vocabulary[other], other: vocabulary[one]}


MATRIX = {
    "teacher.commit: abc there, def now": lambda t: planned(t, weights={**WEIGHTS, "commit": "def"}),
    f"teacher.model.safetensors.sha256: {'2' * 64} there, {'3' * 64} now": lambda t: planned(t, weights=other_weights("model.safetensors")),
    f"teacher.config.json.sha256: {'1' * 64} there, {'3' * 64} now": lambda t: planned(t, weights=other_weights("config.json")),
    f"teacher.adapter.safetensors.sha256: absent there, {'3' * 64} now": lambda t: planned(t, weights=other_weights("adapter.safetensors")),
    "teacher.dtype: float32 there, bfloat16 now": lambda t: planned(t, dtype="bfloat16"),
    "tokenizer.vocabulary_sha256: ": lambda t: planned(t, asked=OtherTokens(t, vocabulary=swapped(t))),
    "tokenizer.chat_template_sha256: ": lambda t: planned(t, asked=OtherTokens(t, chat_template="{{ messages }}")),
    "text.windows_sha256: ": lambda t: planned(t, changes={"text.seed": 1}),
    "capture.top_k: 10 there, 11 now": lambda t: planned(t, changes={"capture.top_k": 11}),
    "capture.codec: exact there, packed now": lambda t: planned(t, changes={"capture.codec": "packed"}),
    "capture.windows_per_shard: 200 there, 3 now": lambda t: planned(t, changes={"capture.windows_per_shard": 3}),
}


@pytest.mark.parametrize("line", MATRIX)
def test_each_field_alone(tokenizer, line):
    base, other = planned(tokenizer), MATRIX[line](tokenizer)
    found = base.fingerprint.differences(other.fingerprint)
    assert len(found) == 1
    assert found[0].startswith(line)
    assert base.fingerprint.sha256() != other.fingerprint.sha256()
    with CacheWriter(caches_dir() / "made", base):
        pass
    with pytest.raises(CacheError, match="begun from something else") as error, CacheWriter(caches_dir() / "made", other):
        pass
    assert found[0] in str(error.value)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"text.window_tokens": 48}, {"text.window_tokens", "text.windows_sha256"}),
        ({"text.packing": False}, {"text.packing", "text.windows_sha256"}),
        ({"text.num_windows": 5}, {"text.num_windows", "text.windows_sha256"}),
    ],
)
def test_how_the_text_is_cut(tokenizer, changes, names):
    found = planned(tokenizer).fingerprint.differences(planned(tokenizer, changes=changes).fingerprint)
    assert {line.partition(":")[0] for line in found} == names


@pytest.mark.parametrize(
    "changes",
    [{"capture.name": "x"}, {"capture.num_samples": 0}, {"loss.temperature": 2.0}, {"train.max_steps": 9}, {"student.num_layers": 1}],
)
def test_what_the_teacher_does_not_hear_of_changes_nothing(tokenizer, changes):
    assert planned(tokenizer, changes=changes) == planned(tokenizer)
