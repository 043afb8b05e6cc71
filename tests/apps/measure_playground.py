"""How fast the playground redraws: python tests/apps/measure_playground.py

On the built-in teacher's cache (captured first, into a folder of its own): the server's part, in this process, and in a real browser the
time from a key press on a slider, or a click on a token, to charts that are drawn again.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import browsing

from distill_core import charts, pictures, playground
from distill_core.capture import run_capture
from distill_core.config import from_dict
from distill_core.progress import Progress
from distill_core.runs import create_run

ROUNDS = 40
WATCH = """
panel => {
  window.waits = [];
  let began = null;
  const begin = () => { began ??= performance.now(); };
  addEventListener('keydown', begin, true);
  addEventListener('click', begin, true);
  new MutationObserver(() => requestAnimationFrame(() => {
    if (began !== null) { window.waits.push(performance.now() - began); began = null; }
  })).observe(panel, { attributes: true, attributeFilter: ['data-drawn'] });
}
"""


def spread(times_ms):
    ordered = sorted(times_ms)
    return f"median {statistics.median(ordered):.0f} ms, 95 % below {ordered[int(0.95 * len(ordered))]:.0f} ms, {len(ordered)} times"


def server_times(name):
    """What one step of a slider costs the server: belief, rows of three charts, sentences."""
    opened = playground.open_shared(name)
    window = opened.window("train", 0)
    began = time.perf_counter()
    assert opened.mass.num_positions
    table_ms = 1000 * (time.perf_counter() - began)
    times = []
    for number in range(ROUNDS):
        temperature, top_k = playground.TEMPERATURES[number % len(playground.TEMPERATURES)], 1 + number % 100
        began = time.perf_counter()
        place = window.place(10 + number)
        belief = playground.believe(place, temperature=temperature, top_k=top_k)
        frames = {
            "belief": playground.belief_rows(place, opened, temperature=temperature, top_k=top_k),
            "taught": playground.taught_rows(place, opened, belief, divergence="forward_kl"),
            "mass": playground.mass_rows(opened.mass, temperature=temperature, top_k=top_k),
        }
        assert all(frames.values())
        playground.belief_facts(belief, place)
        playground.advice(opened.mass, temperature=temperature, top_k=top_k)
        times.append(1000 * (time.perf_counter() - began))
    return table_ms, times


def browser_times(page):
    """(slider steps, clicks on tokens): from the event to the frame in which the charts are drawn again."""
    panel = page.locator(".panel")
    panel.evaluate(WATCH)
    found = []
    for act in (
        lambda number: page.keyboard.press("ArrowRight" if number % 16 < 8 else "ArrowLeft"),
        lambda number: page.locator(".token.asked").nth(20 + number).click(),
    ):
        if not found:
            page.get_by_role("slider").first.focus()
        for number in range(ROUNDS):
            count = page.evaluate("window.waits.length")
            act(number)
            page.wait_for_function(f"window.waits.length > {count}", timeout=20_000)
            page.wait_for_timeout(150)
        waits = page.evaluate("window.waits")
        found.append(waits)
        page.evaluate("window.waits = []")
    return found


def main():
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DISTILL_HOME"] = str(Path(scratch) / "home")
        config = from_dict({"text": {"num_windows": 60, "num_heldout_windows": 8}, "capture": {"name": "measured"}})
        with open(os.devnull, "w") as nowhere:
            run_capture(config, Progress(create_run("capture", config), screen=nowhere))
        table_ms, times = server_times("measured")
        print(f"server, a slider's step: {spread(times)}; the table over K and T, once a cache: {table_ms:.0f} ms")
        pictures.vega_bundle()
        assert charts.LIVE
        app = browsing.REPO / "apps" / "playground.py"
        with browsing.served(app, Path(scratch) / "server.log") as address, browsing.browser() as browser:
            page = browser.new_page(viewport={"width": 1200, "height": 1000})
            page.goto(address)
            page.wait_for_selector(".panel[data-drawn]:not([data-drawn='0'])", timeout=120_000)
            page.wait_for_timeout(2000)
            slider, click = browser_times(page)
            print(f"browser, key on a slider to charts drawn: {spread(slider)}")
            print(f"browser, click on a token to charts drawn: {spread(click)}")


if __name__ == "__main__":
    main()
