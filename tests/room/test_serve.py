"""What may be served, with which passwords; the gallery and marimo's own files. No notebook is opened here."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from asking import Behind, Browser

from distill_core import room, serve
from distill_core.errors import ConfigError
from distill_core.paths import apps_dir
from distill_core.room import Policy
from distill_core.room.gallery import WORDS, Front, app_files
from distill_core.room.login import Passwords
from distill_core.room.policy import read_policy
from distill_core.serve import PASSWORD, PRESENTER, ServeOptions, read_passwords


def test_passwords_come_from_files_standard_input_or_an_environment_that_forgets_them(tmp_path, monkeypatch):
    assert read_passwords(None, None) is None
    monkeypatch.setenv(PASSWORD, "from-the-environment")
    monkeypatch.setenv(PRESENTER, "the-presenters-own")
    assert read_passwords(None, None) == Passwords("from-the-environment", "the-presenters-own")
    assert PASSWORD not in os.environ and PRESENTER not in os.environ
    file = tmp_path / "password"
    file.write_text("from a file\nnot this line\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("from-standard-input\n"))
    assert read_passwords(str(file), "-") == Passwords("from a file", "from-standard-input")


@pytest.mark.parametrize(
    ("room_words", "presenter_words", "match"),
    [
        ("short", None, "5 characters"),
        ("", None, "0 characters"),
        ("long enough", "short", "5 characters"),
        ("the same one", "the same one", "the same"),
    ],
)
def test_bad_passwords_are_refused(tmp_path, room_words, presenter_words, match):
    files = []
    for name, words in (("room", room_words), ("presenter", presenter_words)):
        if words is not None:
            (tmp_path / name).write_text(words)
        files.append(str(tmp_path / name) if words is not None else None)
    with pytest.raises(ConfigError, match=match):
        read_passwords(*files)
    with pytest.raises(ConfigError, match="no such file"):
        read_passwords(str(tmp_path / "none"), None)


def test_a_presenter_needs_a_room(monkeypatch):
    monkeypatch.setenv(PRESENTER, "the-presenters-own")
    with pytest.raises(ConfigError, match="none for the room"):
        read_passwords(None, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.test"])
def test_no_open_door_on_the_network(host):
    with pytest.raises(ConfigError, match=f"--host {host} would open this machine .* without a password"):
        serve.build(ServeOptions(host=host))
    with pytest.raises(ConfigError, match="a room needs a password"):
        serve.build(ServeOptions(host=host, is_room=True))


def test_a_password_is_no_argument(distill_home):
    done = subprocess.run(
        [sys.executable, "-m", "distill_core", "serve", "--room", "--password", "x" * 9],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "unrecognized arguments: --password" in done.stderr


def test_a_room_writes_its_policy_where_every_process_finds_it(tmp_path, monkeypatch, distill_home):
    monkeypatch.setenv(room.POLICY_VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "rules.json").write_text(json.dumps({"allowed_folders": ["texts"], "max_active_runs": 2}))
    serve.build(ServeOptions(is_room=True, passwords=Passwords("long enough"), policy_file=tmp_path / "rules.json"))
    monkeypatch.chdir("/")  # a run's process may stand elsewhere
    assert room.policy() == Policy(allowed_folders=(tmp_path / "texts",), max_active_runs=2)
    room.check_path(tmp_path / "texts" / "a.txt")


def test_every_app_has_its_card_here_and_in_marimos_own_gallery():
    """`marimo run apps/` takes title and line from the block at the top of a notebook, `serve` from gallery.py: the same words."""
    names = list(app_files(apps_dir()))
    assert names[0] == "distill"
    for name in names:
        block = re.match(r"# /// script\n((?:#.*\n)*?)# ///\n", (apps_dir() / f"{name}.py").read_text())
        assert block, f"apps/{name}.py does not begin with a block of its title and line, as apps/distill.py does"
        said = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))["tool"]["marimo"]["opengraph"]
        assert (said["title"], said["description"]) == WORDS[name]


@pytest.fixture
def front(tmp_path):
    (tmp_path / "static" / "assets").mkdir(parents=True)
    (tmp_path / "secret.js").write_text("secret")
    (tmp_path / "static" / "assets" / "index-a1.js").write_text("let x = 1;" * 200)
    behind = Behind()
    return Browser(Front(behind, names=["distill", "memory"], static_folder=tmp_path / "static"), behind)


def test_the_gallery(front):
    page = front.ask("/?lang=pt")
    assert page.status == 200 and page.seen is None
    assert 'href="/distill/?lang=pt"' in page.body and "O percurso" in page.body and "Compare runs" not in page.body
    assert 'href="/memory/"' in front.ask("/").body
    assert front.ask("/distill/").seen is not None


def test_static_files_are_small_and_kept(front, tmp_path):
    plain = front.ask("/static/assets/index-a1.js")
    assert plain.body == "let x = 1;" * 200
    assert "immutable" in plain.header("cache-control") and plain.header("content-type") == "text/javascript"
    sent = []

    async def send(message):
        sent.append(message)

    import asyncio

    scope = {"type": "http", "method": "GET", "path": "/static/assets/index-a1.js", "headers": [(b"accept-encoding", b"br, gzip")]}
    asyncio.run(front.app(scope, None, send))
    assert gzip.decompress(sent[1]["body"]).decode() == plain.body
    assert len(sent[1]["body"]) < 100
    for path in ("/static/../secret.js", "/static/%2e%2e/secret.js", "/static//secret.js", f"/static/{tmp_path}/secret.js", "/static/"):
        assert front.ask(path).status == 404


def test_the_address_that_is_printed_can_be_typed_elsewhere(monkeypatch, a_room):
    assert [serve.reachable_name(host) for host in ("127.0.0.1", "192.168.1.5", "fe80::1")] == ["localhost", "192.168.1.5", "[fe80::1]"]
    assert serve.reachable_name("0.0.0.0") not in ("", "0.0.0.0")
    monkeypatch.setattr(serve.socket, "socket", lambda *_: (_ for _ in ()).throw(OSError("no network")))
    monkeypatch.setattr(serve.socket, "gethostname", lambda: "desk")
    assert serve.reachable_name("::") == "desk"
    a_room()
    assert "http://desk:1/?lang=pt" in serve._welcome(ServeOptions(is_room=True), "http://desk:1/")


def test_what_is_wrong_with_a_file_is_said_in_plain_words(tmp_path):
    with pytest.raises(ConfigError, match="none.txt: no such file. Write the password"):
        read_passwords(str(tmp_path / "none.txt"), None)
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"max_active_run": 2}))
    with pytest.raises(ConfigError, match="no rule 'max_active_run'. Did you mean 'max_active_runs'?"):
        read_policy(path)
