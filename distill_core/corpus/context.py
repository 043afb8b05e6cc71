"""A context before every document, for the teacher alone.

Context distillation (Askell et al. 2021, arXiv:2112.00861, context distillation; Snell et al. 2022, arXiv:2209.15189): a long instruction
or examples stand before every document for the teacher alone. The student's windows stay as they are; the cache holds what the teacher
thinks of the very same tokens behind the context.
"""
# T: tokens of the student's document

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import paths
from ..config import BUILTIN, CaptureConfig, DistillConfig, TextConfig
from ..errors import TextError
from ..room import check_path
from .encoding import EncodedDocument, Tokenizer, encode
from .sources import Document, documents, is_message, utf8_lines
from .view import View, behind, on_last_learned

LETTERS_OF_TOKEN = 4
"""Characters of a token, for a guess of costs before anything is tokenized."""
SAMPLED_DOCUMENTS = 32


@dataclass(kw_only=True)
class Context:
    """The same text, or the same messages, before every document."""

    tokenizer: Tokenizer
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    assistant_only_loss: bool = True
    num_aligned: int = field(default=0, init=False)
    num_unaligned: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.text is not None:
            body = self.tokenizer(self.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["input_ids"]
            self._leading, self._body = leading_ids(self.tokenizer), np.array(body, np.uint32)

    def fields(self) -> dict[str, str]:
        """See build.Aligner."""
        content = json.dumps([self.text, self.messages])
        return {"capture.context_sha256": hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()}

    def inputs(self, views: Sequence[View], ids_BS: Any) -> dict[str, Any]:
        """See build.Aligner: a text needs nothing but its tokens."""
        del views, ids_BS
        return {}

    def to_record(self) -> dict[str, Any]:
        """See build.Aligner."""
        return {"context": {"text": self.text} if self.text is not None else {"messages": list(self.messages or ())}}

    def aligned(self, document: Document, encoded: EncodedDocument) -> EncodedDocument:
        """See build.Aligner. Raises TextError for an answer with nothing in it, a conversation of which all is learned, and a text behind
        chat messages."""
        view = self._behind_text(encoded) if document.messages is None else self._behind_chat(document.messages, encoded)
        if view is None:
            self.num_unaligned += 1
            return replace(encoded, is_target=np.zeros(len(encoded), bool))
        self.num_aligned += 1
        return replace(encoded, view=view)

    def _behind_text(self, encoded: EncodedDocument) -> View:
        if self.text is None:
            raise TextError(
                "capture.context_file holds chat messages, but the text holds plain documents. "
                "Give the context as text (capture.context, or a .txt file)."
            )
        return behind(self._leading, self._body, encoded.token_ids)

    def _behind_chat(self, messages: Sequence[dict[str, Any]], encoded: EncodedDocument) -> View | None:
        """The template writes both conversations; the learned tokens must be the last ones learned behind the context, one by one."""
        if not self.assistant_only_loss:
            raise TextError(
                "chats behind a context need text.assistant_only_loss true: what the template writes besides the answers differs there."
            )
        refuse_empty_answers(messages)
        whole = encode(Document(messages=self._with_context(messages)), self.tokenizer, assistant_only_loss=True)
        return on_last_learned(encoded.token_ids, encoded.is_target, whole.token_ids, whole.is_target)

    def _with_context(self, messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
        """Context messages first; two system messages become one, the context's words before the conversation's own."""
        before = list(self.messages) if self.messages is not None else [{"role": "system", "content": self.text}]
        after = list(messages)
        if before[0]["role"] == "system" and after and after[0]["role"] == "system":
            before[0] = {**before[0], "content": f"{before[0]['content']}\n\n{after[0]['content']}"}
            after = after[1:]
        return (*before, *after)

    def notes(self) -> list[str]:
        """See build.Aligner."""
        if self.num_unaligned and not self.num_aligned:
            raise TextError(
                f"none of {self.num_unaligned:,} conversations could be aligned: with the context before it, the chat template writes the "
                "assistant's words in other tokens. Use a context without chat messages of its own, or another teacher."
            )
        told = ["The teacher reads a context before every document; the student does not see it."]
        if self.num_unaligned:
            told.append(f"Conversations whose answers the template writes otherwise behind the context, left out: {self.num_unaligned:,}.")
        return told


def leading_ids(tokenizer: Tokenizer) -> np.ndarray:
    """What begins every text of this tokenizer: its begin token, where it has one, uint32 [0 or more]."""
    ids = encode(Document(text="a"), tokenizer, assistant_only_loss=False).token_ids
    special = np.isin(ids, tokenizer.all_special_ids)
    return ids[: int(np.argmin(special))]


def refuse_empty_answers(messages: Sequence[dict[str, Any]]) -> None:
    """Raise TextError for an answer of the assistant with nothing in it."""
    for number, each in enumerate(messages, 1):
        if each["role"] == "assistant" and not each["content"].strip():
            roles = ", ".join(str(one["role"]) for one in messages)
            raise TextError(
                f"a conversation's message {number} is an empty answer of the assistant (roles {roles}): there is nothing to align on. "
                "Remove such conversations from the text."
            )


def read_context(capture: CaptureConfig) -> Document | None:
    """The context, or none where there is none. Raises TextError for a file that cannot be read or has nothing in it; RoomError, in a
    room, for one outside its folders."""
    if capture.context is not None:
        return Document(text=capture.context)
    if capture.context_file is None:
        return None
    check_path(capture.context_file)
    path = paths.local_path(capture.context_file)
    place = f"capture.context_file {path}"
    if path.suffix.lower() not in (".txt", ".jsonl"):
        raise TextError(f"{place}: readable are .txt, and .jsonl with a chat message on each line.")
    lines = list(utf8_lines(path))
    if not "".join(lines).strip():
        raise TextError(f"{place} is empty. Write the instruction or the examples into it.")
    if path.suffix.lower() == ".txt":
        return Document(text="".join(lines))
    return Document(messages=tuple(_message(line, f"{place}, line {number}") for number, line in enumerate(lines, 1) if line.strip()))


def _message(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise TextError(f"{place}: not JSON ({error.msg} at column {error.colno}). Write one chat message per line.") from None
    if not is_message(found):
        raise TextError(f'{place}: not a chat message. Write {{"role": "system", "content": "…"}}, one per line.')
    return dict(found)


def context_of(config: DistillConfig, tokenizer: Tokenizer) -> Context | None:
    """The context that the config names, ready to align documents. Raises what read_context does."""
    found = read_context(config.capture)
    if found is None:
        return None
    return Context(tokenizer=tokenizer, text=found.text, messages=found.messages, assistant_only_loss=config.text.assistant_only_loss)


def reading_factor(config: DistillConfig) -> float:
    """Tokens that the teacher reads, for one of the windows: (context + document) / document, guessed from lengths in characters of the
    first documents; those of a dataset on the Hub, which are not asked for here, are taken to fill a window each. 1 without a context.
    """
    found = read_context(config.capture)
    if found is None:
        return 1.0
    context = len(found.text) if found.text is not None else len(json.dumps(found.messages))
    lengths = _document_letters(config.text)
    return (context + lengths) / lengths


def _document_letters(text: TextConfig) -> float:
    """Mean characters of a document, at most a window's worth."""
    longest = text.window_tokens * LETTERS_OF_TOKEN
    if text.source != BUILTIN and not paths.local_path(text.source).exists():
        return float(longest)
    lengths: list[int] = []
    for document in documents(text):
        if not document.is_blank:
            lengths.append(min(longest, len(document.text if document.text is not None else json.dumps(document.messages))))
        if len(lengths) == SAMPLED_DOCUMENTS:
            break
    return sum(lengths) / len(lengths) if lengths else float(longest)
