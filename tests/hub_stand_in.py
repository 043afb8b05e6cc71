"""A Hugging Face Hub on this machine, as far as a download needs one: model info, file tree, files; gated and missing repositories."""

import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    repos: dict[str, dict] = {}
    """id -> {'folder': Path, 'gated': bool, 'license': str}"""
    asked: list[str] = []

    def log_message(self, *_):
        """Quiet."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path}")
        api = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(/revision/|/tree/)?([^/]*)", path)
        resolve = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path)
        found = self.repos.get((api or resolve)[1]) if api or resolve else None
        revision = (api[3] if api else resolve[2]) if found else ""
        if found is None:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("", "main", COMMIT):
            return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if resolve:
            return self.send_file(found, found["folder"] / resolve[3])
        files = sorted(file for file in found["folder"].iterdir() if file.is_file())
        if api[2] == "/tree/":
            tree = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0" * 40} for file in files]
            return self.send(200, json.dumps(tree).encode())
        info = {
            "_id": "0",
            "id": api[1],
            "modelId": api[1],
            "sha": COMMIT,
            "private": False,
            "gated": "manual" if found["gated"] else False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "cardData": {"license": found["license"]},
            "siblings": [{"rfilename": file.name, "size": file.stat().st_size, "blobId": "0" * 40} for file in files],
            "safetensors": {"parameters": {"F32": 2164416}, "total": 2164416},
        }
        return self.send(200, json.dumps(info).encode())

    def send_file(self, found: dict, file: Path):
        if found["gated"]:
            return self.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if not file.is_file():
            return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        return self.send(200, file.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{file.name}-1"'})

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub_with(repos: dict[str, dict], kind: type[Handler] = Handler):
    """Its address while it runs, and the list of what it was asked."""
    handler = type("Here", (kind,), {"repos": repos, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.asked
    finally:
        server.shutdown()
        server.server_close()
