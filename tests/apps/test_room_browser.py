"""A room in real browsers: the login, names, and whose run it is, against a run that this test's process seems to work on."""

import os
import signal

import browsing
import psutil
import pytest

from distill_core import metrics
from distill_core.config import DistillConfig
from distill_core.runs import create_run

pytestmark = pytest.mark.browser
PASSWORDS = {"DISTILL_PASSWORD": "workshop-2026", "DISTILL_PRESENTER_PASSWORD": "the-presenters-2026"}
SLOW_MS = 120_000


@pytest.fixture
def address(home, tmp_path, chromium):
    with browsing.room_served(tmp_path / "room.log", "--room", **PASSWORDS) as address:
        yield address
    print((tmp_path / "room.log").read_text()[-3000:])


@pytest.fixture
def someone(chromium, address):
    """someone(name, password) -> the page of a new browser on the room's front page, logged in as a visitor would."""
    contexts = []

    def come_in(name, password=PASSWORDS["DISTILL_PASSWORD"], path="/", **options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(SLOW_MS)
        page.goto(address + path)
        page.get_by_label("Password of the room").fill(password)
        page.get_by_label("Your name").fill(name)
        page.get_by_role("button", name="Enter").click()
        return page

    yield come_in
    for context in contexts:
        context.close()


@pytest.fixture
def adas_run(home, small_cache):
    """A training of Ada's, at work."""
    run = create_run("train", DistillConfig(), name="adas", inputs={"cache": small_cache.name}, owner="Ada")
    me = psutil.Process()
    run.update(state="running", pid=me.pid, process_start_s=me.create_time(), phase="training", done=1, total=9, unit="steps")
    metrics.append(run.metrics_path, {"step": 1, "time_s": 0.1, "loss": 3.0, "memory_gib": 0.4})
    return run


def stop_button(page):
    return page.get_by_role("button", name="Stop, keep the student as it is")


def test_login_names_and_owners(someone, address, adas_run):
    page = someone("Bob", "not the password")
    assert "not the password" in page.get_by_role("alert").inner_text()
    page.get_by_label("Password of the room").fill(PASSWORDS["DISTILL_PASSWORD"])
    assert page.get_by_label("Your name").input_value() == "Bob", "a wrong password does not cost the name"
    page.get_by_role("button", name="Enter").click()
    assert page.locator("#visitor").inner_text().startswith("Bob")
    with page.expect_navigation():
        page.get_by_role("link", name="The walk").click()
    page.locator("#step-home").wait_for()

    page.goto(f"{address}/distill/?run=adas")
    page.get_by_text("Ada started it: only Ada and the presenter can stop it").first.wait_for()
    assert stop_button(page).count() == 0, "a second visitor may not stop the first one's run"

    again = someone("Bob")
    assert "Bob already" in again.get_by_role("alert").inner_text()

    presenter = someone("Grace", PASSWORDS["DISTILL_PRESENTER_PASSWORD"], path="/distill/?run=adas")
    presenter.wait_for_url("**/distill/?run=adas")
    stop_button(presenter).click()
    presenter.wait_for_timeout(500)
    deadline = 240
    while not adas_run.stop_requested() and deadline:
        presenter.wait_for_timeout(500)
        deadline -= 1
    assert adas_run.stop_requested()

    server = next(child for child in psutil.Process().children() if "serve" in child.cmdline())
    server.send_signal(signal.SIGINT)  # Ctrl-C, with three pages open
    assert server.wait(timeout=60) == 0


def test_the_door_in_portuguese_on_a_phone(chromium, address, tmp_path):
    context = chromium.new_context(viewport={"width": 380, "height": 700}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{address}/?lang=pt")
    assert page.get_by_role("heading").inner_text() == "Entrar"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the login is wider than a phone"
    if os.environ.get("DISTILL_PICTURES"):
        page.screenshot(path=f"{os.environ['DISTILL_PICTURES']}/login-phone-dark.png")
    page.get_by_label("Palavra-passe da sala").fill(PASSWORDS["DISTILL_PASSWORD"])
    page.get_by_label("O seu nome").fill("João")
    page.get_by_role("button", name="Entrar").click()
    page.locator("#visitor").wait_for()
    assert "O percurso" in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the gallery is wider than a phone"
    page.get_by_role("button", name="Sair").click()
    page.get_by_label("Password of the room").wait_for()
    assert page.goto(f"{address}/distill/").url.startswith(f"{address}/login")
    context.close()
