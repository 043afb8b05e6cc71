"""The two pages that are no notebook: the login, and the list of apps. Plain HTML, no script, for a phone as for a wide screen."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..language import Say, switch
from .visitors import Visitor

STYLE = (Path(__file__).parent / "pages.css").read_text(encoding="utf-8")


def page(say: Say, title: str, body: str, *, is_narrow: bool = False) -> str:
    return (
        f'<!doctype html><html lang="{say.code}"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><main{' class=narrow' if is_narrow else ''}>{body}</main></body></html>"
    )


def login_page(say: Say, query: Mapping[str, Any], *, name: str = "", trouble: str = "") -> str:
    """The login: password, name, and a word of one's own. `trouble`: what was wrong with the last try."""
    title = say("Come in")
    alert = f'<p class="bad" role="alert">{html.escape(trouble)}</p>' if trouble else ""
    hidden = "".join(
        f'<input type="hidden" name="{key}" value="{html.escape(str(query[key]), quote=True)}">' for key in ("next", "lang") if key in query
    )
    own_word = say("Only to come back from another device.")
    body = (
        f'<div class="top"><h1>{title}</h1>{switch(query)}</div>'
        f"<p>{say('The room shares one machine. Your name stands beside the work that you start.')}</p>"
        f'<form class="card" method="post" action="/login">{hidden}'
        f'<label for="password">{say("Password of the room")}</label>'
        f'<input id="password" name="password" type="password" required autocomplete="current-password"{"" if name else " autofocus"}>'
        f'<label for="name">{say("Your name")}</label>'
        f'<input id="name" name="name" value="{html.escape(name, quote=True)}" required maxlength="24" autocomplete="nickname">'
        f'<label for="word">{say("A word of your own, if you like")}<small>{own_word}</small></label>'
        f'<input id="word" name="word" type="password" maxlength="64" autocomplete="off">'
        f'{alert}<button type="submit">{say("Enter")}</button></form>'
    )
    return page(say, title, body, is_narrow=True)


@dataclass(frozen=True)
class AppCard:
    """One app of the gallery."""

    name: str
    """As in its address."""
    title: str
    description: str


def visitor_line(visitor: Visitor, say: Say, *, leave: str = "/logout") -> str:
    """The visitor's name and the way out, whose address is `leave`; '' at home."""
    if not visitor.name:
        return ""
    role = f" ({say('presenter')})" if visitor.is_presenter else ""
    button = f'<form method="post" action="{leave}"><button class="quiet">{say("Leave")}</button></form>'
    return f'<span id="visitor">{html.escape(visitor.name)}{role}{button}</span>'


def gallery_page(say: Say, query: Mapping[str, Any], cards: list[AppCard], visitor: Visitor) -> str:
    """All apps, with one line each; in a room with the visitor's name and the way out."""
    who = visitor_line(visitor, say)
    asked = f"?lang={say.code}" if say.code != "en" else ""
    items = "".join(
        f'<li><a class="card" href="/{card.name}/{asked}"><h2>{html.escape(say(card.title))}</h2>'
        f"<p>{html.escape(say(card.description))}</p></a></li>"
        for card in cards
    )
    title = say("Distil: teach a small model what a large one knows")
    body = f'<div class="top"><h1>{title}</h1>{switch(query)}{who}</div><p>{say("Begin with the walk.")}</p><ul>{items}</ul>'
    return page(say, title, body)
