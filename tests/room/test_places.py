"""Files outside a room's folders are refused wherever a visitor can name one: previews, facts, submitted work."""

import pytest

from distill_core import catalog, corpus, jobs, room
from distill_core.config import DistillConfig, from_dict
from distill_core.errors import ConfigError, ModelError, RoomError
from distill_core.paths import home
from distill_core.runs import list_runs


@pytest.fixture
def folders(tmp_path, a_room):
    """(open, closed): a room that opens the first of two folders; each holds a text, and `open` a link to the text of the other."""
    opened, closed = tmp_path / "open", tmp_path / "closed"
    for folder in (opened, closed):
        folder.mkdir()
        (folder / "text.txt").write_text("one two three four\n\nfive six seven eight\n\nnine ten eleven twelve\n")
    (opened / "link.txt").symlink_to(closed / "text.txt")
    a_room(allowed_folders=[opened])
    return opened, closed


def outside_ways(folders):
    opened, closed = folders
    return [
        closed / "text.txt",
        opened / ".." / "closed" / "text.txt",
        opened / "link.txt",
        closed / "none.txt",
        "~/text.txt",
        "/etc/passwd",
    ]


def test_inside_is_read(folders):
    opened, _ = folders
    table = corpus.preview(from_dict({"text": {"source": str(opened / "text.txt")}}).text, corpus.builtin_tokenizer())
    assert "one" in "".join(table["token"])


@pytest.mark.parametrize("way", range(6))
def test_outside_is_refused_in_previews_and_submits(folders, way):
    path = str(outside_ways(folders)[way])
    config = from_dict({"text": {"source": path}})
    with pytest.raises(RoomError, match="outside the folders"):
        corpus.preview(config.text, corpus.builtin_tokenizer())
    with pytest.raises(RoomError, match="text.source: .*outside the folders"):
        jobs.submit_capture(config, owner="Ada")
    assert list_runs() == []


@pytest.mark.parametrize("path", ["/", "..", ".", "closed", "/models/x.gguf", "models/../../x", "a/b/c", "c:\\models", "owner/..", "~root"])
def test_models_outside_are_refused(folders, path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RoomError, match="outside the folders|not a path"):
        catalog.facts(path)
    student = {"init": "pretrained", "model": path}
    with pytest.raises(RoomError, match=r"student\.model"):
        jobs.submit_training(from_dict({"student": student}), "any", owner="Ada")


def test_a_refusal_does_not_tell_whether_a_file_is_there(folders):
    _, closed = folders
    words = []
    for name in ("text.txt", "none.txt"):
        with pytest.raises(RoomError) as caught:
            room.check_path(closed / name)
        words.append(str(caught.value).replace(name, "NAME"))
    assert words[0] == words[1]


def test_other_fields_hold_no_paths(folders):
    config = from_dict({"teacher": {"model": "owner/name", "revision": "../../../etc"}})
    with pytest.raises(RoomError, match=r"teacher\.revision"):
        room.check_config(config)


def test_ids_pass_and_what_the_room_made_too(folders):
    for source in ("builtin", "Qwen/Qwen3-8B", "gpt2", str(home() / "exports" / "mine"), str(home() / "runs" / "r" / "model")):
        room.check_source(source)
    with pytest.raises(RoomError):
        room.check_source(str(home() / "room" / "secret"))
    with pytest.raises(RoomError):
        room.check_source(str(home() / "exports" / ".." / "room"))


def test_at_home_all_is_open(tmp_path):
    room.check_path("/etc/passwd")
    room.check_config(from_dict({"text": {"source": "/etc/passwd"}}))
    with pytest.raises(ModelError, match="no such folder"):
        catalog.facts("/no/such/model")


def test_large_downloads_are_refused(a_room):
    room.check_download("owner/name", 10**12)
    a_room(max_download_gb=2)
    room.check_download("owner/name", 2 * 10**9)
    with pytest.raises(RoomError, match="2.1 GB to download; this room takes up to 2 GB"):
        room.check_download("owner/name", 2_100_000_000)


def test_a_broken_policy_is_no_free_house(a_room, tmp_path):
    a_room(max_active_runs=0)
    with pytest.raises(ConfigError, match="max_active_runs"):
        room.check_path("/etc/passwd")
    a_room(disks=3)
    with pytest.raises(ConfigError, match="no rule 'disks'. Did you mean 'disk_gb'"):
        room.policy()
    a_room(allowed_folders=[tmp_path / "gone"])
    with pytest.raises(ConfigError, match="no folder .*gone"):
        room.policy()
    (tmp_path / "policy.json").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        room.policy()


def test_every_word_of_a_config_is_looked_at(folders):
    """A field that is added later and holds a path is checked without being named."""
    config = DistillConfig()
    object.__setattr__(config.train, "name", "x/../../y")
    with pytest.raises(RoomError, match=r"train\.name"):
        room.check_config(config)
