"""The whole walk in a real browser, pressing only what a newcomer presses; real capture, real training, on the built-in teacher."""

import os
import re
import signal
import subprocess
import sys
from urllib.parse import parse_qs, urlparse

import psutil
import pytest

from distill_core import paths
from distill_core.runs import list_runs, open_run

pytestmark = pytest.mark.browser

APP = paths.apps_dir() / "distill.py"
LOADS = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = AutoTokenizer.from_pretrained(sys.argv[1])("Once upon a time", return_tensors="pt")
print(model(**ids).logits.shape[-1])
"""


@pytest.fixture
def visit(chromium):
    """visit(address) -> a page in a browser of its own; whatever it asked of other machines fails the test."""
    contexts, elsewhere = [], []

    def open_page(address: str, **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 1000}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on(
            "request", lambda request: elsewhere.append(request.url) if urlparse(request.url).hostname not in ("127.0.0.1", None) else None
        )
        # a page that is left for another address drops what it was asking for
        page.on("pageerror", lambda error: elsewhere.append(str(error)) if str(error) != "Failed to fetch" else None)
        page.goto(address)
        page.locator("#step-home").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert elsewhere == []


def address_of(page) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlparse(page.url).query).items()}


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def says(page, words, timeout_s=240):
    """Wait until the bar at the bottom tells the visitor this."""
    page.locator(".walk-bar [role=status]", has_text=re.compile(words)).wait_for(timeout=1000 * timeout_s)


def fill(page, label, value):
    """Type into the number field with this label."""
    field = page.locator("marimo-number", has_text=label).locator("input")
    field.fill(value)
    field.press("Enter")


def shorten(page, label, presses):
    """Move a slider down by so many stops, with the keyboard."""
    slider = page.locator("marimo-slider", has_text=label).get_by_role("slider")
    slider.focus()
    for _ in range(presses):
        slider.press("ArrowLeft")


def last_step(page) -> int:
    return int(page.locator(".panel[data-is1]").get_attribute("data-laststep"))


def test_from_nothing_to_an_exported_student(visit, serve, home):
    address = serve(APP)
    page = visit(address)
    says(page, "Press Capture")
    shorten(page, "Windows to train on", 3)  # 400 -> 50: real, but short
    press(page, "Capture")
    says(page, "The teacher is reading|Press Train")  # a quiet machine reads 50 windows between two looks at the page
    assert set(address_of(page)) & {"capture", "cache"}
    says(page, "Press Train")
    assert "cache" in address_of(page)

    fill(page, "Steps", "40")
    press(page, "Train")
    says(page, "The student is learning")
    names = address_of(page)
    assert {"run", "baseline"} <= set(names)
    page.locator(".panel[data-is1][data-is0=running]").wait_for()
    page.wait_for_selector(".panel[data-is1]:not([data-laststep='0'])")

    # mid-training: a reload, and a second browser, find the run with its whole history
    seen = last_step(page)
    page.reload()
    page.wait_for_selector(".panel[data-is1][data-firststep='1']")
    assert last_step(page) >= seen
    assert address_of(page) == names
    assert page.get_by_role("button", name="Train", exact=True).count() == 0, "a training could be started twice"
    second = visit(page.url)
    second.wait_for_selector(".panel[data-is1][data-firststep='1']")
    assert second.get_by_role("button", name=re.compile("Stop, keep the student")).is_visible()

    says(page, "Press Judge")
    assert open_run(names["run"]).config().train.max_steps == 40
    assert open_run(names["run"]).config().text.num_windows == 50
    assert open_run(names["baseline"]).config().loss.kl_weight == 0
    press(page, "Judge")
    says(page, "Press Export")
    page.get_by_text("equal-budget hard-label twin on held-out text").wait_for()
    assert "distilled student" in page.locator(".walk-table").inner_text()
    press(page, "Export")
    page.get_by_text("Writing the folder").wait_for()  # two seconds and more: it says that it is at work
    says(page, "All nine steps are done")
    folder = home / "exports" / names["run"]
    assert (folder / "model.safetensors").exists()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run([sys.executable, "-c", LOADS, str(folder)], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "2048"

    # tomorrow: the address alone shows all of it again
    third = visit(page.url)
    says(third, "All nine steps are done")
    assert [run.status().kind for run in list_runs()].count("train") == 2, "a click started more than one run"

    # a killed worker is shown as failed, with its reason; its twin is next
    fill(third, "Steps", "400")
    press(third, "Train")
    third.wait_for_selector(".panel[data-is0=running]:not([data-laststep='0'])")
    again = address_of(third)
    assert again["run"] != names["run"]
    victim = psutil.Process(open_run(again["run"]).status().pid)
    victim.send_signal(signal.SIGKILL)
    third.get_by_role("alert").filter(has_text="gone without a last word").wait_for()
    third.wait_for_selector(".panel[data-is1=running]")

    # a phone at the plain address, in Portuguese, finds that work, and stops it
    phone = visit(f"{address}/?lang=pt", viewport={"width": 390, "height": 844}, has_touch=True)
    says(phone, "Prima Capturar")
    assert phone.locator(".walk-earlier li").count() == 2, "each training is one line with its twin"
    phone.locator(".walk-earlier li", has_text="a trabalhar").get_by_role("link", name=again["run"]).click()
    phone.wait_for_url(re.compile(f"run={again['run']}"))
    says(phone, "O aluno está a aprender")
    assert address_of(phone) == {name: again[name] for name in ("cache", "run", "baseline")} | {"lang": "pt"}
    phone.wait_for_selector(".panel[data-is1=running]")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    press(phone, "Parar, guardar o aluno como está")
    third.wait_for_selector(".panel[data-is1=stopped]")
    press(third, "Go on from the last checkpoint")
    third.wait_for_selector(".panel[data-is0=running]")
    press(third, "Stop, keep the student as it is")
    says(third, "Press Judge")

    # and one click turns a finished walk into Portuguese, at the same address
    before = address_of(page)
    page.get_by_role("link", name="Português").click()
    says(page, "Os nove passos estão feitos")
    assert address_of(page) == before | {"lang": "pt"}
    page.get_by_text(re.compile("O aluno destilado (é|está|prevê|NÃO)")).first.wait_for()


def test_phone_width_keyboard_and_wrong_address(visit, serve):
    address = serve(APP)
    page = visit(f"{address}/?run=no-such-run&lang=pt", color_scheme="dark", viewport={"width": 390, "height": 844})
    page.get_by_text("no run 'no-such-run'").wait_for()
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    assert page.locator("section[lang=pt]").count() == 9
    says(page, "Prima Capturar")
    page.locator(".walk-bar li.next a").click()
    page.wait_for_function("Math.abs(document.querySelector('#step-cache')?.getBoundingClientRect().top ?? 1e4) < 200")
    why = page.locator("section", has=page.locator("#step-cache")).locator(".walk-why summary", has_text="Massa guardada")
    why.focus()
    page.keyboard.press("Enter")  # what a word means is reached without a mouse
    page.get_by_text("A soma da probabilidade").first.wait_for()
    page.locator("summary", has_text="Uma aula de 45 minutos").focus()
    page.keyboard.press("Space")
    page.get_by_text("Três exercícios").wait_for()
    assert not page.get_by_text("O gémeo volta para trás").is_visible(), "answers wait until they are asked for"
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    page.get_by_role("link", name="English").click()
    says(page, "Press Capture")
    assert address_of(page) == {"run": "no-such-run", "lang": "en"}
    page.get_by_text("Hugging Face", exact=True).click()
    page.get_by_text("Name a model").wait_for()
    assert page.locator("#step-student").count() == 1, "the page lost its steps when the teacher was not named"


def test_edit_mode_opens_ready_to_use(visit, serve):
    page = visit(serve(APP, mode="edit"))
    says(page, "Press Capture")
    assert page.get_by_role("button", name="Capture", exact=True).is_visible()


def test_the_language_switch_keeps_what_was_changed(serve, visit):
    page = visit(serve(APP))
    shorten(page, "Windows to train on", 3)  # 400 -> 50
    page.locator("nav.language a[hreflang=pt][href*='num_windows%22%3A50']").click()  # on a slow machine it has 200 first, then 100
    page.locator("marimo-slider", has_text="Janelas para treinar").get_by_text("50", exact=True).wait_for()
    page.wait_for_function("!location.search.includes('settings')")
    assert address_of(page) == {"lang": "pt"}, "the controls have them now: an old address would bring old ones back"
