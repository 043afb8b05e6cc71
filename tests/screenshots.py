"""Pictures of the app from a real run of it: python tests/screenshots.py [FOLDER]

Walks apps/distill.py in a real browser on the built-in teacher with the default settings (some minutes), pressing only Capture, Train,
Judge and Export, and writes data/walk.png for the README. With a FOLDER it also writes what a reviewer wants to look at there: each moment
of the walk, wide, on a phone, and dark.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import browsing

APP = browsing.REPO / "apps" / "distill.py"
PICTURE = browsing.REPO / "data" / "walk.png"
LIMIT_BYTES = 400_000
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 800}


def says(page, words, timeout_s=1200):
    page.locator(".walk-bar [role=status]", has_text=words).wait_for(timeout=1000 * timeout_s)


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def whole(page, path):
    """The whole page in one picture: the viewport grows until nothing scrolls."""
    size = page.viewport_size
    height = page.evaluate("Math.max(...[...document.querySelectorAll('*')].map(node => node.scrollHeight))")
    page.set_viewport_size({"width": size["width"], "height": min(int(height) + 40, 12_000)})
    time.sleep(1.5)  # charts are drawn again at their new place
    page.screenshot(path=path)
    page.set_viewport_size(size)


def readme_picture(page):
    """From the heading of the training to the verdict."""
    page.set_viewport_size({"width": 1280, "height": 9000})
    page.add_style_tag(content=".walk-bar { display: none }")
    time.sleep(1.5)
    top = page.locator("#step-train").bounding_box()["y"]
    bottom = page.locator(".walk-table").bounding_box()
    page.screenshot(path=PICTURE, clip={"x": 90, "y": top - 8, "width": 1100, "height": bottom["y"] + bottom["height"] + 16 - top})
    size = PICTURE.stat().st_size
    if size > LIMIT_BYTES:
        raise SystemExit(f"{PICTURE} has {size:,} bytes, more than {LIMIT_BYTES:,}: make the picture smaller")
    print(f"{PICTURE}: {size:,} bytes")


def walk_through(browser, address, folder):
    """The four buttons; a picture at each moment where a folder is given. Returns the page's address at the end."""
    page = browser.new_context(viewport=WIDE).new_page()
    page.goto(address)
    says(page, "Press Capture")
    moments = [("Capture", "Press Train"), ("Train", "Press Judge"), ("Judge", "Press Export"), ("Export", "All nine steps are done")]
    for number, (button, then) in enumerate(moments):
        if folder:
            whole(page, folder / f"{number}-before-{button.lower()}.png")
        press(page, button)
        if folder and button == "Train":
            page.wait_for_selector(".panel[data-is1=running]", timeout=600_000)
            whole(page, folder / "1-while-training.png")
        says(page, then)
    time.sleep(2)
    if folder:
        whole(page, folder / "4-done.png")
    readme_picture(page)
    return page.url


def main(arguments):
    folder = Path(arguments[0]) if arguments else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DISTILL_HOME"] = str(Path(scratch) / "home")
        with browsing.served(APP, Path(scratch) / "server.log") as address, browsing.browser() as browser:
            done = walk_through(browser, address, folder)
            for name, options in (
                {"phone": {"viewport": PHONE}, "dark": {"viewport": WIDE, "color_scheme": "dark"}}.items() if folder else ()
            ):
                page = browser.new_context(**options).new_page()
                page.goto(done)
                says(page, "All nine steps are done")
                time.sleep(3)
                whole(page, folder / f"5-{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
