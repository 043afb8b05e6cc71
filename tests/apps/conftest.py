"""What the app tests share: a home folder of their own, a marimo server, and a real browser."""

import contextlib

import browsing
import pytest


@pytest.fixture
def home(distill_home):
    """An empty home folder, for this process and those it starts."""
    return distill_home


@pytest.fixture(scope="module")
def chromium():
    """One real browser for the tests of a module; one that asks for it is skipped only where none is installed.

    Not for the session: Playwright keeps an event loop in the main thread while it lives, and later modules want their own.
    """
    if browsing.find_browser() is None:
        pytest.skip(f"no browser found (looked for {', '.join(browsing.BROWSERS)}); on Debian: apt-get install chromium")
    with browsing.browser() as browser:
        yield browser


@pytest.fixture
def serve(home, tmp_path):
    """serve(notebook, mode='run') -> address of a marimo server on it; ended, and its log shown, when the test ends."""
    logs = []
    with contextlib.ExitStack() as servers:

        def start(notebook, mode="run"):
            logs.append(tmp_path / f"server-{len(logs)}.log")
            return servers.enter_context(browsing.served(notebook, logs[-1], mode))

        yield start
    for log in logs:
        print(log.read_text()[-3000:])
