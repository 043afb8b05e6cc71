"""One window of a cache as the playground shows it: its tokens as text, and the teacher's say at each; read once for all visitors."""
# L: tokens in a window   P = L - 1: positions   K: entries   n: choices shown

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..cache import Cache, shared_cache
from ..cache.browse import token_text
from ..cache.tail import AT_ONE, is_hard_label
from ..errors import CacheError
from .belief import Place
from .mass import MassTable, mass_table

SHOWN = 5
"""Choices beside a token."""
MAX_OPEN = 4
"""Caches held open at once, for all visitors together."""


class OpenCache:
    """A cache with what is worth computing once: its tokenizer, its texts, its mass table."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._texts: dict[int, str] = {}

    @cached_property
    def mass(self) -> MassTable:
        return mass_table(self.cache)

    @cached_property
    def tokenizer(self) -> Any:
        import tokenizers

        path = self.cache.tokenizer_folder / "tokenizer.json"
        if not path.exists():
            raise CacheError(f"cache {self.cache.name}: tokenizer/tokenizer.json is missing, so its tokens have no text. Capture again.")
        return tokenizers.Tokenizer.from_file(str(path))

    def text(self, token_id: int) -> str:
        """The token's own text; its name where it has none, or is part of a character."""
        if token_id not in self._texts:
            self._texts[token_id] = token_text(self.tokenizer, token_id)
        return self._texts[token_id]

    def window(self, split: str, index: int) -> "Window":
        """Raises CacheError for a window that is not there."""
        row = self.cache.stored(split, index)
        return Window(self, split, index, row, self.cache.plan.num_ranked)


@dataclass(frozen=True)
class Window:
    """Row t of its lists speaks of token t + 1."""

    opened: OpenCache
    split: str
    index: int
    row: dict[str, Any]
    num_ranked: int

    @property
    def num_tokens(self) -> int:
        """Tokens up to the padding."""
        return int(sum(self.row["doc_lens"]))

    @property
    def token_ids(self) -> list[int]:
        return [int(token) for token in self.row["input_ids"][: self.num_tokens]]

    def is_asked(self, token: int) -> bool:
        """Whether the teacher was asked what stands at this token: not at the first of a document, nor where it is a hard label."""
        return 1 <= token < self.num_tokens and bool(self.row["targets"][token - 1]) and not self._is_hard_label(token - 1)

    def _is_hard_label(self, at: int) -> bool:
        row = self.row
        return self.opened.cache.has_hard_labels and bool(is_hard_label(row["teacher_logprobs"][at], row["tail_logsumexp"][at, AT_ONE]))

    @property
    def first_asked(self) -> int:
        """The first token that the teacher was asked about. Raises CacheError if there is none in this window."""
        asked = next((token for token in range(self.num_tokens) if self.is_asked(token)), None)
        if asked is None:
            raise CacheError(f"window {self.index} of split '{self.split}' has no token that the teacher was asked about. Take another.")
        return asked

    def nearest_asked(self, token: int) -> int:
        """The token itself, or the nearest one that the teacher was asked about."""
        asked = [place for place in range(self.num_tokens) if self.is_asked(place)]
        return min(asked, key=lambda place: (abs(place - token), place), default=self.first_asked)

    def place(self, token: int) -> Place:
        """What the teacher expected at this token. Raises CacheError where it was not asked."""
        if not self.is_asked(token):
            raise CacheError(f"window {self.index} of split '{self.split}': the teacher was not asked about token {token}. Take another.")
        row, at = self.row, token - 1
        logprobs_K = row["teacher_logprobs"][at][: self.num_ranked].astype(np.float32)
        stored_K = ~np.isneginf(logprobs_K)
        return Place(
            ids_K=row["teacher_ids"][at][: self.num_ranked][stored_K].astype(np.int64),
            logprobs_K=logprobs_K[stored_K],
            tail_A=row["tail_logsumexp"][at],
            tail_mean_A=row["tail_mean_logprob"][at],
            mixture_slack_3A=row["mixture_slack"][at] if "mixture_slack" in row else None,
            log_vocab=math.log(self.opened.cache.plan.vocab_size),
            gold_id=int(row["input_ids"][token]),
            gold_logprob=float(row["gold_logprob"][at]),
        )

    def tokens(self) -> list[dict[str, Any]]:
        """For the strip: {'text', 'asked', 'p' (of this token, T = 1), 'choices' [[text, probability, is this token]]} of each token."""
        shown = []
        for token, token_id in enumerate(self.token_ids):
            entry: dict[str, Any] = {"text": self.opened.text(token_id), "asked": self.is_asked(token)}
            if entry["asked"]:
                ids_n, logprobs_n = self.row["teacher_ids"][token - 1][:SHOWN], self.row["teacher_logprobs"][token - 1][:SHOWN]
                pairs = [(int(i), float(lp)) for i, lp in zip(ids_n, logprobs_n, strict=True) if lp > -np.inf]
                entry["p"] = round(float(np.exp(self.row["gold_logprob"][token - 1])), 5)
                entry["choices"] = [[self.opened.text(i), round(float(np.exp(lp)), 5), i == token_id] for i, lp in pairs[: self.num_ranked]]
            shown.append(entry)
        return shown


_open: OrderedDict[tuple[Path, int], OpenCache] = OrderedDict()
_guard = threading.Lock()


def open_shared(name: str) -> OpenCache:
    """A cache by name, opened once for all visitors of this process, and again when it was captured anew. Raises CacheError."""
    cache = shared_cache(name)
    key = (cache.folder, (cache.folder / "manifest.json").stat().st_mtime_ns)
    with _guard:
        if key not in _open:
            _open[key] = OpenCache(cache)
            while len(_open) > MAX_OPEN:
                _open.popitem(last=False)
        _open.move_to_end(key)
        return _open[key]
