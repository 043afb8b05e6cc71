"""What the app tests share: a home folder of their own, a marimo server, and a real browser."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]


@pytest.fixture
def home(distill_home):
    """An empty home folder, for this process and those it starts."""
    return distill_home


@pytest.fixture(scope="session")
def chromium():
    """One real browser for the session; a test that asks for it is skipped only where none is installed."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip(f"no browser found (looked for {', '.join(BROWSERS)}); on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def serve(home, tmp_path):
    """serve(notebook, mode='run') -> address of a marimo server on it; ended, and its log shown, when the test ends."""
    servers = []
    files = contextlib.ExitStack()

    def start(notebook: Path, mode: str = "run", **environment: str) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = files.enter_context(open(tmp_path / f"server-{port}.log", "wb"))
        command = [sys.executable, "-m", "marimo", "-q", mode, str(notebook), "--headless", "--no-token", "--port", str(port)]
        server = subprocess.Popen(
            command, cwd=REPO, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(REPO), **environment}
        )
        servers.append((server, log))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                return f"http://127.0.0.1:{port}"
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, (tmp_path / f"server-{port}.log").read_text()
                time.sleep(0.2)
        raise AssertionError(f"marimo did not answer within 60 s: {(tmp_path / f'server-{port}.log').read_text()}")

    yield start
    for server, log in servers:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        print(Path(log.name).read_text()[-3000:])
    files.close()
