"""Every sentence that a screen says has its Portuguese, with the same placeholders; and none is kept that nobody says."""

import ast
import json
import re
import string
from pathlib import Path

import pytest

from distill_core import language
from distill_core.language import in_language

ROOT = Path(language.__file__).parent.parent.parent
SOURCES = sorted([*(ROOT / "apps").glob("*.py"), *(ROOT / "distill_core").rglob("*.py")])
PARTS = sorted((ROOT / "distill_core" / "language" / "pt").glob("*.json"))
SPEAKERS = [path for path in SOURCES if re.search(r"from \S*language import|import .*\blanguage\b", path.read_text(encoding="utf-8"))]
"""Other files may have a `say` of their own, which speaks to a terminal, in English."""
SAYERS = {"say", "_say", "later"}


def literals(node):
    """Strings that an argument can be: a literal, or either side of `a if x else b`. An f-string is refused: it has no one key."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    assert not isinstance(node, ast.JoinedStr), f"line {node.lineno}: say() takes {{placeholders}} and values, not an f-string"


def said(path):
    """(sentence, line) of every say("…") and later("…") in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", None) in SAYERS:
            for sentence in literals(node.args[0]):
                yield sentence, node.lineno


def placeholders(sentence):
    """(name, format) of each, sorted; a sentence that str.format cannot read fails here."""
    return sorted((name, form) for _, name, form, _ in string.Formatter().parse(sentence) if name is not None)


SAID = [(path, sentence, line) for path in SPEAKERS for sentence, line in said(path)]


def test_the_scan_finds_sentences(tmp_path):
    path = tmp_path / "app.py"
    path.write_text("say('a {x}' if x else 'b', x=1)\nlater('c'\n  ' d')\nsay(known)\nother('e')")
    assert sorted(said(path)) == [("a {x}", 1), ("b", 1), ("c d", 2)]
    path.write_text("say(f'{x}')")
    with pytest.raises(AssertionError, match="line 1: say"):
        list(said(path))
    assert any(path.name == "place.py" for path in SPEAKERS)


def test_every_sentence_has_its_portuguese():
    known = language.catalogue("pt")
    missing = [f"{path.relative_to(ROOT)}:{line}: {sentence!r}" for path, sentence, line in SAID if sentence not in known]
    assert not missing, "no Portuguese for\n" + "\n".join(missing)


def test_every_translation_has_the_placeholders_of_its_english():
    for english, portuguese in language.catalogue("pt").items():
        assert placeholders(english) == placeholders(portuguese), english
        assert portuguese.strip() == portuguese and portuguese, english


def constants(tree):
    """Strings in a file; of an f-string its text, with {} for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)


def test_no_translation_outlives_its_sentence():
    code = {text for path in SOURCES for text in constants(ast.parse(path.read_text(encoding="utf-8")))}
    core = json.loads((PARTS[0].parent / "core.json").read_text(encoding="utf-8"))
    said = {re.sub(r"\{\w+\}", "{}", english) if english in core else english: english for english in language.catalogue("pt")}
    assert [english for text, english in said.items() if text not in code] == []


def test_what_the_core_says_is_known_with_what_it_filled_in():
    say = in_language("pt")
    assert say.known("training for 1,200 steps") == "treino de 1\u202f200 passos"
    assert say.known("waiting for cpu: 2 ahead, about 4 min 00 s") == "à espera de cpu: 2 à frente, cerca de 4 min 00 s"
    assert say.known("train.bf16 true: about 1.50 GiB less (about a third slower)").endswith("(cerca de um terço mais lento)")
    assert say.known("no such words") == "no such words"
    assert say.known("{run} or {0}") == "{run} or {0}", "words from elsewhere are never taken for a format"
    assert in_language("en").known("training for 1,200 steps") == "training for 1,200 steps"


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_a_part_names_each_sentence_once(path):
    names = [name for name, _ in json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=list)]
    assert len(names) == len(set(names))


def test_the_same_sentence_in_two_parts_has_the_same_words():
    language.catalogue("pt")  # asserts it while merging
    for place, path in enumerate(PARTS):
        others = [json.loads(other.read_text(encoding="utf-8")) for other in PARTS[place + 1 :]]
        for english, portuguese in json.loads(path.read_text(encoding="utf-8")).items():
            assert all(other.get(english, portuguese) == portuguese for other in others), english


def test_an_unknown_language_is_english():
    for code in ("xx", "", None, "PT", "../pt"):
        assert in_language(code) is in_language("en") or in_language(code).code == "en"
    assert in_language("xx")("{count:,} of {total}", count=2048, total="a") == "2,048 of a"


def test_numbers_cannot_be_misread():
    """2,048 is two and a bit to a Portuguese reader, and 2.048 two thousand."""
    say = in_language("pt")
    assert say("a sentence nobody translated: {count:,}", count=2048) == "a sentence nobody translated: 2\u202f048"
    assert say("{share:.2%} and {count}", share=0.25, count=3) == "25,00% and 3"
    assert say("{words}", words="a, b") == "a, b", "commas between words stay"
    for figure, said in {"1.25 GiB": "1,25 GiB", "2.16M": "2,16M", "-1,234.5": "-1\u202f234,5", "99.3%": "99,3%", "<1": "<1"}.items():
        assert say.figure(figure) == say("{figure}", figure=figure) == said
        assert in_language("en").figure(figure) == figure
    for name in ("Qwen3-0.6B", "v1.2.3", "config.json", "arXiv 2608.03796"):
        assert say("{name}", name=name) == say.figure(name) == name, "a name is no number"


def test_the_language_of_an_address():
    assert language.language_of({"lang": "pt"}) == language.language_of({"lang": ["en", "pt"]}) == "pt"
    assert language.language_of({}) == language.language_of({"lang": "xx"}) == language.language_of({"lang": []}) == "en"


def test_the_switch_keeps_the_rest_of_the_address():
    links = language.switch({"run": "a b", "lang": "pt", "file": ["x.py"]})
    assert 'href="?run=a+b&amp;lang=en&amp;file=x.py"' in links
    assert links.count("aria-current") == 1
    assert 'lang="pt" hreflang="pt" target="_self" aria-current' in links
    assert "<script" not in language.switch({"run": "<script>"})


TERMS = {
    r"\bteachers?\b": r"professor",
    r"\bstudents?\b": r"aluno",
    r"\btwins?\b": r"gémeo",
    r"\bcaches?\b": r"cache",
    r"\btemperatures?\b": r"temperatura",
    r"\btails?\b": r"cauda",
    r"\bheld[- ]out\b": r"reservad",
    r"\bkept mass\b": r"massa guardada",
    r"\bhard labels\b": r"rótulos rígidos",
    r"\bdistil(?!l_core)": r"destil",
    r"\bwindows?\b": r"janela",
    r"\bvocabulary\b": r"vocabulário",
    r"\bagreement\b": r"concordância",
    r"\bfloors?\b": r"chão",
    r"\bKL to (the )?teacher\b": r"KL ao professor",
}
"""English term -> what its Portuguese holds: one term each, everywhere."""
FORBIDDEN = r"\b(estudante|instrutor|gêmeo|arquivo|cauda longa|armazenamento em cache|destilador)\b"


def test_one_portuguese_term_for_each_english_one():
    strays = [
        f"{path.name}: {english!r} -> {portuguese!r}: no {stem!r}"
        for path in PARTS
        for english, portuguese in json.loads(path.read_text(encoding="utf-8")).items()
        for term, stem in TERMS.items()
        if re.search(term, re.sub(r"\{\w+[^}]*\}", "", english), re.I) and not re.search(stem, portuguese, re.I)
    ]
    strays += [f"{english!r}: {said!r}" for english, said in language.catalogue("pt").items() if re.search(FORBIDDEN, said, re.I)]
    assert strays == [], "\n".join(strays)
