"""The page on runs in a real browser: ticking lines, a tick of the clock that resets nothing, deleting with a confirmation."""

import pytest
from made_runs import judged, made
from playwright.sync_api import expect

from distill_core import paths
from distill_core.runs import list_runs

pytestmark = pytest.mark.browser

APP = paths.apps_dir() / "runs.py"


@pytest.fixture
def page(chromium, serve, home):
    for seed in (0, 1):
        judged(made(f"s{seed}", seed=seed, bits=0.4, kl=0.5), made(f"t{seed}", seed=seed, hard=True, bits=0.6, kl=0.7))
    context = chromium.new_context(viewport={"width": 1280, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    opened.goto(serve(APP) + "?compare=s0")
    opened.get_by_role("heading", name="Compare runs").wait_for()
    yield opened
    context.close()


def tick(page, name):
    page.get_by_role("row", name=f"Select row {name}").get_by_role("checkbox").click()


def test_tick_compare_and_delete(page):
    page.get_by_role("heading", name="What was set differently?").wait_for()  # the address named s0
    tick(page, "s1")
    page.locator("code", has_text="train.seed").wait_for()
    assert "compare=s1%2Cs0" in page.url or "compare=s1,s0" in page.url
    page.get_by_text("BEATS its hard-label twin").wait_for()
    page.get_by_text("said the student").first.wait_for()
    made("late")  # the clock reads again what runs; the table and its ticks stay as they are until asked
    page.wait_for_timeout(11_000)
    assert page.get_by_role("row", name="Select row s1").get_by_role("checkbox").is_checked()
    assert page.get_by_role("row", name="Select row late").count() == 0
    page.get_by_role("button", name="Look again").click()
    page.get_by_role("row", name="Select row late").wait_for()
    assert page.get_by_role("row", name="Select row s1").get_by_role("checkbox").is_checked()
    with page.expect_download() as got:
        page.get_by_role("button", name="All figures as CSV").or_(page.get_by_role("link", name="All figures as CSV")).click()
    assert got.value.suggested_filename == "runs.csv"
    delete = page.get_by_role("button", name="Delete", exact=True)
    expect(delete).to_be_disabled()
    page.get_by_text("Yes, delete them for good").click()
    expect(delete).to_be_enabled(timeout=60_000)
    delete.click()
    page.get_by_role("row", name="Select row s1").wait_for(state="detached")
    assert sorted(run.id for run in list_runs()) == ["late", "t0", "t1"]
