"""The few parts of http that the room's door and gallery share, as pure ASGI."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGIN_BYTES = 8_000
BODY_BYTES = 1_000_000
"""Largest body of any other request. No app takes uploads; settings are small."""
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'; base-uri 'self'; object-src 'none'; form-action 'self'"),
]
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


def cookies(scope: Scope) -> dict[str, str]:
    try:
        return {key: morsel.value for key, morsel in SimpleCookie(header(scope, b"cookie").decode("latin-1")).items()}
    except CookieError:
        return {}


def host_of(scope: Scope) -> str:
    """The name under which a browser asked, without the port."""
    return re.sub(r":\d*$", "", header(scope, b"host").decode("latin-1"))


def comes_from_own_page(scope: Scope) -> bool:
    """False if a browser says that another site's page sends this: websockets of other sites carry cookies in some browsers."""
    origin = header(scope, b"origin").decode("latin-1")
    is_plain_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS")
    return not origin or is_plain_read or urlsplit(origin).netloc == header(scope, b"host").decode("latin-1")


def too_large(scope: Scope) -> int:
    """413 or 411 for a body that is too large or does not say its length, else 0."""
    if scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return 0
    length = header(scope, b"content-length")
    if not length.isdigit():
        return 411 if header(scope, b"transfer-encoding") else 0
    return 413 if int(length) > (LOGIN_BYTES if scope["path"] == "/login" else BODY_BYTES) else 0


def with_headers(send: Send) -> Send:
    """A `send` that adds the security headers an answer does not have yet."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            present = {key.lower() for key, _ in message.get("headers", [])}
            message = {**message, "headers": [*message.get("headers", []), *(pair for pair in HEADERS if pair[0] not in present)]}
        await send(message)

    return sending


async def answer(scope: Scope, send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole answer at once; without its body where only the head was asked for."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def refuse(scope: Scope, send: Send, status: int, words: str) -> None:
    """No, in words; a websocket's handshake, not yet accepted, ends with 403."""
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008, "reason": words})
    await answer(scope, send, status, f"{words}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


class OwnPagesOnly:
    """Pure ASGI, around everything: answers only to pages of its own, adds security headers, refuses large bodies.

    `hosts`: names under which it may be asked, for a server without a password: another site's name that was made to lead here
    (DNS rebinding) is refused. None: any, as the password decides.
    """

    def __init__(self, app: App, *, hosts: tuple[str, ...] | None = None) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        send = with_headers(send)
        if self.hosts is not None and host_of(scope) not in self.hosts:
            return await refuse(scope, send, 403, f"this server answers to {', '.join(self.hosts)} only")
        if not comes_from_own_page(scope):
            return await refuse(scope, send, 403, "this request comes from another site's page")
        if scope["type"] == "http" and (status := too_large(scope)):
            return await refuse(scope, send, status, f"a request here carries at most {BODY_BYTES:,} bytes, and says how many")
        await self.app(scope, receive, send)
