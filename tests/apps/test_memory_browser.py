"""The memory page in a real browser: another student redraws the bars and the words; nothing asks another machine."""

from urllib.parse import urlparse

import pytest

from distill_core import paths

pytestmark = pytest.mark.browser

APP = paths.apps_dir() / "memory.py"


def test_choosing_redraws(chromium, serve):
    elsewhere = []
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("request", lambda request: elsewhere.append(request.url) if urlparse(request.url).hostname not in ("127.0.0.1", None) else None)
    page.goto(serve(APP) + "?lang=pt")
    page.get_by_role("heading", name="Para onde vai a memória").wait_for()
    page.get_by_text("meta-llama/Llama-3.2-3B-Instruct: 3,21B").wait_for()
    before = page.get_by_text("Com cache e perda fundida: cerca de").inner_text()
    page.get_by_text("calcular as ativações duas vezes: menos memória, mais lento").first.click()
    page.wait_for_function(
        """before => [...document.querySelectorAll('li')].some(
            item => item.innerText.startsWith('Com cache e perda fundida: cerca de') && item.innerText != before)""",
        arg=before,
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing runs off a phone's page"
    context.close()
    assert elsewhere == []
