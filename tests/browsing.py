"""A marimo server on a notebook, and a real browser: shared by the app tests and screenshots.py."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]


def find_browser() -> str | None:
    """Path of an installed Chromium or Chrome."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


@contextlib.contextmanager
def browser() -> Iterator:
    """A headless browser of this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
        yield found
        found.close()


@contextlib.contextmanager
def served(notebook: Path, log_path: Path, mode: str = "run") -> Iterator[str]:
    """Address of a marimo server of its own on the notebook, with this process's environment; what it printed goes to log_path."""
    port = _free_port()
    yield from _serving(["-m", "marimo", "-q", mode, str(notebook), "--headless", "--no-token", "--port", str(port)], port, log_path)


@contextlib.contextmanager
def room_served(log_path: Path, *options: str, **environment: str) -> Iterator[str]:
    """Address of a `distill serve` of its own, with these options and additions to this process's environment."""
    port = _free_port()
    yield from _serving(["-m", "distill_core", "serve", "--no-browser", "--port", str(port), *options], port, log_path, environment)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serving(arguments: list[str], port: int, log_path: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    with open(log_path, "wb") as log:
        server = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPO,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(REPO), **(environment or {})},
        )
        try:
            _wait_for(server, port, log_path)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_for(server: subprocess.Popen, port: int, log_path: Path) -> None:
    deadline = time.monotonic() + 180  # a room rehearses its apps first: seconds of Python, a minute on a busy machine
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, f"the server ended: {log_path.read_text()}"
            time.sleep(0.2)
    raise AssertionError(f"the server did not answer within 180 s: {log_path.read_text()}")
