"""The line above every app: where the other pages are, and in a room who is there and the way out."""

import re

import pytest

from distill_core import room
from distill_core.language import in_language
from distill_core.room import POLICY_VARIABLE, Policy, address_of_page, page_top
from distill_core.room.policy import write_policy


def request_of(path, **more):
    return {"url": {"path": path}} | more


@pytest.mark.parametrize(
    ("path", "query", "address"),
    [
        ("/runs/ws", {"lang": "pt"}, "../distill/?run=s+1&lang=pt"),
        ("/distil/at/runs/ws", {}, "../distill/?run=s+1"),  # behind a proxy that gives the server a folder
        ("/ws", {"file": "apps/runs.py", "compare": "x"}, "?file=apps%2Fdistill.py&run=s+1"),
        ("/ws", {"file": "runs.py"}, "?file=distill.py&run=s+1"),
        ("/ws", {}, None),
        ("/ws", {"file": "other.py"}, None),
        ("/other/ws", {}, None),
    ],
)
def test_the_walk_is_found_beside_this_page(path, query, address):
    assert address_of_page("distill", request_of(path), query, run="s 1") == address


def test_all_pages_are_one_click_away_where_they_are_served_together():
    text = page_top(request_of("/memory/ws"), {"lang": "pt", "x": "<b>"}, say=in_language("pt"))
    assert re.findall(r'href="(\.\.[^"]*)"', text) == [
        f"../{name}/?lang=pt" for name in ("distill", "playground", "memory", "runs", "techniques")
    ]
    assert "aria-current=page>Para onde vai a memória<" in text and "Comparar treinos" in text
    assert "<b>" not in text and "logout" not in text


@pytest.mark.parametrize("request_", [None, request_of("/ws")])
def test_alone_there_is_only_the_language(request_):
    text = page_top(request_, {})
    assert 'class="pages"' not in text and "Português" in text


def test_in_a_room_the_visitor_sees_who_they_are_and_the_way_out(tmp_path, monkeypatch):
    write_policy(tmp_path / "policy.json", Policy())
    monkeypatch.setenv(POLICY_VARIABLE, str(tmp_path / "policy.json"))
    user = {"is_authenticated": True, "username": "Ana"}
    text = page_top(request_of("/runs/ws", user=user, meta={"is_presenter": True}), {})
    assert "Ana (presenter)" in text and '<form method="post" action="../logout">' in text
    assert room.visitor_of(request_of("/runs/ws")).name == "" and "logout" not in page_top(request_of("/runs/ws"), {})
