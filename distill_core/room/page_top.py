"""The line above every app: the other pages where they are served together, the languages, and in a room the visitor and the way out."""

from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode

from ..language import ENGLISH, Say, switch
from .gallery import WORDS
from .login_page import visitor_line
from .visitors import visitor_of

Request = Mapping[str, Any]
"""`mo.app_meta().request`, or None where no browser asks."""


def page_name(request: Request | None, query: Mapping[str, Any]) -> str:
    """Which app this is, where it is served with the others; '' where it stands alone.

    `serve` gives every app a path of its own, and a page's cells see that of its websocket: '/runs/ws'. `marimo run apps/` names the
    file in the query: '?file=runs.py'.
    """
    path = str(request["url"]["path"]) if request is not None else ""
    folder = path.rstrip("/").removesuffix("/ws").rsplit("/", 1)[-1]
    file = query.get("file")
    name = file.rsplit("/", 1)[-1].removesuffix(".py") if isinstance(file, str) else folder
    return name if name in WORDS else ""


def address_of_page(name: str, request: Request | None, query: Mapping[str, Any], **more: str) -> str | None:
    """Where another app stands, relative to this page, in the same language and with `more` in its query; None where this one is alone."""
    here = page_name(request, query)
    if not here:
        return None
    file = query.get("file")
    at = {"file": f"{file.removesuffix(f'{here}.py')}{name}.py"} if isinstance(file, str) else {}
    asked = urlencode(at | more | ({"lang": query["lang"]} if query.get("lang") else {}), doseq=True)
    return ("" if at else f"../{name}/") + (f"?{asked}" if asked else "")


def page_top(request: Request | None, query: Mapping[str, Any], *, carried: Mapping[str, Any] | None = None, say: Say = ENGLISH) -> str:
    """The whole line as HTML. `carried`: what else the links to other languages keep, such as settings not in the address."""
    here = page_name(request, query)
    links = []
    for name, (title, _) in WORDS.items() if here else ():
        address = escape(address_of_page(name, request, query) or "")
        # target: a notebook's page would otherwise follow the link without opening itself anew
        links.append(f'<a href="{address}" target="_self"{" aria-current=page" if name == here else ""}>{escape(say(title))}</a>')
    pages = f'<nav class="pages" aria-label="{escape(say("Pages"))}">{" ".join(links)}</nav>' if links else ""
    visitor = visitor_line(visitor_of(request), say, leave="../logout")
    return f'<div class="page-top">{pages}{visitor}{switch({**query, **(carried or {})})}</div>'
