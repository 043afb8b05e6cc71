"""The screen's words in the visitor's language: one catalogue of sentences, the English ones being its keys.

    say = in_language("pt")
    say("{count:,} tokens to read", count=2048)      # '2 048 unidades a ler'

English stands in the code where it is shown; Portuguese stands in pt/*.json, one file for each part of the screen. Functions that
make words take `say` as an argument: visitors of one server are threads of one process, so no language is kept anywhere else.
Errors of the core stay English.
"""

import html
import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

LANGUAGES = {"en": "English", "pt": "Português"}
"""Code, as in the address (`?lang=pt`) and in HTML's `lang` -> its own name."""


_MARKS = str.maketrans({",": "\N{NARROW NO-BREAK SPACE}", ".": ","})
"""'2,048' would be read as a little more than two in Portuguese, and '2.048' as two thousand."""
_NUMBER = r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[+-]\d+)?%?"
_FIGURE = re.compile(rf"{_NUMBER}( ± {_NUMBER})?([TBMk]| (GiB|MiB|TB|GB|MB|kB|bytes|×))?")
"""A number as the core writes it: '15,538', '1.25 GiB', '2.16M', '99.3% ± 0.1%'."""


def _portuguese(value: str) -> str:
    """A figure with Portuguese marks; anything else as it is."""
    return value.translate(_MARKS) if _FIGURE.fullmatch(value) else value


class _Formatter(string.Formatter):
    """str.format, but numbers, and figures that are text already, get Portuguese marks."""

    def format_field(self, value: Any, format_spec: str) -> str:
        shown = str(super().format_field(value, format_spec))
        return shown.translate(_MARKS) if isinstance(value, (int, float)) else _portuguese(shown)


_PORTUGUESE_NUMBERS = _Formatter()


@dataclass(frozen=True)
class Say:
    """`say("English with {name}", name=…)`: that sentence in one language. A sentence that is not in the catalogue is said in English."""

    code: str
    """Key of LANGUAGES; what the page's root carries as its `lang`."""
    words: Mapping[str, str]
    """English -> this language; empty for English."""

    def __call__(self, english: str, /, **values: Any) -> str:
        said = self.words.get(english, english)
        return said.format(**values) if self.code == "en" else _PORTUGUESE_NUMBERS.vformat(said, (), values)

    @property
    def locale(self) -> str:
        """What browsers call this way to write numbers."""
        return {"pt": "pt-PT"}.get(self.code, self.code)

    def figure(self, shown: str) -> str:
        """A number with its unit, '1.25 GiB', with this language's decimal and thousands marks; anything else as it is."""
        return shown if self.code == "en" else _portuguese(shown)

    def known(self, words: str) -> str:
        """Words that the core made, such as a run's phase or a note on a model: in this language where the catalogue has them.

        core.json holds them, with placeholders where the core fills in something: 'training for {steps} steps'.
        """
        if self.code == "en" or words in self.words:
            return self.words.get(words, words)
        for pattern, said in core_patterns(self.code):
            if found := pattern.fullmatch(words):
                return said.format(**{name: self.known(_portuguese(value)) for name, value in found.groupdict().items()})
        return words


def later(english: str) -> str:
    """The sentence itself: marks, in a table of options or titles, what `say` will be given elsewhere, so that the test finds it."""
    return english


@cache
def in_language(code: str | None) -> Say:
    """How to say things in a language; an unknown code (an address can say anything) means English."""
    known = code if code in LANGUAGES else "en"
    return Say(known, {} if known == "en" else catalogue(known))


def catalogue(code: str) -> dict[str, str]:
    """All parts of one language as one mapping; the same sentence may stand in two parts, but with the same words."""
    merged: dict[str, str] = {}
    for path in sorted((Path(__file__).parent / code).glob("*.json")):
        for english, said in json.loads(path.read_text(encoding="utf-8")).items():
            assert merged.get(english, said) == said, f"{path}: {english!r} is said otherwise in another part: {merged[english]!r}"
            merged[english] = said
    return merged


@cache
def core_patterns(code: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """core.json's sentences with placeholders, as patterns that find what was filled in."""
    found = json.loads((Path(__file__).parent / code / "core.json").read_text(encoding="utf-8"))
    longest_first = sorted(found.items(), key=lambda item: -len(item[0]))  # 'waiting for {device}' would find the longer ones too
    return tuple((_pattern(english), said) for english, said in longest_first if "{" in english)


def _pattern(english: str) -> re.Pattern[str]:
    parts = string.Formatter().parse(english)
    return re.compile("".join(re.escape(text) + (f"(?P<{name}>.*?)" if name else "") for text, name, _, _ in parts))


ENGLISH = in_language("en")
"""The default of every function that takes `say`."""


def language_of(query: Mapping[str, Any]) -> str:
    """The code that a page's address asks for, English where it asks for none that is known; of repeated ones the last counts."""
    asked = query.get("lang")
    code = asked[-1] if isinstance(asked, list) and asked else asked
    return code if isinstance(code, str) and code in LANGUAGES else "en"


def switch(query: Mapping[str, Any]) -> str:
    """Links to the same page in the other languages, as HTML: they change `lang` in its address and keep all else."""
    here = language_of(query)
    links = []
    for code, name in LANGUAGES.items():
        address = html.escape("?" + urlencode({**query, "lang": code}, doseq=True))
        # target: a notebook's page would otherwise follow the link without opening itself anew
        current = ' aria-current="true"' if code == here else ""
        links.append(f'<a href="{address}" lang="{code}" hreflang="{code}" target="_self"{current}>{name}</a>')
    return f'<nav class="language" aria-label="Language / Idioma">{" · ".join(links)}</nav>'
