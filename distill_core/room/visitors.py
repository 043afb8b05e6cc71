"""Who asks, and what is theirs. The login puts the name into the request; an app asks `visitor_of(mo.app_meta().request)`."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RoomError
from ..runs import Run
from .policy import policy

NAME_CHARACTERS = 24


@dataclass(frozen=True)
class Visitor:
    """A person in the room, or the one person at home: no name, and all rights."""

    name: str = ""
    is_presenter: bool = False


def visitor_of(request: Mapping[str, Any] | None) -> Visitor:
    """The visitor of a request that came through the login; at home the one person there; in a room without a login, nobody."""
    if policy() is None:
        return Visitor(is_presenter=True)
    user = request.get("user") if request is not None else None
    if not isinstance(user, Mapping) or not user.get("is_authenticated"):
        return Visitor()
    meta = request.get("meta") if request is not None else None
    return Visitor(str(user.get("username") or ""), isinstance(meta, Mapping) and meta.get("is_presenter") is True)


def is_same_name(one: str, other: str) -> bool:
    """Whether two names are one person's: 'Ana' and 'ANA' are, as nobody else can take either; no name is nobody's."""
    return bool(one) and one.casefold() == other.casefold()


def checked_visitor_name(name: str) -> str:
    """The name as it is shown: composed Unicode, single spaces. Raises RoomError for one that is empty, long, or not letters and digits."""
    made = re.sub(r"\s+", " ", unicodedata.normalize("NFKC", name)).strip()
    if not made or len(made) > NAME_CHARACTERS or not all(letter.isalnum() or letter in " .-'_" for letter in made):
        raise RoomError(
            f"a name has 1 to {NAME_CHARACTERS} letters and digits (and spaces, '.', '-', '_', \"'\"); "
            f"this one has {len(made)} characters. Give another name."
        )
    if not any(letter.isalnum() for letter in made):
        raise RoomError("a name needs a letter or a digit. Give another name.")
    return made


def check_may_touch(visitor: Visitor, run: Run) -> None:
    """Raise RoomError unless the visitor may stop, resume or delete the run: its owner, the presenter, or the one person at home."""
    owner = run.stored_status().owner
    if policy() is None or visitor.is_presenter or is_same_name(owner, visitor.name):
        return
    whose = f"belongs to {owner}" if owner else "was started in the machine's own terminal"
    ask = f"Ask {owner}, or the presenter." if owner else "Ask the presenter."
    raise RoomError(f"run {run.id} {whose}: {visitor.name or 'a visitor without a name'} can look at it, but not stop or delete it. {ask}")
