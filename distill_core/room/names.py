"""The names of a room's visitors, and the key that signs their cookies: both kept on disk, for a restart must not change owners."""

import hashlib
import hmac
import json
import os
import secrets
import threading
from pathlib import Path

from ..errors import RoomError
from ..paths import home, publish

MAX_NAMES = 2000
SCRYPT = {"n": 2**12, "r": 8, "p": 1}
"""About 20 ms to check one word (RFC 7914): guessing through the login is slower still, for wrong words are counted there."""


def room_folder() -> Path:
    """Where the server keeps what is not a visitor's business."""
    return home() / "room"


def signing_key() -> bytes:
    """The secret of this machine's room, made at the first start, readable by its owner only."""
    path = room_folder() / "key"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return bytes.fromhex(path.read_text(encoding="ascii"))
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return bytes.fromhex(path.read_text(encoding="ascii"))


class Names:
    """Who has which name: a name belongs to the browser that took it first, or to whoever knows the word chosen with it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or room_folder() / "names.json"
        self._lock = threading.Lock()
        self._words: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}

    def take(self, name: str, *, word: str, is_known_browser: bool) -> None:
        """Give the name to who asks. Raises RoomError if it is somebody else's: another browser's, and the word is not the one chosen."""
        key = name.casefold()
        with self._lock:
            stored = self._words.get(key)
            if stored is None and len(self._words) >= MAX_NAMES:
                raise RoomError(f"the room has {MAX_NAMES} names already. Ask the presenter to start a new one.")
            if stored is not None and not is_known_browser and not _matches(word, stored):
                raise RoomError(f"the name {name} is taken")
            if stored is None or (is_known_browser and word and not _matches(word, stored)):
                self._words[key] = _hashed(word) if word else stored or ""
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                publish(self._path, json.dumps(self._words, indent=1, ensure_ascii=False) + "\n")


def _hashed(word: str) -> str:
    salt = secrets.token_bytes(16)
    return f"{salt.hex()}:{hashlib.scrypt(word.encode(), salt=salt, **SCRYPT).hex()}"


def _matches(word: str, stored: str) -> bool:
    """Whether the word is the one that was chosen; where none was chosen, no word is."""
    if not stored or not word:
        return False
    salt, _, digest = stored.partition(":")
    return hmac.compare_digest(hashlib.scrypt(word.encode(), salt=bytes.fromhex(salt), **SCRYPT).hex(), digest)
