"""Tokens of one document: which of them may be learned, and how many bytes of the text each one covers."""
# T: tokens of one document   C: characters of its text

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from .. import paths
from ..errors import TextError
from .sources import Document
from .view import View

MARKER = "\ue000 marker \ue000"
"""Stands in for a chat message; private-use characters, so that no message begins or ends like it."""

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Tokenizer(Protocol):
    """What is asked of a tokenizer: any fast one of transformers has it, and BuiltinTokenizer."""

    is_fast: bool
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    all_special_ids: list[int]

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool, verbose: bool) -> Any: ...
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class EncodedDocument:
    token_ids: np.ndarray
    """uint32 [T]."""
    is_target: np.ndarray
    """bool [T]; may this token be learned, if something stands before it?"""
    token_bytes: np.ndarray
    """uint16 [T]; together exactly the UTF-8 bytes of the document's text."""
    view: View | None = None
    """What the teacher reads in its place, where that is something else."""

    def __len__(self) -> int:
        return len(self.token_ids)


def encode(document: Document, tokenizer: Tokenizer, *, assistant_only_loss: bool) -> EncodedDocument:
    """Tokens of a document, as a model would have read it in its own training.

    Text: what the tokenizer makes of it; an end token follows if the tokenizer has one and did not add it, and stands in front as
    well where begin and end are one token. Chat: the tokenizer's template, nothing added; with assistant_only_loss only what
    the assistant says, its end-of-turn token included, may be learned. Raises TextError where that cannot be known.
    """
    if not tokenizer.is_fast:
        raise TextError("this tokenizer cannot say which text a token covers. Load the fast one (a tokenizer.json beside the model).")
    if document.messages is not None:
        return _encode_chat(document.messages, tokenizer, assistant_only_loss=assistant_only_loss)
    assert document.text is not None
    token_ids, offsets = _tokenize(document.text, tokenizer, add_special_tokens=True)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    before = [bos] if bos is not None and bos == eos and token_ids[:1] != [bos] else []
    after = [eos] if eos is not None and token_ids[-1:] != [eos] else []
    token_bytes = _bytes_under_tokens(document.text, [*[(0, 0)] * len(before), *offsets, *[(0, 0)] * len(after)])
    token_ids = [*before, *token_ids, *after]
    return EncodedDocument(token_ids=np.array(token_ids, np.uint32), is_target=np.ones(len(token_ids), bool), token_bytes=token_bytes)


def text_of(document: Document, tokenizer: Tokenizer) -> str:
    """The text whose bytes token_bytes counts: a conversation as its template writes it."""
    if document.text is not None:
        return document.text
    assert document.messages is not None
    return _render(document.messages, tokenizer)


def padding_id(tokenizer: Tokenizer) -> int:
    """The token that fills a window's end: nothing is learned there, so any will do where there is none of its own."""
    return next(each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if each is not None)


def _tokenize(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids, and for each the (start, end) characters it stands for."""
    encoding = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, verbose=False)
    return list(encoding["input_ids"]), list(encoding["offset_mapping"])


def _bytes_under_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """uint16 [T]: the text, cut where each token ends, without gap or overlap.

    Space that a tokenizer drops counts with the token after it (at the very end, with the last one); a character that several tokens
    share counts with the first of them.
    """
    if not offsets:
        return np.zeros(0, np.uint16)
    code_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    bytes_C = 1 + (code_C >= 0x80).astype(np.int64) + (code_C >= 0x800) + (code_C >= 0x10000)
    bytes_before = np.concatenate([[0], np.cumsum(bytes_C)])
    ends_T = np.maximum.accumulate(np.array([end for _, end in offsets]))
    # what follows the last character that any token covers goes to the token that reached it first
    ends_T[int(np.argmax(ends_T)) :] = len(text)
    token_bytes = np.diff(bytes_before[ends_T], prepend=0)
    if token_bytes.max() > np.iinfo(np.uint16).max:
        raise TextError(
            f"one token covers {token_bytes.max():,} bytes: the tokenizer drops most of this text. Clean it of long runs of white space."
        )
    return token_bytes.astype(np.uint16)


# ---------------------------------------------------------------- chat
def _encode_chat(messages: tuple[dict[str, Any], ...], tokenizer: Any, *, assistant_only_loss: bool) -> EncodedDocument:
    text = _render(messages, tokenizer)
    token_ids, offsets = _tokenize(text, tokenizer, add_special_tokens=False)
    if not assistant_only_loss:
        is_target = np.ones(len(token_ids), bool)
    elif GENERATION.search(tokenizer.get_chat_template()):
        marked = tokenizer.apply_chat_template(list(messages), return_dict=True, return_assistant_tokens_mask=True)
        is_target = np.array(marked["assistant_masks"], bool)
    else:
        is_target = _said_by_assistant(messages, text, tokenizer, token_ids, offsets)
    return EncodedDocument(token_ids=np.array(token_ids, np.uint32), is_target=is_target, token_bytes=_bytes_under_tokens(text, offsets))


def how_the_assistant_is_found(tokenizer: Any) -> str:
    """In words, for chats of which only the assistant is learned."""
    if GENERATION.search(tokenizer.get_chat_template()):
        return "The chat template marks what the assistant says ({% generation %}); only that is learned."
    return (
        "The chat template does not mark what the assistant says ({% generation %}), so it is found by writing each conversation with "
        "another answer: what changes is learned, and the token that ends it. Look at it: python -m distill_core data preview"
    )


def _render(messages: Sequence[dict[str, Any]], tokenizer: Any) -> str:
    if getattr(tokenizer, "chat_template", None) is None:
        raise TextError(
            "the text holds chat messages, but this tokenizer has no chat template. "
            "Choose an instruct model as the teacher, or a column with plain text."
        )
    import jinja2  # transformers renders templates with it

    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=False)
    except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
        roles = ", ".join(str(each["role"]) for each in messages)
        raise TextError(f"the tokenizer's chat template refuses a conversation with roles {roles}: {error}. Mend or remove it.") from None


def _said_by_assistant(
    messages: Sequence[dict[str, Any]], text: str, tokenizer: Any, token_ids: Sequence[int], offsets: Sequence[tuple[int, int]]
) -> np.ndarray:
    """bool [T]. What changes in the conversation when the assistant says something else is what the assistant said.

    Holds for templates that trim messages or write earlier turns differently, where comparing prefixes of the conversation fails.
    The special token that closes the turn is learned too: the student must know when to stop.
    """
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    starts_T, ends_T = np.array(offsets, np.int64).reshape(-1, 2).T
    is_target = np.zeros(len(token_ids), bool)
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        other = _render([*messages[:number], {**message, "content": MARKER}, *messages[number + 1 :]], tokenizer)
        if MARKER not in other:
            raise TextError(
                "the tokenizer's chat template does not show what the assistant says, so its words cannot be told from the rest. "
                "Set text.assistant_only_loss to false, or use a template with {% generation %}."
            )
        start, end = _changed(text, other)
        is_target |= (starts_T < end) & (ends_T > start)
        closing = int(np.searchsorted(starts_T, end))
        if closing < len(token_ids) and starts_T[closing] == end and token_ids[closing] in special:
            is_target[closing] = True
    return is_target


def _changed(text: str, other: str) -> tuple[int, int]:
    """(start, end) of the part of text in which it differs from other."""
    most = min(len(text), len(other))
    start = next((at for at in range(most) if text[at] != other[at]), most)
    same_at_end = next((at for at in range(most - start) if text[-1 - at] != other[-1 - at]), most - start)
    return start, len(text) - same_at_end


# ---------------------------------------------------------------- the built-in tokenizer
class BuiltinTokenizer:
    """The tokenizer of the built-in teacher, through the tokenizers library alone: an app can preview text without torch."""

    is_fast = True
    chat_template = None

    def __init__(self) -> None:
        import tokenizers

        folder = paths.data_dir() / "teacher"
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        vocabulary = self._tokenizer.get_vocab()
        bos, eos, pad = (vocabulary[names[f"{which}_token"]] for which in ("bos", "eos", "pad"))
        self.bos_token_id: int | None = bos
        self.eos_token_id: int | None = eos
        self.pad_token_id: int | None = pad
        self.all_special_ids = sorted({bos, eos, pad})

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = True, verbose: bool = True
    ) -> dict[str, list]:
        del return_offsets_mapping, verbose  # always given; never warns
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [str(self._tokenizer.id_to_token(int(token_id))) for token_id in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(token_id) for token_id in ids], skip_special_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()


@lru_cache(maxsize=1)
def builtin_tokenizer() -> BuiltinTokenizer:
    """The built-in tokenizer, read once."""
    return BuiltinTokenizer()
