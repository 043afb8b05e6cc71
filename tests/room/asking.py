"""Puts one request or one websocket handshake to an ASGI app, as a browser would, without a network."""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: str
    seen: dict | None
    """The scope as the app behind saw it; None if it was never asked."""
    cookies: dict[str, str] = field(default_factory=dict)

    def header(self, name):
        return next((value for key, value in self.headers if key == name), None)


@dataclass
class Behind:
    """The app behind the door: remembers what it was asked, and says hello."""

    seen: dict | None = None

    async def __call__(self, scope, receive, send):
        self.seen = scope
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"hello"})


class Browser:
    """Keeps cookies between requests, as one browser does."""

    def __init__(self, app, behind, *, address="10.0.0.1", scheme="http"):
        self.app, self.behind, self.address, self.scheme = app, behind, address, scheme
        self.cookies: dict[str, str] = {}

    def ask(self, target, *, method="GET", form=None, kind="http", headers=(), body=None):
        """Status 101 is a websocket that was accepted, 403 one that was not."""
        split = urlsplit(target)
        data = body if body is not None else urlencode(form).encode() if form else b""
        sent = {"host": "room.test", "accept": "text/html"} | ({"content-length": str(len(data))} if data else {}) | dict(headers)
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": kind,
            "method": "POST" if data and method == "GET" else method,
            "path": split.path,
            "query_string": split.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": (self.address, 4000),
            "scheme": self.scheme,
        }
        if kind == "websocket":
            del scope["method"]
        self.behind.seen = None
        messages = []

        async def receive():
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message):
            messages.append(message)

        asyncio.run(self.app(scope, receive, send))
        if kind == "websocket":
            status = 101 if messages[0]["type"] == "websocket.accept" else 403
            return Answer(status, [], "", self.behind.seen)
        headers = [(key.decode(), value.decode()) for key, value in messages[0]["headers"]]
        answer = Answer(messages[0]["status"], headers, b"".join(m.get("body", b"") for m in messages[1:]).decode(), self.behind.seen)
        for key, value in headers:
            if key == "set-cookie":
                name, _, rest = value.partition("=")
                answer.cookies[name] = rest
                self.cookies[name] = rest.partition(";")[0]
        return answer

    def log_in(self, password="the room's own", name="Ada", **more):
        return self.ask("/login", form={"password": password, "name": name, **more})
