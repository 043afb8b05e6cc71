"""The apps as one web server: on this machine for one person, or as a room, behind a password, for many.

One process serves everything; a visitor's page is a thread in it. Work runs in processes of its own, so the server holds no model.
"""

import argparse
import contextlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import room
from .errors import ConfigError
from .paths import apps_dir, home
from .room.gallery import Front, app_files
from .room.http import LOCAL_NAMES, App, OwnPagesOnly
from .room.login import Door, Passwords
from .room.names import Names, room_folder, signing_key
from .room.policy import Policy, read_policy, write_policy

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
ELSEWHERE = "192.0.2.1"
"""An address that is nobody's (RFC 5737, for documentation)."""
PASSWORD, PRESENTER = "DISTILL_PASSWORD", "DISTILL_PRESENTER_PASSWORD"
SHORTEST_PASSWORD = 8
SESSION_TTL_S = 3600
"""How long a page that lost its connection finds its settings again: a phone in a pocket, a walk to another room."""
WEBSOCKET_BYTES = 1_000_000
"""Largest message from a browser."""
STATIC = "/static"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `python -m distill_core serve` was asked for."""

    host: str = "127.0.0.1"
    port: int = 2718
    is_room: bool = False
    policy_file: Path | None = None
    passwords: Passwords | None = None
    proxy: str = "127.0.0.1"
    """Address of the proxy in front, whose word on a visitor's address and on https is taken."""
    is_https: bool = False
    """Visitors come by https, through a proxy that does not say so: cookies are marked Secure."""
    opens_browser: bool = False


def serve_command(options: argparse.Namespace) -> None:
    """Carry out `serve`. Raises ConfigError for what must not be served."""
    is_room = bool(options.room or options.policy)
    serve(
        ServeOptions(
            host=options.host,
            port=options.port,
            is_room=is_room,
            policy_file=Path(options.policy) if options.policy else None,
            passwords=read_passwords(options.password_file, options.presenter_password_file),
            proxy=options.proxy,
            is_https=options.https,
            opens_browser=not (is_room or options.no_browser),
        )
    )


def read_passwords(password_file: str | None, presenter_file: str | None) -> Passwords | None:
    """The room's password and the presenter's, from files ('-': the first line of standard input) or the environment, which forgets them.

    None when neither is given. Raises ConfigError: unreadable, too short, both the same, or a presenter's without a room's.
    """
    given = _secret(password_file, PASSWORD), _secret(presenter_file, PRESENTER)
    for words, name in zip(given, (PASSWORD, PRESENTER), strict=True):
        if words is not None and len(words) < SHORTEST_PASSWORD:
            raise ConfigError(f"the password of {name} or its file has {len(words)} characters. Give it at least {SHORTEST_PASSWORD}.")
    password, presenter = given
    if password is None and presenter is not None:
        raise ConfigError(f"there is a presenter's password, but none for the room. Set {PASSWORD}, or use --password-file FILE.")
    if password is not None and password == presenter:
        raise ConfigError("the room's password and the presenter's are the same: every visitor would be the presenter. Choose another one.")
    return Passwords(password, presenter) if password is not None else None


def _secret(file: str | None, variable: str) -> str | None:
    """From the file or standard input if one is named, else from the environment; taken out of it, so that no child process sees it."""
    inherited = os.environ.pop(variable, None)
    if file is None:
        return inherited or None
    if file == "-":
        return sys.stdin.readline().rstrip("\r\n")
    try:
        return (Path(file).expanduser().read_text(encoding="utf-8").splitlines() or [""])[0]
    except FileNotFoundError:
        raise ConfigError(f"password file {file}: no such file. Write the password into it as its first line.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "it is no text"
        raise ConfigError(f"password file {file}: cannot be read ({reason}). It holds the password as its first line.") from None


def check(options: ServeOptions) -> None:
    """Raise ConfigError for what must not be served: an open door on the network, a room without a password."""
    if options.is_room and options.passwords is None:
        raise ConfigError(f"a room needs a password. Set {PASSWORD}, or use --password-file FILE ('-' reads it from standard input).")
    if options.host not in LOCAL_HOSTS and not options.is_room:
        raise ConfigError(
            f"--host {options.host} would open this machine to everyone on the network, without a password. Add --room, and set {PASSWORD} "
            "or use --password-file FILE; or leave --host out."
        )


def _is_news(record: logging.LogRecord) -> bool:
    """marimo reads the gallery's titles from a notebook's first lines, and warns each time that it ignores them elsewhere."""
    return "tool.marimo.%s in script metadata is ignored" not in str(record.msg)


def build(options: ServeOptions) -> App:
    """The whole server as one ASGI app. In a room this process, and those it starts, follow the policy from now on."""
    import marimo

    check(options)
    logging.getLogger("marimo").addFilter(_is_news)
    apps = app_files(apps_dir())
    builder: Any = marimo.create_asgi_app(quiet=True, session_ttl=SESSION_TTL_S, asset_url=STATIC)
    for name, path in apps.items():
        builder = builder.with_app(path=f"/{name}", root=str(path))
    app: App = Front(builder.build(), names=list(apps), static_folder=Path(marimo.__file__).parent / "_static")
    if not options.is_room:
        return OwnPagesOnly(app, hosts=LOCAL_NAMES)
    path = room_folder() / "policy.json"
    write_policy(path, read_policy(options.policy_file) if options.policy_file else Policy())
    os.environ[room.POLICY_VARIABLE] = str(path)
    assert options.passwords is not None  # check() has seen to it
    return OwnPagesOnly(Door(app, passwords=options.passwords, key=signing_key(), names=Names(), is_https=options.is_https))


def rehearse() -> None:
    """Run every app once without a visitor: what it imports and looks up at first is there when the first visitor comes."""
    for name, path in app_files(apps_dir()).items():
        spec = importlib.util.spec_from_file_location(f"distill_rehearsal_{name}", path)
        assert spec is not None and spec.loader is not None
        notebook = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(notebook)
            notebook.app.run()
        except Exception as error:  # noqa: BLE001 - the other apps are served all the same; this one's page shows its error
            _say(f"app {name} did not run through: {type(error).__name__}: {error}")


def serve(options: ServeOptions) -> None:
    """Serve until Ctrl-C. Raises ConfigError as `check` does, and for a port that is taken."""
    import uvicorn

    app = build(options)
    # built now, not while the first visitor waits; elsewhere, for its maker leaves 30 MiB behind in the process
    subprocess.run([sys.executable, "-c", "from distill_core import pictures; pictures.vega_bundle()"], check=True)
    rehearse()
    with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {options.host}, port {options.port} ({error.strerror}). Choose another: --port 2719"
            ) from None
    address = f"http://{reachable_name(options.host)}:{options.port}/"
    _say(_welcome(options, address))
    if options.opens_browser:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.run(
            app,
            host=options.host,
            port=options.port,
            log_level="warning",
            lifespan="off",
            ws_ping_interval=1,  # as `marimo run` does
            ws_ping_timeout=60,
            ws_max_size=WEBSOCKET_BYTES,
            timeout_keep_alive=300,
            timeout_graceful_shutdown=1,  # or Ctrl-C would wait for every open page
            forwarded_allow_ips=options.proxy,
            server_header=False,
        )
    _say("The server has ended; runs go on.")
    sys.stderr.flush()
    os._exit(0)  # visitors' pages are threads that wait for ever, with nothing in them to keep; an ordinary end would wait for them


def reachable_name(host: str) -> str:
    """What others type to come here: for 'all addresses' the one that this machine has on its network, else its name; no packet is sent."""
    if host in LOCAL_HOSTS:
        return "localhost"
    if host not in EVERYWHERE:
        return f"[{host}]" if ":" in host else host
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((ELSEWHERE, 9))  # a datagram socket only looks up which of its addresses it would speak from
        return str(probe.getsockname()[0])
    return socket.gethostname()


def _welcome(options: ServeOptions, address: str) -> str:
    if not options.is_room:
        return f"The apps are at {address} for this machine only; work is kept in {home()}. Ctrl-C ends the server, runs go on."
    rules = room.policy()
    assert rules is not None
    folders = ", ".join(map(str, rules.allowed_folders)) or "none"
    presenter = "with" if options.passwords and options.passwords.presenter else "without"
    return (
        f"The room is at {address} (in Portuguese: {address}?lang=pt), {presenter} a presenter's password. "
        f"Each visitor: {rules.max_active_runs} runs at a time, "
        f"{rules.visitor_disk_gb:g} GB of {rules.disk_gb:g} GB. Folders open to them: {folders}. Work is kept in {home()}. "
        "Ctrl-C ends the server, runs go on."
    )


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
