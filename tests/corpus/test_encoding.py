"""Tokens, what may be learned of them, and the bytes under them, for tokenizers of different habits."""

import random
from itertools import groupby

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from distill_core import paths
from distill_core.corpus import Document, builtin_tokenizer, encode
from distill_core.errors import TextError

MARKED = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}

{% endfor %}"""
# as some well-known models do it: thoughts are shown in the last turn only, so no prefix of the conversation is rendered the same twice
THINKING = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>

</think>

{% endif %}{{ m.content.split('</think>')[-1] | trim }}<|im_end|>
{% endfor %}"""


def learned_text(encoded, tokenizer):
    """What is learned, piece by piece."""
    runs = groupby(zip(encoded.token_ids.tolist(), encoded.is_target.tolist()), key=lambda pair: pair[1])
    return [tokenizer.decode([token_id for token_id, _ in run]) for is_target, run in runs if is_target]


# ---------------------------------------------------------------- plain text
def test_builtin_text_stands_between_two_end_tokens():
    tokenizer = builtin_tokenizer()
    encoded = encode(Document(text="Ben had a red ball."), tokenizer, assistant_only_loss=True)
    assert tokenizer.decode(encoded.token_ids) == "<eos>Ben had a red ball.<eos>"
    assert encoded.token_bytes.tolist() == [0, 3, 4, 2, 4, 5, 1, 0]
    assert encoded.is_target.all()
    assert (encoded.token_ids.dtype, encoded.is_target.dtype, encoded.token_bytes.dtype) == (np.uint32, bool, np.uint16)


def test_the_builtin_tokenizer_is_the_one_that_transformers_loads():
    ours, theirs = builtin_tokenizer(), PreTrainedTokenizerFast.from_pretrained(paths.data_dir() / "teacher")
    for text in ("Mia ran home.", "Größe 日本 🦊", ""):
        mine, other = (encode(Document(text=text), each, assistant_only_loss=True) for each in (ours, theirs))
        assert mine.token_ids.tolist() == other.token_ids.tolist()
        assert mine.token_bytes.tolist() == other.token_bytes.tolist()
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)


def word_tokenizer(*, begins_with=None, ends_with=None, **names):
    """Whole words; the space between them is dropped, and letters outside the vocabulary are <unk>."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "one", "two"])}
    core = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    single = " ".join(["<s>"] * bool(begins_with) + ["$A"] + ["</s>"] * bool(ends_with))
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", **names)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (word_tokenizer(), [3, 4]),
        (word_tokenizer(eos_token="</s>"), [3, 4, 2]),
        (word_tokenizer(bos_token="<s>", eos_token="</s>"), [3, 4, 2]),  # it has a begin token and chooses not to use it: so do we
        (word_tokenizer(begins_with=True, bos_token="<s>", eos_token="</s>"), [1, 3, 4, 2]),
        (word_tokenizer(begins_with=True, ends_with=True, bos_token="<s>", eos_token="</s>"), [1, 3, 4, 2]),
        (word_tokenizer(bos_token="</s>", eos_token="</s>"), [2, 3, 4, 2]),
    ],
)
def test_begin_and_end_tokens(tokenizer, expected):
    encoded = encode(Document(text=" one  two "), tokenizer, assistant_only_loss=True)
    assert encoded.token_ids.tolist() == expected
    # the space that was dropped counts with the word after it, at the end with the last word; special tokens have no bytes
    assert [size for size in encoded.token_bytes.tolist() if size] == [4, 6]
    assert encoded.token_bytes[encoded.token_ids == 3].tolist() == [4]


def byte_tokenizer():
    """Every byte a token: no character outside ASCII is in one piece."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def normalizing_tokenizer():
    """Takes letters apart and lowers them, as BERT's do: offsets still speak of the original."""
    core = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")


def test_a_character_of_several_tokens_counts_once():
    encoded = encode(Document(text="a日🦊"), byte_tokenizer(), assistant_only_loss=True)
    assert len(encoded) == 8
    assert encoded.token_bytes.tolist() == [1, 3, 0, 0, 4, 0, 0, 0]


@pytest.mark.parametrize("make", [builtin_tokenizer, byte_tokenizer, word_tokenizer, normalizing_tokenizer])
def test_bytes_sum_to_the_text_for_any_text(make):
    tokenizer, dice = make(), random.Random(0)
    letters = "ab one two\n\t  ÄéßÅ日本語🦊👩‍👩‍👧 ̈\u00a0.\u200b"
    for _ in range(200):
        text = "".join(dice.choice(letters) for _ in range(dice.randint(1, 40)))
        encoded = encode(Document(text=text), tokenizer, assistant_only_loss=True)
        if len(encoded):
            assert encoded.token_bytes.sum() == len(text.encode()), repr(text)


def test_an_absurd_run_of_dropped_space_is_refused():
    with pytest.raises(TextError, match=r"one token covers 70,003 bytes"):
        encode(Document(text=" " * 70_000 + "one"), word_tokenizer(), assistant_only_loss=True)


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(TextError, match="cannot say which text a token covers"):
        encode(Document(text="x"), Slow(), assistant_only_loss=True)


# ---------------------------------------------------------------- chat
@pytest.mark.parametrize("template", [None, MARKED, THINKING], ids=["plain", "generation", "thinking"])
def test_only_the_assistant_is_learned_and_its_end_of_turn(template, chat_tokenizer, talk):
    tokenizer = chat_tokenizer(template)
    encoded = encode(Document(messages=talk), tokenizer, assistant_only_loss=True)
    assert learned_text(encoded, tokenizer) == ["Ben is in the park.<|im_end|>", "Good night.<|im_end|>"]
    rendered = tokenizer.apply_chat_template(list(talk), tokenize=False)
    assert tokenizer.decode(encoded.token_ids) == rendered
    assert encoded.token_bytes.sum() == len(rendered.encode())


def test_with_and_without_generation_marks_the_same_tokens_are_learned(chat_tokenizer, talk):
    plain, marked = (encode(Document(messages=talk), chat_tokenizer(each), assistant_only_loss=True) for each in (None, MARKED))
    assert plain.token_ids.tolist() == marked.token_ids.tolist()
    assert plain.is_target.tolist() == marked.is_target.tolist()


def test_all_of_a_chat_is_learned_on_request(chat_tokenizer, talk):
    encoded = encode(Document(messages=talk), chat_tokenizer(), assistant_only_loss=False)
    assert encoded.is_target.all()


@pytest.mark.parametrize("answer", ["", "Thank you!", "<think>so</think>I see  ", "user", "Gruß 日本 🦊"])
def test_answers_that_look_like_something_else(answer, chat_tokenizer):
    tokenizer = chat_tokenizer(THINKING)
    messages = ({"role": "user", "content": "Thank you!"}, {"role": "assistant", "content": answer})
    encoded = encode(Document(messages=messages), tokenizer, assistant_only_loss=True)
    said = answer.split("</think>")[-1].strip()
    assert learned_text(encoded, tokenizer) == [said + "<|im_end|>"]


def test_a_conversation_without_an_answer_teaches_nothing(chat_tokenizer, talk):
    encoded = encode(Document(messages=talk[:2]), chat_tokenizer(), assistant_only_loss=True)
    assert not encoded.is_target.any()


def test_a_template_that_hides_the_assistant_is_refused_with_two_ways_out(chat_tokenizer, talk):
    hiding = "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(TextError, match=r"assistant_only_loss to false, or use a template with \{% generation %\}"):
        encode(Document(messages=talk), chat_tokenizer(hiding), assistant_only_loss=True)


def test_a_template_that_refuses_the_roles_is_quoted(chat_tokenizer, talk):
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}{{ messages[0].content }}"
    with pytest.raises(TextError, match="roles system, user, assistant, user, assistant: no system role here"):
        encode(Document(messages=talk), chat_tokenizer(strict), assistant_only_loss=True)


@pytest.mark.parametrize("tokenizer", [builtin_tokenizer(), word_tokenizer()], ids=["builtin", "transformers"])
def test_chat_without_a_template_is_refused(tokenizer, talk):
    with pytest.raises(TextError, match="no chat template. Choose an instruct model"):
        encode(Document(messages=talk), tokenizer, assistant_only_loss=True)
