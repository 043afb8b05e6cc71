"""The playground in a real browser: sliders, clicks and keys move the charts, which are never made anew; no cache, Portuguese, a phone."""

import pytest

from distill_core import paths

pytestmark = pytest.mark.browser
APP = paths.apps_dir() / "playground.py"
TALLEST = "p => p.views.belief.data('live').find(row => row.rank === 0).p"


@pytest.fixture
def open_page(chromium, serve, small_cache):
    contexts = []

    def start(query="", **options):
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.goto(serve(APP) + query)
        page.wait_for_selector(".panel[data-drawn]:not([data-drawn='0'])", timeout=90_000)
        return page

    yield start
    for context in contexts:
        context.close()


def drawn_after(page, act):
    """Do something, and wait until the charts have been drawn again."""
    before = page.locator(".panel").get_attribute("data-drawn")
    act()
    page.wait_for_function("([p, before]) => p.dataset.drawn !== before", arg=[page.locator(".panel").element_handle(), before])


def test_sliders_clicks_and_keys(open_page):
    page = open_page("?cache=small", viewport={"width": 1200, "height": 1000})
    panel = page.locator(".panel")
    panel.evaluate("p => { p.canvases = [...p.querySelectorAll('canvas')] }")
    at_one = panel.evaluate(TALLEST)

    page.get_by_role("slider").first.focus()
    drawn_after(page, lambda: page.keyboard.press("ArrowRight"))
    assert panel.evaluate(TALLEST) < at_one, "heat flattens"
    page.get_by_text("At T = 1.2 the 20 most likely tokens keep").wait_for()

    strip = page.locator(".strip")
    first = strip.get_attribute("data-position")
    drawn_after(page, lambda: page.locator(".token.asked").nth(9).click())
    clicked = strip.get_attribute("data-position")
    assert clicked != first
    assert page.locator(".strip [aria-selected=true]").count() == 1
    page.get_by_role("listbox").focus()
    drawn_after(page, lambda: page.keyboard.press("ArrowRight"))
    assert int(strip.get_attribute("data-position")) > int(clicked)
    drawn_after(page, lambda: page.keyboard.press("Home"))
    assert strip.get_attribute("data-position") == first

    same = "p => [...p.querySelectorAll('canvas')].every((canvas, i) => canvas === p.canvases[i])"
    assert panel.evaluate(same), "a chart was made anew: that costs most of the time of a step"
    with page.expect_download() as found:
        page.get_by_role("button", name="Save this chart as PNG: kept-mass").click()
    assert found.value.suggested_filename == "small-kept-mass.png"


def test_portuguese_on_a_phone(open_page):
    page = open_page("?lang=pt", viewport={"width": 390, "height": 800})
    assert page.get_by_role("heading", name="Temperatura e top-K").is_visible()
    page.get_by_text("O que ensinaria cada modo da cauda?").or_(page.get_by_text("Conselho desta cache")).first.wait_for()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390, "the page can be pushed sideways"
    for canvas in page.locator(".panel canvas").all():
        assert canvas.bounding_box()["width"] <= 370


@pytest.mark.slow
def test_no_cache_yet_and_then_one_by_its_button(chromium, serve, home):
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    page.goto(serve(APP))
    page.get_by_text("No cache is here yet.").wait_for(timeout=60_000)
    page.get_by_role("button", name="Capture the built-in teacher's cache").click()
    page.wait_for_selector(".strip", timeout=300_000)
    page.wait_for_selector(".panel[data-drawn]:not([data-drawn='0'])", timeout=60_000)
    page.close()
