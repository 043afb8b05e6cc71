"""What stands in front of the apps: the list of them, a sign of life, and marimo's own files, sent small and kept by browsers."""

import asyncio
import gzip
import mimetypes
from pathlib import Path
from urllib.parse import parse_qs

from ..language import in_language, language_of, later
from .http import App, Receive, Scope, Send, answer, header
from .login_page import AppCard, gallery_page
from .visitors import visitor_of

WORDS = {
    "distill": (later("The walk"), later("Nine steps from a large teacher to a small, judged student of your own.")),
    "playground": (
        later("Temperature and top-K"),
        later("One position of your cache: what the teacher believes, what K keeps of it, and what each tail mode would teach."),
    ),
    "memory": (
        later("Where the memory goes"),
        later("Weights, gradients, optimiser, activations, logits: three ways to train, before anything is spent."),
    ),
    "runs": (later("Compare runs"), later("All caches and runs: curves, quality and settings side by side, and what may be deleted.")),
    "techniques": (
        later("Techniques"),
        later("What practice knows beyond plain soft targets: when to use it, what it costs, what it gained, and forms to start it."),
    ),
}
"""File name of an app -> its title and its one line, in the order in which they are shown."""
COMPRESSED = (".js", ".css", ".html", ".json", ".svg", ".webmanifest", ".ttf", ".wasm", ".map")
KEPT = b"public, max-age=31536000, immutable"
"""Names under assets/ carry a hash of their content."""


def app_files(folder: Path) -> dict[str, Path]:
    """Name -> notebook, in the order of WORDS, others after them by name."""
    found = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
    known = [name for name in WORDS if name in found]
    return {name: found[name] for name in [*known, *(name for name in found if name not in WORDS)]}


def cards(names: list[str]) -> list[AppCard]:
    return [AppCard(name, *WORDS.get(name, (name, ""))) for name in names]


class Front:
    """Pure ASGI: the gallery at '/', '/health', files under '/static/'; everything else is `app`'s, the notebooks."""

    def __init__(self, app: App, *, names: list[str], static_folder: Path) -> None:
        self.app = app
        self.cards = cards(names)
        # only what is there at the start is ever sent: no address can name another file
        self._files = {str(path.relative_to(static_folder)): path for path in static_folder.rglob("*") if path.is_file()}
        self._compressed: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self.app(scope, receive, send)
        elif path == "/":
            await self._gallery(scope, send)
        elif path == "/health":
            await answer(scope, send, 200, b"ok\n", [(b"content-type", b"text/plain")])
        elif path.startswith("/static/"):
            await self._file(scope, send, path.removeprefix("/static/"))
        else:
            await self.app(scope, receive, send)

    async def _gallery(self, scope: Scope, send: Send) -> None:
        query = {key: values[-1] for key, values in parse_qs(scope.get("query_string", b"").decode("latin-1")).items()}
        text = gallery_page(in_language(language_of(query)), query, self.cards, visitor_of(scope))
        await answer(scope, send, 200, text.encode(), [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")])

    async def _file(self, scope: Scope, send: Send, name: str) -> None:
        path = self._files.get(name)
        if path is None:
            return await answer(scope, send, 404, b"no such file\n", [(b"content-type", b"text/plain")])
        kept = KEPT if name.startswith("assets/") else b"public, max-age=3600"
        kind = (mimetypes.guess_type(name)[0] or "application/octet-stream").encode()
        headers = [(b"content-type", b"text/javascript" if path.suffix == ".js" else kind), (b"cache-control", kept)]
        if path.suffix in COMPRESSED and b"gzip" in header(scope, b"accept-encoding"):
            if name not in self._compressed:
                self._compressed[name] = await asyncio.to_thread(lambda: gzip.compress(path.read_bytes(), 6, mtime=0))
            headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
            return await answer(scope, send, 200, self._compressed[name], headers)
        await answer(scope, send, 200, await asyncio.to_thread(path.read_bytes), headers)
