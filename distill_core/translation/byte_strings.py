"""Which bytes every token of a vocabulary stands for: byte-level BPE, and SentencePiece as the tokenizers library keeps it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import VocabularyError

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\u2581"
"""SentencePiece's mark for a space."""
HARMLESS = {"NFC", "Prepend", "Replace", "Sequence"}
"""Normalizers after which a token still says what the text was: NFC joins letters and accents, as the teacher has read them."""


@dataclass(frozen=True)
class ByteStrings:
    """One vocabulary of V tokens."""

    of_id: list[bytes | None]
    """None: a special token, or an id that is not in use."""
    id_of: dict[bytes, int]
    """The one token that is taken for these bytes: a piece rather than a single byte's own token, then the lowest id."""
    bos_id: int | None
    eos_id: int | None

    @property
    def vocab_size(self) -> int:
        return len(self.of_id)


def byte_strings(tokenizer: Any, name: str) -> ByteStrings:
    """Of a fast tokenizer, which `name` names in a refusal.

    Raises VocabularyError for one whose tokens do not say their bytes: WordPiece and the like, or one that writes text anew.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None) or tokenizer._tokenizer
    stored = json.loads(backend.to_str())
    kinds = set(_types(stored["decoder"]))
    rewriting = sorted(set(_types(stored["normalizer"])) - HARMLESS)
    is_byte_level, is_sentencepiece = (
        "ByteLevel" in kinds,
        bool(kinds & {"Metaspace", "ByteFallback"}) or SPACE in json.dumps(stored["decoder"], ensure_ascii=False),
    )
    if rewriting or not (is_byte_level or is_sentencepiece):
        why = f"it writes text anew ({', '.join(rewriting)})" if rewriting else f"{stored['model']['type']} tokens do not say their bytes"
        raise VocabularyError(
            f"tokenizer {name}: {why}, so nobody can tell token by token what it read. Byte-level BPE and SentencePiece can be translated."
        )
    special = {token["id"] for token in stored["added_tokens"] if token["special"]}
    added = {token["id"]: token["content"].encode() for token in stored["added_tokens"] if not token["special"]}
    vocabulary = tokenizer.get_vocab()
    of_id: list[bytes | None] = [None] * (max(vocabulary.values()) + 1)
    single = set()
    for token, token_id in vocabulary.items():
        if token_id in special:
            continue
        of_id[token_id] = added.get(token_id) or (_byte_level(token) if is_byte_level else _sentencepiece(token))
        if not is_byte_level and BYTE.fullmatch(token):
            single.add(token_id)
    id_of: dict[bytes, int] = {}
    for token_id in sorted(range(len(of_id)), key=lambda each: (each in single, each)):
        if (content := of_id[token_id]) is not None:
            id_of.setdefault(content, token_id)
    return ByteStrings(of_id, id_of, tokenizer.bos_token_id, tokenizer.eos_token_id)


def _types(part: Any) -> Iterator[str]:
    """The types of a tokenizer's part, and of the parts in it."""
    if isinstance(part, dict):
        yield part["type"]
        for name in ("decoders", "normalizers", "pretokenizers"):
            for each in part.get(name, ()):
                yield from _types(each)


def _letters() -> dict[str, int]:
    """Byte-level BPE's alphabet: a letter for each byte, itself where it can be printed, else one from 256 on (Radford et al. 2019)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


LETTERS = _letters()


def _byte_level(token: str) -> bytes | None:
    return bytes(LETTERS[letter] for letter in token) if all(letter in LETTERS for letter in token) else None


def _sentencepiece(token: str) -> bytes:
    byte = BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode("utf-8", "surrogatepass")


def twins(of: ByteStrings, to: ByteStrings) -> np.ndarray:
    """int64 [V of the first]: the second's token of exactly the same bytes, or of the same role (begin, end); -1 where there is none.

    No two tokens have the same twin: of several with the same bytes only the one that id_of names has one.
    """
    found = np.full(of.vocab_size, -1, np.int64)
    for content, token_id in of.id_of.items():
        found[token_id] = to.id_of.get(content, -1)
    if of.eos_id is not None and to.eos_id is not None:
        found[of.eos_id] = to.eos_id
    if of.bos_id is not None and to.bos_id is not None and of.bos_id != of.eos_id and to.bos_id != to.eos_id:
        found[of.bos_id] = to.bos_id
    return found
