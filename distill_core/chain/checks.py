"""What can be known of a chain before its first link: sizes of every student, tokens, and what is senseless. Headers only, no weights."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from .. import catalog
from ..catalog.model_facts import ModelFacts
from ..catalog.shapes import fresh_shape, student_facts
from ..config import DistillConfig
from ..errors import ConfigError, VocabularyError
from ..paths import local_path
from ..refusals import check_device, check_settings
from ..units import show_count

NAMED_TOKENS = 3


def facts_along(configs: Sequence[DistillConfig], whole: DistillConfig) -> list[ModelFacts]:
    """Facts of the first teacher, then of every link's student, none of which needs to be there yet.

    In rounds the student is one and the same: its sizes follow from the first teacher's.
    """
    facts = [catalog.facts(whole.teacher.model, revision=whole.teacher.revision)]
    for config in configs:
        is_first = len(facts) == 1
        facts.append(student_facts(config, facts[-1]) if is_first or whole.chain.kind == "progressive" else facts[1])
    return facts


def sizes_along(configs: Sequence[DistillConfig], whole: DistillConfig) -> list[dict[str, int]]:
    """For each link the sizes of its student that follow from its teacher's, so that they stay what they are beside another teacher."""
    if whole.chain.kind != "progressive" and len(configs) > 1:
        return sizes_along(configs[:1], whole) * len(configs)
    facts = facts_along(configs, whole)
    sizes: list[dict[str, int]] = []
    for number, config in enumerate(configs):
        student = config.student
        if student.init == "fresh":
            shape = fresh_shape(vars(facts[number]), student)
            sizes.append(
                {
                    "student.num_layers": shape.num_layers,
                    "student.hidden_size": shape.hidden_size,
                    "student.num_attention_heads": shape.num_heads,
                    "student.intermediate_size": shape.intermediate_size,
                }
            )
        elif student.init == "prune_layers" and student.keep_layers is None:
            sizes.append({"student.num_layers": facts[number + 1].num_layers})
        else:
            sizes.append({})
    return sizes


def check_chain(configs: Sequence[DistillConfig], whole: DistillConfig) -> None:
    """Raise ConfigError, ModelError or VocabularyError for a chain that could only fail; `configs`: its links', the direct one last.

    Of links after the first what needs the student before them is left to their turn.
    """
    if whole.student.init == "prune_layers" and whole.chain.kind in ("iterative", "born_again"):
        raise ConfigError(
            f"student.init 'prune_layers' would begin every round of an '{whole.chain.kind}' chain as its own teacher, with nothing to "
            "learn. Use 'fresh', or 'pretrained' with a model that each round starts from."
        )
    if whole.chain.kind == "on_policy" and whole.text.synthetic is not None:
        raise ConfigError(
            f"text.synthetic '{whole.text.synthetic}' is what the student writes in an 'on_policy' chain, round by round. Leave it out; "
            "text.synthetic_share says how much of the text that is."
        )
    check_settings(configs[0])
    for config in configs[1:]:
        check_device(config.device)
    links = configs[: whole.chain.num_links]
    for number, config in enumerate(links, start=1):
        if config.student.init == "pretrained" and not str(config.student.model).startswith("run:"):
            _check_tokens(number, whole.teacher.model, str(config.student.model))
    if whole.chain.with_direct and links[-1].student.init == "fresh":
        _check_direct(links, whole)


def _check_direct(links: Sequence[DistillConfig], whole: DistillConfig) -> None:
    """Heads shared by queries follow the teacher's: beside another teacher they might come out otherwise."""
    facts = facts_along(links, whole)
    along, direct = fresh_shape(vars(facts[-2]), links[-1].student), fresh_shape(vars(facts[0]), links[-1].student)
    if along != direct:
        raise ConfigError(
            f"chain.with_direct: the last student would be {along} in the chain and {direct} straight from the teacher, so nothing could "
            "be compared. Choose student.num_attention_heads that fit both, or leave the direct student out."
        )


def _check_tokens(number: int, teacher: str, student: str) -> None:
    """Raise VocabularyError where both have a tokenizer.json here and it says that they differ; training checks all others."""
    ours, theirs = _tokens(teacher), _tokens(student)
    if ours is None or theirs is None:
        return
    different = sorted(index for index, token in ours.items() if theirs.get(index) != token)
    if different:
        shown = "; ".join(f"id {index} is {ours[index]!r} and {theirs.get(index)!r}" for index in different[:NAMED_TOKENS])
        raise VocabularyError(
            f"chain link {number}: {teacher} and {student} differ in {len(different):,} tokens: {shown}. All links of a chain speak of the "
            "same tokens. Pick a student from the teacher's own family, or start it with student.init 'prune_layers' or 'fresh'."
        )


def _tokens(source: str) -> dict[int, str] | None:
    """Id -> token of a model on this machine; None where it is not, or keeps its tokens elsewhere."""
    kind = catalog.resolve(source)
    if kind not in ("builtin", "folder"):
        return None
    folder = catalog.builtin_folder() if kind == "builtin" else local_path(source)
    return _read_tokens(folder / "tokenizer.json")


def _read_tokens(path: Path) -> dict[int, str] | None:
    if not path.is_file():
        return None
    return catalog.token_of_id(json.loads(path.read_text(encoding="utf-8")))


def larger_students(configs: Sequence[DistillConfig], whole: DistillConfig) -> list[str]:
    """In words, the links whose student is larger than its teacher: allowed, but seldom meant."""
    facts = facts_along(configs, whole)
    return [
        f"link {number}: the student has {show_count(student.num_parameters)} parameters, its teacher {show_count(teacher.num_parameters)}"
        for number, (teacher, student) in enumerate(pairwise(facts), start=1)
        if student.num_parameters > teacher.num_parameters
    ]
