"""A conversation, and chat tokenizers made of the built-in one."""

import pytest

from distill_core import paths

CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""


@pytest.fixture
def talk():
    return (
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Where is Ben?"},
        {"role": "assistant", "content": "Ben is in the park."},
        {"role": "user", "content": "Thank you!"},
        {"role": "assistant", "content": "Good night."},
    )


@pytest.fixture
def chat_tokenizer():
    """template (None: ChatML, which does not mark what the assistant says) -> tokenizer."""
    from transformers import PreTrainedTokenizerFast

    return lambda template=None: PreTrainedTokenizerFast(
        tokenizer_file=str(paths.data_dir() / "teacher" / "tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<pad>",
        extra_special_tokens=["<|im_start|>"],
        chat_template=template or CHATML,
    )
