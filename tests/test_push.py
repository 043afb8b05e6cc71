"""An exported student goes to the Hub, private, with this machine's own token; every refusal is named. The Hub is a stand-in here."""

import base64
import json
import os
import re
import subprocess
import sys

import pytest

from distill_core import push
from distill_core.errors import ConfigError, ModelError

from .hub_stand_in import COMMIT, Handler, hub_with

TOKEN = "hf_a_token_for_the_stand_in"


class Receiver(Handler):
    """A Hub that takes repositories and commits, for whoever shows the token; repos: id -> {'private': bool, 'files': {path: bytes}}."""

    def do_GET(self):  # noqa: N802 - http.server's name
        name = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)", self.path.partition("?")[0])
        if not name or name[1] not in self.repos:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        info = {"_id": "0", "id": name[1], "modelId": name[1], "sha": COMMIT, "private": self.repos[name[1]]["private"], "siblings": []}
        return self.send(200, json.dumps(info | {"tags": [], "downloads": 0, "likes": 0}).encode())

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        self.asked.append(f"POST {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send(401, b"{}")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.repos:
                return self.send(409, json.dumps({"url": f"http://{self.headers['Host']}/{name}"}).encode())
            self.repos[name] = {"private": asked.get("private") is True or asked.get("visibility") == "private", "files": {}}
            return self.send(200, json.dumps({"url": f"http://{self.headers['Host']}/{name}"}).encode())
        if path.endswith("/preupload/main"):
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self.send(200, json.dumps({"files": files}).encode())
        if commit := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.repos[commit[1]]["files"][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self.send(
                200,
                json.dumps(
                    {"success": True, "commitUrl": f"http://{self.headers['Host']}/{commit[1]}/commit/{COMMIT}", "commitOid": COMMIT}
                ).encode(),
            )
        return self.send(200, b"{}")  # the card's front matter is looked at before it is taken


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "student"
    made.mkdir()
    for name, text in {"config.json": "{}", "model.safetensors": "weights", "README.md": "---\nlicense: mit\n---\n# card\n"}.items():
        (made / name).write_text(text)
    return made


def send(tmp_path, folder, repo, *options, **environment):
    """`distill_core push` in a process of its own: the Hub's address is read when huggingface_hub is imported."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env = {**clean, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", **environment}
    command = [sys.executable, "-m", "distill_core", "push", str(folder), repo, *options]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)


def test_the_folder_arrives_whole_and_private_and_only_there(tmp_path, folder):
    repos = {"me/open": {"private": False, "files": {}}}
    with hub_with(repos, Receiver) as (address, asked):
        login = {"HF_ENDPOINT": address, "HF_TOKEN": TOKEN}
        done = send(tmp_path, folder, "me/student", **login)
        assert (done.returncode, done.stderr) == (0, "")
        assert "me/student" in done.stdout
        assert repos["me/student"]["private"] is True
        assert repos["me/student"]["files"] == {path.name: path.read_bytes() for path in folder.iterdir()}
        (folder / "README.md").write_text("# again")
        assert send(tmp_path, folder, "me/student", **login).returncode == 0, "one's own private repository can be brought up to date"
        assert repos["me/student"]["files"]["README.md"] == b"# again"

        public = send(tmp_path, folder, "me/open", **login)
        assert public.returncode == 2
        assert "everyone can read it: nothing was sent" in public.stderr
        assert repos["me/open"]["files"] == {}
        assert send(tmp_path, folder, "me/open", "--public", **login).returncode == 0

        wrong = send(tmp_path, folder, "me/other", HF_ENDPOINT=address, HF_TOKEN="hf_wrong")
        assert (wrong.returncode, "the token is not accepted" in wrong.stderr) == (2, True)
        assert not any(TOKEN in line for line in asked)
    dead = send(tmp_path, folder, "me/student", HF_ENDPOINT="http://127.0.0.1:9", HF_TOKEN=TOKEN)
    assert (dead.returncode, "cannot be reached" in dead.stderr) == (2, True)


def test_without_a_network_or_a_token_nothing_is_tried(monkeypatch, folder):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="Offline mode is set"):
        push.push(folder, "me/student")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ModelError, match="No token on this machine"):
        push.push(folder, "me/student")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "a token")
    assert push.refusal() == ""


@pytest.mark.parametrize(
    "repo", ["", "student", "me/", "/student", "me/../x", "me/a b", "a/b/c", "me/x.git", "https://hub/me/x", "-x/y", "me/a--b"]
)
def test_what_is_no_repository_is_refused_by_name(folder, repo):
    with pytest.raises(ConfigError, match="is no repository on the Hub"):
        push.push(folder, repo)


def test_only_an_exported_student_is_sent(tmp_path):
    with pytest.raises(ModelError, match="holds no exported student"):
        push.push(tmp_path, "me/student")
