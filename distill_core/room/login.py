"""The door of a room, as pure ASGI: websockets pass through it too, which framework middleware for http does not see.

A request enters with a signed cookie; the login gives one for the room's password and a name. What stands behind finds the visitor in
`scope["user"]` and `scope["meta"]`, which is where marimo's `mo.app_meta().request` reads them.
"""

import hashlib
import hmac
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from itsdangerous import BadSignature, URLSafeTimedSerializer

from ..errors import RoomError
from ..language import in_language, language_of
from .http import LOGIN_BYTES, App, Receive, Scope, Send, answer, cookies, header, refuse
from .login_page import login_page
from .names import Names
from .visitors import Visitor, checked_visitor_name

SESSION, NAME = "distill_room", "distill_name"
"""Cookies: that this browser is in, and which name it has (kept when it leaves, so that it can come back under it)."""
SESSION_S = 12 * 3600
NAME_S = 90 * 24 * 3600
WRONG_TRIES, WRONG_S = 20, 60.0
"""Wrong passwords from one address within that time, before it has to wait. A class behind one router is one address."""
STRICT = b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'none'"
OPEN = ("/health", "/static/")
"""Needs no login: a sign of life, and marimo's own published files."""


@dataclass(frozen=True)
class Passwords:
    """room: lets a visitor in; presenter: lets the presenter in, who may stop and delete what is not their own; none: nobody can."""

    room: str
    presenter: str | None = None

    def role_of(self, given: str) -> str | None:
        """'visitor', 'presenter' or None; takes the same time whatever is given."""
        is_room = hmac.compare_digest(_digest(given), _digest(self.room))
        is_presenter = hmac.compare_digest(_digest(given), _digest(self.presenter or "")) and self.presenter is not None
        return "presenter" if is_presenter else "visitor" if is_room else None


def _digest(words: str) -> bytes:
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).digest()


class WrongTries:
    """Counts wrong passwords by address, over the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def add(self, address: str) -> None:
        self._times.setdefault(address, deque(maxlen=WRONG_TRIES)).append(self._clock())

    def wait_s(self, address: str) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        oldest_counted = self._clock() - WRONG_S
        self._times = {key: times for key, times in self._times.items() if times[-1] > oldest_counted}
        times = self._times.get(address)
        return max(0.0, times[0] - oldest_counted) if times and len(times) == WRONG_TRIES else 0.0


class Door:
    """Lets those in who have logged in; everyone else meets the login page, or a plain refusal where a page makes no sense."""

    def __init__(self, app: App, *, passwords: Passwords, key: bytes, names: Names, is_https: bool = False) -> None:
        self.app = app
        self.passwords = passwords
        self.names = names
        self.is_https = is_https
        self.wrong = WrongTries()
        # other passwords make other signatures: changing them shows everybody the login again
        salt = _digest(f"{passwords.room}\0{passwords.presenter}").hex()
        self._sessions = URLSafeTimedSerializer(key, salt=f"session {salt}", signer_kwargs={"digest_method": hashlib.sha256})
        self._names = URLSafeTimedSerializer(key, salt="name", signer_kwargs={"digest_method": hashlib.sha256})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        path = scope["path"]
        if path == "/login" and scope["type"] == "http":
            return await self._login(scope, receive, send)
        if path == "/logout" and scope["type"] == "http" and scope["method"] == "POST":
            return await answer(scope, send, 303, b"", [(b"location", b"/login"), self._cookie(scope, SESSION, "", 0)])
        visitor = self._visitor(scope)
        if visitor is None and not path.startswith(OPEN):
            return await self._send_to_login(scope, send)
        visitor = visitor or Visitor()
        user = {"is_authenticated": bool(visitor.name), "username": visitor.name}
        meta = {**(scope.get("meta") or {}), "is_presenter": visitor.is_presenter}
        await self.app({**scope, "user": user, "meta": meta}, receive, send)

    # ---- the cookie
    def _visitor(self, scope: Scope) -> Visitor | None:
        """Who the signed cookie says it is; None: no cookie, a forged one, or one that is too old."""
        try:
            said = self._sessions.loads(cookies(scope).get(SESSION, ""), max_age=SESSION_S)
        except BadSignature:  # the base of what itsdangerous raises, age included
            return None
        return Visitor(said["name"], bool(said["presenter"]))

    def _known_name(self, scope: Scope) -> str:
        try:
            return str(self._names.loads(cookies(scope).get(NAME, ""), max_age=NAME_S))
        except BadSignature:
            return ""

    def _cookie(self, scope: Scope, name: str, value: str, max_age_s: int) -> tuple[bytes, bytes]:
        secure = "; Secure" if self.is_https or scope.get("scheme") in ("https", "wss") else ""
        return b"set-cookie", f"{name}={value}; Max-Age={max_age_s}; Path=/; HttpOnly; SameSite=Lax{secure}".encode()

    # ---- the login
    async def _send_to_login(self, scope: Scope, send: Send) -> None:
        wants_page = scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and b"text/html" in header(scope, b"accept")
        if not wants_page:
            return await refuse(scope, send, 401, "log in first: open /login in a browser")
        asked = scope.get("query_string", b"").decode("latin-1")
        carried = {"next": scope["path"] + (f"?{asked}" if asked else "")}
        language = language_of(parse_qs(asked))
        query = urlencode(carried | ({"lang": language} if language != "en" else {}))
        await answer(scope, send, 303, b"", [(b"location", f"/login?{query}".encode())])

    async def _login(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = {key: values[-1] for key, values in parse_qs(scope.get("query_string", b"").decode("latin-1")).items()}
        if scope["method"] in ("GET", "HEAD"):
            return await self._show_login(scope, send, 200, asked, name=self._known_name(scope))
        if scope["method"] != "POST":
            return await refuse(scope, send, 405, "the login takes GET and POST")
        form = {key: values[-1] for key, values in parse_qs(await _body(receive), keep_blank_values=True).items()}
        asked = {key: form[key] for key in ("next", "lang") if key in form}
        say = in_language(language_of(asked))
        address = (scope.get("client") or ("unknown",))[0]
        if wait_s := self.wrong.wait_s(address):
            words = say("Too many wrong passwords from here. Wait {seconds} s.", seconds=round(wait_s) + 1)
            return await self._show_login(scope, send, 429, asked, name=form.get("name", ""), trouble=words)
        role = self.passwords.role_of(form.get("password", ""))
        if role is None:
            self.wrong.add(address)
            return await self._show_login(scope, send, 403, asked, name=form.get("name", ""), trouble=say("That is not the password."))
        try:
            name = checked_visitor_name(form.get("name", ""))
        except RoomError:
            words = say("A name has 1 to 24 letters and digits.")
            return await self._show_login(scope, send, 400, asked, trouble=words)
        try:
            self.names.take(name, word=form.get("word", ""), is_known_browser=self._known_name(scope).casefold() == name.casefold())
        except RoomError:
            self.wrong.add(address)
            words = say("Somebody here is called {name} already. Take another name, or give the word chosen with it.", name=name)
            return await self._show_login(scope, send, 409, asked, name=name, trouble=words)
        session = self._sessions.dumps({"name": name, "presenter": role == "presenter"})
        made = [self._cookie(scope, SESSION, str(session), SESSION_S), self._cookie(scope, NAME, str(self._names.dumps(name)), NAME_S)]
        await answer(scope, send, 303, b"", [(b"location", _inside(asked.get("next", "/")).encode()), *made])

    async def _show_login(self, scope: Scope, send: Send, status: int, asked: dict[str, str], *, name: str = "", trouble: str = "") -> None:
        say = in_language(language_of(asked))
        text = login_page(say, asked, name=name, trouble=trouble).encode()
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store"), (b"content-security-policy", STRICT)]
        await answer(scope, send, status, text, headers)


def _inside(address: str) -> str:
    """The address if it is one of this server's own, else the front page: a login must not send people to other sites."""
    is_own = address.startswith("/") and not address.startswith("//") and "\\" not in address
    return address if is_own and address.isprintable() and address.isascii() else "/"


async def _body(receive: Receive) -> str:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False) and sum(map(len, parts)) <= LOGIN_BYTES
    return b"".join(parts).decode("utf-8", "replace")
