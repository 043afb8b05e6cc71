"""Which written texts are kept. Every text that is not has one reason, the first that holds, in the order of REASONS."""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..write_config import WriteConfig

NGRAM = 4
REASONS = {
    "too short": "fewer than write.min_new_tokens tokens, or blank",
    "cut off": "not at its end after write.max_new_tokens tokens, and write.keep_unfinished is off",
    "broken characters": "bytes that are no characters",
    "repetitive": "more than write.max_repeated of its four-token sequences have been there before",
    "in the source": "the same as a document of the text that the beginnings are from",
    "duplicate": "the same as an earlier one",
}
"""Reason -> in words. 'The same': but for case, spaces and the way a character is encoded."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One text as it was written."""

    number: int
    """Which of all that were written, from 0; chooses its beginning and its random numbers."""
    prompt: str
    text: str
    num_tokens: int
    """Written tokens, the end token not counted."""
    is_finished: bool
    """Whether the model ended it, rather than write.max_new_tokens."""
    repeated: float
    """Share of its four-token sequences that have been there before."""


class Judge:
    """Looks at texts in the order of their numbers; remembers what it kept."""

    def __init__(self, settings: WriteConfig, source: Iterable[str]) -> None:
        self._settings = settings
        self._source = {_digest(text) for text in source}
        self._kept: set[bytes] = set()

    def reason(self, draw: Draw) -> str:
        """Why the text is not kept; '' for one that is."""
        same = _digest(draw.text)
        faults = {
            "too short": draw.num_tokens < self._settings.min_new_tokens or not draw.text.removeprefix(draw.prompt).strip(),
            "cut off": not (draw.is_finished or self._settings.keep_unfinished),
            "broken characters": "\ufffd" in draw.text,
            "repetitive": draw.repeated > self._settings.max_repeated,
            "in the source": same in self._source,
            "duplicate": same in self._kept,
        }
        assert faults.keys() == REASONS.keys()
        found = next((reason for reason, holds in faults.items() if holds), "")
        if not found:
            self._kept.add(same)
        return found


def repeated_share(token_ids: Sequence[int]) -> float:
    """Share of the four-token sequences that have been there before: 'seq-rep-4' of Welleck et al. 2020 (arXiv:1908.04319, section 6);
    0 for fewer than four tokens."""
    ngrams = [tuple(token_ids[first : first + NGRAM]) for first in range(len(token_ids) - NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def _digest(text: str) -> bytes:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()
