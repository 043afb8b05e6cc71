"""What a chain came to: every link's student beside the first teacher, on the same held-out text, with what it cost.

All figures are those of the links' judgings: KL to the first teacher at T = 1, of the weights that each run kept. The direct student has
as many optimizer steps as all links together; a middle student's steps cost more than the last one's, and captures come on top, so the
seconds stand beside them.
"""

import json
from typing import Any

from ..cache import open_cache
from ..comparison.quality import MEASURES
from ..comparison.rows import folder_bytes
from ..errors import CacheError, RunError
from ..judgement import bits_per_byte
from ..language import ENGLISH, Say
from ..paths import caches_dir
from ..runs import Status, open_run
from ..units import show_count, show_disk, show_time
from .drive import is_driven
from .record import Chain, Link

Row = dict[str, Any]
FIGURES = (*MEASURES, "num_parameters", "disk_bytes")


def rows(chain: Chain) -> list[Row]:
    """The first teacher, every link and the direct student, a row each, as far as they are.

    'name', 'link' ('teacher', 1, 2, …, 'direct'), 'teacher', 'state', 'error', 'steps', the FIGURES, 'train_s', 'before_s' (captures
    and what a student wrote), 'cache_bytes'; None where there is no figure yet. Times are seconds by the clock.
    """
    return [_teacher_row(chain), *(_row(link) for link in chain.links())]


def _teacher_row(chain: Chain) -> Row:
    row: Row = dict.fromkeys(("teacher", "error", "steps", *FIGURES, "train_s", "before_s", "cache_bytes"))
    row |= {"name": chain.config["teacher"]["model"], "link": "teacher", "state": "done"}
    try:
        manifest = open_cache(chain.first_cache).manifest
    except CacheError:
        return row
    entries = manifest.entries_of("heldout")
    nll = -sum(entry.sum_gold_logprob for entry in entries)
    spoken = {"num_parameters": manifest.teacher.num_parameters, "disk_bytes": manifest.teacher.disk_bytes}
    bits = bits_per_byte(nll, sum(entry.num_text_bytes for entry in entries))
    return row | spoken | {"kl_to_teacher": 0.0, "top1_agreement": 1.0, "bits_per_byte": bits}


def _row(link: Link) -> Row:
    config = link.config()
    runs = {name: _status(name) for name in link.run_ids}
    row: Row = {
        "name": link.name,
        "link": "direct" if link.is_direct else link.number,
        "teacher": config.teacher.model,
        "state": _state([status for status in runs.values() if status is not None]),
        "error": next((status.error for status in runs.values() if status and status.state == "failed"), None),
        "steps": config.train.max_steps,
        **dict.fromkeys(FIGURES),
        "train_s": _seconds(runs[link.name]),
        "before_s": sum(_seconds(status) or 0.0 for name, status in runs.items() if name not in (link.name, link.judged_id)),
        "cache_bytes": 0 if link.is_direct else folder_bytes(caches_dir() / link.cache),
    }
    judged = runs[link.judged_id]
    if judged is not None and judged.state == "done":
        evaluation = json.loads(open_run(link.judged_id).evaluation_path.read_text(encoding="utf-8"))
        student = next(each for each in evaluation["rows"] if each["who"] == "student")
        row |= {name: student[name] for name in FIGURES}
    return row


def _status(run_id: str) -> Status | None:
    try:
        return open_run(run_id).status()
    except RunError:
        return None


def _state(statuses: list[Status]) -> str:
    """Of a link: the state of the run that counts now, 'waiting' before there is one, 'done' when its student was judged."""
    if not statuses:
        return "waiting"
    unfinished = [status for status in statuses if status.state != "done"]
    if unfinished:
        return unfinished[0].state
    return "done" if statuses[-1].kind == "evaluate" else "running"


def _seconds(status: Status | None) -> float | None:
    if status is None or status.started_s is None or status.ended_s is None:
        return None
    return status.ended_s - status.started_s


def state_of(chain: Chain) -> str:
    """'done', 'failed', 'running' (a process drives it), 'stopped' (nobody does), for the whole chain."""
    states = [_row(link)["state"] for link in chain.links()]
    if all(state == "done" for state in states):
        return "done"
    if is_driven(chain):
        return "running"
    return "failed" if "failed" in states else "stopped"


def verdict(found: list[Row], *, say: Say = ENGLISH) -> str:
    """In words: the last link beside the direct student, where there is one."""
    links = [row for row in found if isinstance(row["link"], int)]
    judged = [row for row in links if row["kl_to_teacher"] is not None]
    if len(judged) < len(links):
        return say("No verdict yet: {done} of {total} links are judged.", done=len(judged), total=len(links))
    last, direct = links[-1], next((row for row in found if row["link"] == "direct"), None)
    if direct is None:
        return say(
            "The last student is {kl:.4f} nats a token from the first teacher. Whether the chain helped, only a direct student shows "
            "(chain.with_direct).",
            kl=last["kl_to_teacher"],
        )
    if direct["kl_to_teacher"] is None:
        return say("No verdict yet: the direct student is not judged.")
    gain = direct["kl_to_teacher"] - last["kl_to_teacher"]
    return say(
        "After as many steps in all ({steps:,}) the chain's last student is {kl:.4f} nats a token from the first teacher, the direct one "
        "{direct:.4f}: the chain is {gain:.4f} nearer, for {time} of work against {direct_time}. One seed each: others may say otherwise."
        if gain > 0
        else "After as many steps in all ({steps:,}) the chain's last student is {kl:.4f} nats a token from the first teacher, the direct "
        "one {direct:.4f}: the chain is {gain:.4f} further, for {time} of work against {direct_time}. One seed each: others may say "
        "otherwise.",
        steps=direct["steps"],
        kl=last["kl_to_teacher"],
        direct=direct["kl_to_teacher"],
        gain=abs(gain),
        time=show_time(_spent(links)),
        direct_time=show_time((links[0]["before_s"] or 0.0) + (direct["train_s"] or 0.0)),
    )


def _spent(found: list[Row]) -> float:
    return sum((row["train_s"] or 0.0) + (row["before_s"] or 0.0) for row in found)


def table(found: list[Row]) -> str:
    """The rows as plain text, one line each."""
    width = max(len(str(row["name"])) for row in found)
    head = f"{'':<{width}}  {'learned from':<{width + 4}} {'steps':>7} {'KL to first':>11} {'bits/byte':>9} {'agreement':>9} "
    return "\n".join([f"{head}{'parameters':>10} {'on disk':>8} {'its cache':>9} {'training':>10}", *(_line(row, width) for row in found)])


def _line(row: Row, width: int) -> str:
    steps = f"{row['steps']:>7,}" if row["steps"] else f"{'':>7}"
    start = f"{row['name']:<{width}}  {row['teacher'] or '':<{width + 4}} {steps} "
    if row["kl_to_teacher"] is None:
        why = f": {row['error'].splitlines()[0]}" if row["error"] else ""
        return f"{start}{row['state']:>11}{why}"
    measured = f"{row['kl_to_teacher']:>11.4f} {row['bits_per_byte']:>9.3f} {row['top1_agreement']:>9.3f} "
    sizes = f"{show_count(row['num_parameters']):>10} {show_disk(row['disk_bytes']):>8} "
    cache = f"{show_disk(row['cache_bytes']):>9}" if row["cache_bytes"] else f"{'':>9}"
    return f"{start}{measured}{sizes}{cache} {show_time(row['train_s']) if row['train_s'] else '':>10}".rstrip()
