"""The login of a room: who gets in, for how long, under which name; over http and websockets alike."""

import time

import pytest
from asking import Behind, Browser

from distill_core.room.http import LOCAL_NAMES, OwnPagesOnly
from distill_core.room.login import SESSION, SESSION_S, WRONG_S, WRONG_TRIES, Door, Passwords, WrongTries
from distill_core.room.names import Names, signing_key

ROOM = Passwords("the room's own", "the presenter's")


@pytest.fixture
def behind():
    return Behind()


@pytest.fixture
def door(behind):
    return OwnPagesOnly(Door(behind, passwords=ROOM, key=b"k" * 32, names=Names()))


@pytest.fixture
def browser(door, behind):
    return Browser(door, behind)


def user(answer):
    return answer.seen["user"]["username"], answer.seen["meta"]["is_presenter"]


def test_without_a_cookie_nothing_is_reached(browser):
    page = browser.ask("/distill/?run=r1&lang=pt")
    assert (page.status, page.seen) == (303, None)
    assert page.header("location") == "/login?next=%2Fdistill%2F%3Frun%3Dr1%26lang%3Dpt&lang=pt"
    api = browser.ask("/distill/api/kernel/set_ui_element_value", body=b"{}", headers={"accept": "application/json"})
    assert (api.status, api.seen) == (401, None)
    socket = browser.ask("/distill/ws", kind="websocket")
    assert (socket.status, socket.seen) == (403, None)
    assert browser.ask("/health").status == 200


def test_the_right_password_opens_http_and_websockets(browser):
    answer = browser.log_in(next="/distill/?run=r1")
    assert (answer.status, answer.header("location")) == (303, "/distill/?run=r1")
    for cookie in answer.cookies.values():
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie
    page = browser.ask("/distill/")
    assert (page.body, user(page)) == ("hello", ("Ada", False))
    socket = browser.ask("/distill/ws", kind="websocket", headers={"origin": "http://room.test"})
    assert (socket.status, user(socket)) == (101, ("Ada", False))
    for name in ("x-content-type-options", "content-security-policy", "x-frame-options", "referrer-policy"):
        assert page.header(name)


def test_wrong_passwords(browser):
    for wrong in ("", "the room's ow", "the room's own ", "The room's own", "\udcff"):
        answer = browser.ask("/login", form={"password": wrong.encode("utf-8", "surrogateescape"), "name": "Ada"})
        assert (answer.status, answer.cookies, answer.seen) == (403, {}, None)
        assert "not the password" in answer.body
    assert browser.ask("/").status == 303


def test_the_presenter_and_a_room_without_one(browser, behind):
    browser.log_in("the presenter's", "Grace")
    assert user(browser.ask("/")) == ("Grace", True)
    assert Passwords("x" * 8).role_of("") is None


def test_forged_and_foreign_cookies(door, behind, browser):
    browser.log_in()
    good = browser.cookies[SESSION]
    browser.log_in("the presenter's", "Grace")
    presenters = browser.cookies[SESSION]
    mixed = presenters.split(".")[0] + "." + ".".join(good.split(".")[1:])  # the presenter's words under a visitor's signature
    other_key = Browser(OwnPagesOnly(Door(behind, passwords=ROOM, key=b"o" * 32, names=Names())), behind)
    other_key.log_in(name="Mallory")
    new_password = Browser(OwnPagesOnly(Door(behind, passwords=Passwords("another one"), key=b"k" * 32, names=Names())), behind)
    new_password.cookies = {SESSION: good}
    assert new_password.ask("/").status == 303, "a changed password shows everybody the login again"
    turned = good[:-8] + ("A" if good[-8] != "A" else "B") + good[-7:]
    for forged in (turned, mixed, other_key.cookies[SESSION], "", "a.b.c", '"', good[:-1], "é"):
        thief = Browser(door, behind)
        thief.cookies = {SESSION: forged}
        assert thief.ask("/").status == 303, forged
        assert thief.ask("/distill/ws", kind="websocket").status == 403, forged


def test_a_cookie_ends(browser, monkeypatch):
    browser.log_in()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + SESSION_S - 5)
    assert browser.ask("/").status == 200
    monkeypatch.setattr(time, "time", lambda: now + SESSION_S + 5)
    assert browser.ask("/").status == 303
    assert browser.ask("/distill/ws", kind="websocket").status == 403
    monkeypatch.setattr(time, "time", lambda: now)
    assert browser.ask("/logout", method="POST").header("location") == "/login"
    assert browser.ask("/").status == 303
    assert 'value="Ada"' in browser.ask("/login").body, "the browser still knows its name"
    assert browser.log_in().status == 303


def test_guessing_is_slow(door, behind, browser):
    for _ in range(WRONG_TRIES):
        assert browser.log_in("a guess").status == 403
    answer = browser.log_in()
    assert (answer.status, answer.cookies) == (429, {}), "the right password does not help either, or guessing would go on"
    assert "Wait" in answer.body
    assert Browser(door, behind, address="10.0.0.2").log_in(name="Bob").status == 303


def test_a_minute_later():
    now = [0.0]
    wrong = WrongTries(lambda: now[0])
    for second in range(WRONG_TRIES):
        assert wrong.wait_s("a") == 0
        now[0] = float(second)
        wrong.add("a")
    assert wrong.wait_s("a") == pytest.approx(WRONG_S - now[0])
    assert wrong.wait_s("b") == 0
    now[0] = WRONG_S + 0.5  # the first try counts no more
    assert wrong.wait_s("a") == 0
    wrong.add("a")
    assert wrong.wait_s("a") == pytest.approx(0.5)


def test_https_marks_cookies_secure(door, behind):
    answer = Browser(door, behind, scheme="https").log_in()
    assert all("; Secure" in cookie for cookie in answer.cookies.values())
    told = OwnPagesOnly(Door(behind, passwords=ROOM, key=b"k" * 32, names=Names(), is_https=True))
    assert "; Secure" in Browser(told, behind).log_in(name="Bob").cookies[SESSION]


@pytest.mark.parametrize(
    "target", ["//evil.test/", "https://evil.test/", "/\\evil.test", "javascript:alert(1)", "/a\r\nset-cookie: x=1", "", "evil"]
)
def test_a_login_leads_nowhere_else(browser, target):
    assert browser.log_in(next=target).header("location") == "/"


def test_names_belong_to_their_browser_or_their_word(door, behind, browser):
    assert browser.log_in(name="Ana").status == 303
    other = Browser(door, behind)
    answer = other.log_in(name="ANA")
    assert (answer.status, answer.cookies) == (409, {})
    assert "ANA already" in answer.body
    assert browser.log_in(name="Ana", word="cereja").status == 303, "the same browser may come again, and choose a word"
    assert other.log_in(name="Ana", word="morango").status == 409
    assert other.log_in(name="ana", word="cereja").status == 303
    assert browser.log_in(name="Zé").status == 303, "another name is free"
    restarted = Browser(OwnPagesOnly(Door(behind, passwords=ROOM, key=b"k" * 32, names=Names())), behind)
    assert restarted.log_in(name="Ana", word="morango").status == 409, "names outlive the server"
    assert restarted.log_in(name="<script>").status == 400


def test_the_login_page_escapes_and_speaks_portuguese(browser):
    answer = browser.ask("/login", form={"password": "wrong", "name": '"><script>x</script>', "lang": "pt", "next": '/"><b>'})
    assert "<script>" not in answer.body and "/&quot;&gt;&lt;b&gt;" in answer.body
    assert "Essa não é a palavra-passe." in answer.body
    assert '<html lang="pt">' in browser.ask("/login?lang=pt").body
    assert "default-src 'none'" in browser.ask("/login").header("content-security-policy")


def test_other_sites_pages_are_refused(browser):
    browser.log_in()
    evil = {"origin": "https://evil.test"}
    assert browser.ask("/distill/ws", kind="websocket", headers=evil).status == 403
    assert browser.ask("/distill/api/x", body=b"{}", headers=evil).status == 403
    assert browser.ask("/distill/api/x", body=b"{}", headers={"origin": "null"}).status == 403
    assert browser.ask("/distill/", headers=evil).status == 200, "a link from elsewhere may lead here"


def test_bodies_have_a_size(browser):
    browser.log_in()
    assert browser.ask("/distill/api/x", body=b"{}").status == 200
    assert browser.ask("/distill/api/x", body=b"{}", headers={"content-length": "1000001"}).status == 413
    assert browser.ask("/distill/api/x", body=b"{}", headers={"content-length": "", "transfer-encoding": "chunked"}).status == 411
    assert browser.ask("/login", body=b"password=" + b"x" * 9000).status == 413


def test_without_a_password_only_this_machine_is_answered(behind):
    home = Browser(OwnPagesOnly(behind, hosts=LOCAL_NAMES), behind)
    for host in ("localhost:2718", "127.0.0.1", "[::1]:2718"):
        assert home.ask("/", headers={"host": host}).status == 200
    for host in ("evil.test", "localhost.evil.test:2718", "10.0.0.1", ""):
        assert home.ask("/", headers={"host": host}).status == 403
        assert home.ask("/distill/ws", kind="websocket", headers={"host": host}).status == 403


def test_the_key_is_made_once_and_for_its_owner_only(distill_home):
    assert signing_key() == signing_key()
    assert (distill_home / "room" / "key").stat().st_mode & 0o077 == 0
