"""The live panel in a real browser, on a run folder that this test writes as a worker would."""

import json
import os
import re
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from distill_core import metrics
from distill_core.config import DistillConfig
from distill_core.runs import create_run

pytestmark = pytest.mark.browser

NOTEBOOK = """
import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    from distill_core.panel import LivePanel, training_pictures
    from distill_core.runs import open_run

    get_seen, set_seen = mo.state("nothing yet")
    return LivePanel, get_seen, mo, open_run, set_seen, training_pictures


@app.cell
def _(LivePanel, mo, open_run, set_seen, training_pictures):
    tracks = {"student": open_run("one"), "hard-label twin": open_run("two")}
    pictures = training_pictures(list(tracks), predicted_gib=0.5, limit_gib=1.0, eval_steps=20)
    mo.ui.anywidget(LivePanel(tracks, pictures, on_change=lambda states: set_seen(str(states))))
    return


@app.cell
def _(get_seen, mo):
    mo.md(f"kernel saw: {get_seen()}")
    return


if __name__ == "__main__":
    app.run()
"""


def row(step):
    memory = 0.4 + (0.3 if step == 77 else 0.0)  # one spike
    parts = {"loss": 2.0 + 4 / step, "kl": 1.5 + 3 / step, "ce": 2.5 + 4 / step, "floor": 0.0, "teacher_nll": 0.7}
    return {
        "step": step,
        "time_s": step / 10,
        **parts,
        "top1_agreement": 0.5,
        "tokens_per_s": 2e4,
        "memory_gib": memory,
        "peak_memory_gib": memory,
    }


@pytest.fixture
def two_runs(home):
    config = DistillConfig()
    one = create_run("train", config, name="one", inputs={"cache": "c"})
    two = create_run("train", config, name="two", inputs={"cache": "c"})
    me = psutil.Process()
    one.update(
        state="running",
        pid=os.getpid(),
        process_start_s=me.create_time(),
        phase="training",
        done=150,
        total=200,
        unit="steps",
        time_left_s=65,
    )
    two.update(state="queued", pid=os.getpid(), process_start_s=me.create_time(), phase="waiting for cpu: 1 ahead")
    for step in range(1, 151):
        metrics.append(one.metrics_path, row(step))
    return one, two


@pytest.fixture
def page(chromium, serve, two_runs, tmp_path):
    notebook = tmp_path / "panel_page.py"
    notebook.write_text(textwrap.dedent(NOTEBOOK))
    context = chromium.new_context(viewport={"width": 1200, "height": 1000})
    page = context.new_page()
    page.goto(serve(notebook))
    page.wait_for_selector(".panel[data-laststep='150']", timeout=60_000)
    yield page
    context.close()


def x_domain(page):
    return page.locator(".panel").evaluate("panel => panel.views[0].scale('x').domain()")


def test_live_rows_zoom_failure(page, two_runs):
    one, two = two_runs
    panel = page.locator(".panel")
    assert panel.get_attribute("data-firststep") == "1"
    assert "150 of 200" in panel.inner_text()
    assert "1 min 05 s left" in panel.inner_text()
    assert "1 run ahead of it in the queue · about 1 min 05 s to wait" in panel.inner_text()
    page.evaluate("document.title = 'x'")
    panel.evaluate("panel => { panel.canvases = [...panel.querySelectorAll('canvas')] }")

    canvas = panel.locator("canvas").first  # zoom in with Ctrl + wheel
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 80)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function("p => { const [a, b] = p.views[0].scale('x').domain(); return b - a < 140 }", arg=panel.element_handle())
    zoomed = x_domain(page)

    for step in range(151, 171):  # new rows arrive
        metrics.append(one.metrics_path, row(step))
    metrics.append(one.metrics_path, {"step": 170, "heldout_bits_per_byte": 0.5, "heldout_kl": 0.4, "heldout_top1_agreement": 0.7})
    page.wait_for_selector(".panel[data-laststep='170']")
    assert x_domain(page) == pytest.approx(zoomed), "the zoom was lost when rows arrived"
    same = "panel => [...panel.querySelectorAll('canvas')].every((canvas, i) => canvas === panel.canvases[i])"
    assert panel.evaluate(same), "a canvas was replaced: hover and zoom would die each second"
    peaks = panel.evaluate("panel => Math.max(...panel.views[3].data('live').map(row => row.memory_gib ?? 0))")
    assert peaks == pytest.approx(0.7)

    one.log_path.write_text("loading\nTraceback: it was the cable\n")
    one.update(state="failed", error="the cable was pulled", time_left_s=None)
    two.update(state="stopped")
    page.wait_for_selector(".panel[data-state='failed']")
    alert = panel.get_by_role("alert").first
    assert "the cable was pulled" in alert.inner_text()
    assert "it was the cable" in alert.inner_text()
    page.get_by_text("kernel saw: {'student': 'failed', 'hard-label twin': 'stopped'}").wait_for()


def test_resumed_run_replaces_its_rows(page, two_runs):
    one, _ = two_runs
    metrics.drop_after(one.metrics_path, 100)
    page.wait_for_selector(".panel[data-laststep='100']")
    rows = page.locator(".panel").evaluate("panel => panel.views[0].data('live').length")
    assert rows == 100


def test_long_history_is_thinned(page, two_runs):
    one, _ = two_runs
    lines = [json.dumps(row(step)) for step in range(151, 6001)]
    with open(one.metrics_path, "a") as file:
        file.write("\n".join(lines) + "\n")
    page.wait_for_selector(".panel[data-laststep='6000']")
    time.sleep(1.5)
    panel = page.locator(".panel")
    assert int(panel.get_attribute("data-rows")) <= 600
    assert panel.evaluate("panel => Math.max(...panel.views[0].data('live').map(row => row.memory_gib))") == pytest.approx(0.7)


def test_a_chart_is_saved_by_keyboard_and_a_dark_page_gets_light_ink(page):
    """Files are named after run and chart. The theme may change while the page is open: charts get its ink, and keep their rows."""
    for kind, start in {"png": b"\x89PNG\r\n", "svg": b"<svg"}.items():
        page.get_by_role("button", name=f"Save this chart as {kind.upper()}: gradient").focus()
        with page.expect_download() as found:
            page.keyboard.press("Enter")
        assert found.value.suggested_filename == f"one-gradient.{kind}"
        saved = Path(found.value.path()).read_bytes()
        assert saved.startswith(start)
    assert b"Are the steps calm?" in saved
    assert b'fill="#ffffff"' in saved[:400], "with the page's background, in a form that every program reads"

    panel = page.locator(".panel")
    panel.evaluate("panel => { panel.before = panel.views[0] }")
    page.evaluate("document.body.classList.add('dark')")
    page.wait_for_function("p => p.views[0] && p.views[0] !== p.before", arg=panel.element_handle())
    page.wait_for_function("p => p.views[0].data('live').length === 150", arg=panel.element_handle())
    svg = panel.evaluate("async panel => await panel.views[0].toSVG()")
    inks = {int(ink[:2], 16) for ink in re.findall(r'<text[^>]*fill="#(\w{6})"', svg)}
    assert min(inks) > 0x80, "titles and labels have the ink of the page as it is now"


ALONE = """
import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    from distill_core import charts
    from distill_core.language import in_language

    rows = [{"mode": "online", "part": "gradients", "gib": 1.0}]
    chart = charts.plan_chart(rows, limit_gib=2.0, say=in_language("pt"))
    mo.ui.altair_chart(chart, chart_selection=False, legend_selection=False)
    return
"""


def test_a_chart_that_stands_alone_has_a_menu_to_save_it(chromium, serve, tmp_path):
    """In every app, by keyboard, in the page's language, and without a link to another site."""
    notebook = tmp_path / "alone.py"
    notebook.write_text(ALONE)
    context = chromium.new_context(viewport={"width": 900, "height": 700})
    page = context.new_page()
    page.goto(serve(notebook))
    menu = page.locator("details:has(.vega-actions) summary")
    menu.wait_for(timeout=60_000)
    assert menu.get_attribute("title") is None or "Guardar" in page.locator("details:has(.vega-actions)").get_attribute("title")
    menu.focus()
    page.keyboard.press("Enter")
    links = page.locator(".vega-actions a")
    assert links.all_inner_texts() == ["Guardar como SVG", "Guardar como PNG"]
    page.wait_for_timeout(300)
    links.nth(1).focus()
    with page.expect_download() as found:
        links.nth(1).click()
    assert found.value.suggested_filename == "para-onde-iria-a-memória.png"
    context.close()
