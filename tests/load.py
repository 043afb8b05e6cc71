"""Load of a room: visitors with live panels of one training, on one server. Prints what was measured, as JSON.

    python tests/load.py                     30 visitors over the websocket API, then 3 real browsers beside them; about 3 minutes
    python tests/load.py --visitors 5 --seconds 20 --browsers 0
    python tests/load.py --training          a real training on a core of its own beside the server, instead of a replayed one

Goals: an answer to a panel within 150 ms (p95), the server within 35 % of one core and 400 MB, the first visitor's page within 2 s.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import browsing
import httpx
import psutil
from websockets.asyncio.client import ClientConnection, connect

from distill_core import jobs, metrics
from distill_core.config import DistillConfig, from_dict
from distill_core.runs import Run, create_run, open_run

REPO = Path(__file__).resolve().parents[1]
PASSWORD = "a password for a load test"
STEPS_PER_S = 10
HISTORY = 2000
"""Steps the replayed training has behind it when the room looks at it."""


# ---------------------------------------------------------------- the run that everybody watches
def row(step: int) -> dict[str, Any]:
    """A step's row with every key that a training writes."""
    parts = {
        "loss": 1 + 4 / step,
        "kl": 0.8 + 4 / step,
        "ce": 2 + 3 / step,
        "floor": 0.0,
        "teacher_nll": 0.7,
        "top1_agreement": 1 - 1 / step,
    }
    speed = {"grad_norm": random.random(), "learning_rate": 5e-3, "tokens_per_s": 2e4, "time_left_s": 600.0}
    return {"step": step, "time_s": step / STEPS_PER_S, **parts, **speed, "memory_gib": 0.5 + 0.1 * random.random(), "peak_memory_gib": 0.6}


def replay(run_id: str) -> None:
    """Write a run's folder as a training does: a row a step, and its status as often."""
    run = open_run(run_id)
    run.update(state="running", pid=os.getpid(), process_start_s=psutil.Process().create_time(), started_s=time.time(), phase="training")
    for step in range(1, HISTORY + 1):
        metrics.append(run.metrics_path, row(step))
    for step in range(HISTORY + 1, 100_000):
        metrics.append(run.metrics_path, row(step))
        if step % 60 == 0:
            metrics.append(run.metrics_path, {"step": step, "heldout_bits_per_byte": 0.4, "heldout_kl": 0.4, "heldout_top1_agreement": 0.8})
        run.update(done=step, total=100_000, unit="steps", time_left_s=600.0)
        time.sleep(1 / STEPS_PER_S)


@contextlib.contextmanager
def training(config: DistillConfig, *, is_real: bool):
    """A cache, and a run that learns from it, for real or replayed; ended at the end."""
    capture = [sys.executable, "-m", "distill_core", "capture", "--capture.name", "room", "--text.num_windows", "50"]
    subprocess.run([*capture, "--text.num_heldout_windows", "8"], check=True, stdout=subprocess.DEVNULL)
    if is_real:
        run = jobs.submit_training(config, "room")
        while run.status().done < 20:
            assert run.status().is_active, run.status().error
            time.sleep(0.5)
        yield run
        run.request_stop()
        jobs.wait(run, timeout_s=60)
        return
    run = create_run("train", config, inputs={"cache": "room"}, label="distilled")
    writer = subprocess.Popen([sys.executable, __file__, "--replay", run.id])
    while not run.metrics_path.exists() or run.status().done < HISTORY:
        time.sleep(0.2)
    yield run
    writer.terminate()
    writer.wait()


# ---------------------------------------------------------------- the server
@contextlib.contextmanager
def room(log_path: Path):
    """(process, address) of a room of its own."""
    with browsing.room_served(log_path, "--room", DISTILL_PASSWORD=PASSWORD) as address:
        yield next(child for child in psutil.Process().children() if "serve" in child.cmdline()), address


# ---------------------------------------------------------------- a visitor without a browser
class Visitor:
    """Speaks as the page does: one websocket, one question a second to the panel, one question open at a time."""

    def __init__(self, address: str, number: int, query: str) -> None:
        self.address, self.number, self.query = address, number, query
        self.http = httpx.AsyncClient(base_url=address, timeout=60)
        self.latencies_ms: list[float] = []
        self.model_id: str | None = None
        self.cursors: dict[str, Any] = {}
        self.num_rows = 0

    async def enter(self) -> float:
        """Log in, open the walk, and wait until all its cells have run; seconds from asking for the page."""
        answer = await self.http.post("/login", data={"password": PASSWORD, "name": f"Visitor {secrets.token_hex(4)}"})
        assert answer.status_code == 303, answer.text
        started = time.perf_counter()
        page = (await self.http.get(f"/distill/?{self.query}")).text
        token = re.search(r'"serverToken":\s*"([^"]*)"', page)
        assert token, "the page holds no server token"
        session = "s_" + "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=6))
        self.headers = {"Marimo-Session-Id": session, "Marimo-Server-Token": token[1]}
        cookie = "; ".join(f"{key}={value}" for key, value in self.http.cookies.items())
        target = f"{self.address.replace('http', 'ws', 1)}/distill/ws?session_id={session}&{self.query}"
        self.socket: ClientConnection = await connect(target, additional_headers={"Cookie": cookie}, max_size=None)
        while True:
            message = await self.hear()
            if message["op"] == "completed-run":
                break
        assert self.model_id or "run=" not in self.query, "the walk shows no panel"
        return time.perf_counter() - started

    async def hear(self) -> dict[str, Any]:
        message = json.loads(await self.socket.recv())
        if message["op"] == "model-lifecycle":
            told = message["data"]["message"]
            if told["method"] == "open" and "pictures" in told.get("state", {}):
                self.model_id = message["data"]["model_id"]
        return message

    async def watch(self, seconds: float) -> None:
        """Ask once a second, as panel.js does, from a moment of its own."""
        await asyncio.sleep(random.random())
        deadline, generation = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            generation += 1
            started = time.perf_counter()
            question = {"kind": "pull", "viewer": self.number, "gen": generation, "cursors": self.cursors, "log": False}
            body = {"modelId": self.model_id, "message": {"method": "custom", "content": question}, "buffers": []}
            answer = await self.http.post("/distill/api/kernel/set_model_value", json=body, headers=self.headers)
            assert answer.status_code == 200, answer.text
            reply = await asyncio.wait_for(self.reply(generation), 30)
            self.latencies_ms.append(1000 * (time.perf_counter() - started))
            self.cursors = reply["cursors"]
            self.num_rows += len(reply["rows"])
            await asyncio.sleep(max(0.0, 1 - (time.perf_counter() - started)))

    async def reply(self, generation: int) -> dict[str, Any]:
        while True:
            message = await self.hear()
            if message["op"] == "model-lifecycle":
                content = message["data"]["message"].get("content")
                if isinstance(content, dict) and content.get("gen") == generation:
                    return content

    async def leave(self) -> None:
        await self.socket.close()
        await self.http.aclose()


def percentile(values: list[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 1)


async def crowd(server: psutil.Process, address: str, query: str, options: argparse.Namespace) -> dict[str, Any]:
    """All visitors enter, one after the other, then watch together; a second time with real browsers beside them."""
    visitors = [Visitor(address, number, query) for number in range(options.visitors)]
    first = Visitor(address, -1, "lang=en")  # the plain walk, on a server that nobody has asked for anything
    pages = [await page_cost(server, each) for each in (first, *visitors)]
    await first.leave()
    await asyncio.gather(*(visitor.watch(3) for visitor in visitors))  # their first question brings the whole history: not the steady state
    found = {
        "visitors": len(visitors),
        "first_page": pages[0],
        "first_page_on_the_run": pages[1],
        "later_pages_median": {key: round(statistics.median(page[key] for page in pages[1:]), 2) for key in pages[0]},
        "first_answer_p95_ms": percentile([visitor.latencies_ms[0] for visitor in visitors], 0.95),
        "watching": await watched(server, visitors, options.seconds),
    }
    say(json.dumps(found))
    if options.browsers and browsing.find_browser():
        beside = asyncio.create_task(asyncio.to_thread(browsers, address, query, options.browsers, options.seconds / 2))
        found["watching_beside_browsers"] = await watched(server, visitors, options.seconds)
        found["browsers"] = await beside
        say(json.dumps(found))
    for visitor in visitors:
        await visitor.leave()
    return found


async def page_cost(server: psutil.Process, visitor: Visitor) -> dict[str, float]:
    """Seconds until a visitor's page has run, and the server's CPU time for it."""
    before = server.cpu_times()
    took = await visitor.enter()
    after = server.cpu_times()
    return {"seconds": round(took, 2), "server_cpu_s": round(after.user + after.system - before.user - before.system, 2)}


async def watched(server: psutil.Process, visitors: list[Visitor], seconds: float) -> dict[str, Any]:
    """What the visitors and the server's process measured over that time."""
    for visitor in visitors:
        visitor.latencies_ms.clear()
    load, before, started = os.getloadavg()[0], server.cpu_times(), time.perf_counter()
    await asyncio.gather(*(visitor.watch(seconds) for visitor in visitors))
    took, after = time.perf_counter() - started, server.cpu_times()
    latencies = [each for visitor in visitors for each in visitor.latencies_ms]
    return {
        "seconds": round(took),
        "answers": len(latencies),
        "p50_ms": percentile(latencies, 0.5),
        "p95_ms": percentile(latencies, 0.95),
        "max_ms": percentile(latencies, 1),
        "server_core_share": round((after.user + after.system - before.user - before.system) / took, 3),
        "server_rss_mb": round(server.memory_info().rss / 1e6),
        "server_threads": server.num_threads(),
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- visitors with one
def browsers(address: str, query: str, num_browsers: int, seconds: float) -> dict[str, Any]:
    """Real browser contexts on the walk: seconds until its heading and its panel stand, and the panel's own round trips."""
    opened, panels, trips = [], [], []
    with browsing.browser() as chromium:
        pages = []
        for _ in range(num_browsers):
            page = chromium.new_context().new_page()
            page.goto(f"{address}/login")
            page.fill("#password", PASSWORD)
            page.fill("#name", f"Browser {secrets.token_hex(4)}")
            page.click("button[type=submit]")
            started = time.perf_counter()
            page.goto(f"{address}/distill/?{query}")
            page.wait_for_selector("text=Memory plan", timeout=120_000)
            opened.append(round(time.perf_counter() - started, 2))
            page.wait_for_selector(".panel[data-state='active']", timeout=120_000)
            panels.append(round(time.perf_counter() - started, 2))
            pages.append(page)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for page in pages:
                trips.append(float(page.locator(".panel").first.get_attribute("data-rtt")))
            pages[0].wait_for_timeout(1000)
    return {"page_s": opened, "panel_s": panels, "p50_ms": percentile(trips, 0.5), "p95_ms": percentile(trips, 0.95)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--browsers", type=int, default=3)
    parser.add_argument("--training", action="store_true", help="a real training beside the server")
    parser.add_argument("--replay", metavar="RUN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        replay(options.replay)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(DISTILL_HOME=folder, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONPATH=str(REPO))
        config = from_dict({"device": "cpu", "train": {"max_steps": 100_000, "eval_steps": 1000, "save_steps": 1000}})
        with training(config, is_real=options.training) as run:
            print(json.dumps(measured(run, options, Path(folder) / "server.log"), indent=1))


def measured(run: Run, options: argparse.Namespace, log_path: Path) -> dict[str, Any]:
    query = f"run={run.id}"
    with room(log_path) as (server, address):
        idle_mb = round(server.memory_info().rss / 1e6)
        found = {"server_rss_idle_mb": idle_mb, **asyncio.run(crowd(server, address, query, options))}
    if options.browsers and browsing.find_browser():
        with room(log_path) as (_, address):  # a fresh server: the browser is its first visitor
            found["first_browser"] = browsers(address, query, 1, 5)
    return found


if __name__ == "__main__":
    main()
