"""The techniques page in a real browser: a merge is started by its button, followed to its end, and found again by its address."""

import re
import shutil

import pytest

from distill_core import paths
from distill_core.cache import open_cache

pytestmark = pytest.mark.browser

APP = paths.apps_dir() / "techniques.py"


def test_a_merge_from_the_button_to_the_cache(chromium, serve, small_cache):
    shutil.copytree(small_cache.folder, small_cache.folder.with_name("twin"))
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.set_default_timeout(90_000)
    page.goto(serve(APP))
    page.get_by_role("heading", name="Several caches into one").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing runs off a phone's page"
    page.get_by_role("button", name="Merge", exact=True).click()
    made = page.get_by_text(re.compile(r"Cache merged-\S+ is there"))
    made.wait_for()
    page.wait_for_url(re.compile(r"run="))
    name = re.search(r"Cache (\S+) is there", made.inner_text())[1]
    assert open_cache(name).num_windows("train") == small_cache.num_windows("train")
    page.reload()
    page.get_by_text(f"Cache {name} is there").wait_for()
    page.get_by_role("button", name="Merge", exact=True).wait_for()
    assert len(list((small_cache.folder.parent).glob("merged-*"))) == 1, "a reload starts nothing"
    context.close()
