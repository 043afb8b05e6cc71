"""The playground's numbers as rows for its charts and as sentences; no widgets here."""

import math
from typing import Any

from ..config import Divergence, Tail
from ..language import ENGLISH, Say, later
from ..units import show_disk
from .belief import Belief, Place, believe, lesson
from .mass import MOST, MUCH, MassTable, highest_temperature, smallest_k
from .window import OpenCache

TAILS: tuple[Tail, ...] = ("bucket", "renormalize", "drop")
SHOWN_TOKENS = 10
TAUGHT_TOKENS = 6
CURVES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Temperatures that are always drawn in the mass chart."""
NAME_WIDTH, NAME_HEIGHT = 0.16, 0.065
"""Room that the name of a curve takes in the mass chart on a phone: shares of the two axes, the one of K being logarithmic."""
ENTRY_BYTES = 6
"""An entry before compression: an id and a float16."""


def visible(text: str) -> str:
    """A token's text with its blanks to be seen."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"


def belief_rows(place: Place, opened: OpenCache, *, temperature: float, top_k: int, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """For charts.belief_chart: the first tokens, all further stored ones as one, and the rest with its error bar."""
    now, one = (believe(place, temperature=t, top_k=len(place.ids_K)) for t in (temperature, 1.0))
    chosen, chosen_at_one = (believe(place, temperature=t, top_k=top_k) for t in (temperature, 1.0))
    rows = []
    for rank, token_id in enumerate(place.ids_K[:SHOWN_TOKENS].tolist()):
        p = float(now.probabilities_K[rank])
        row = {"label": f"{rank + 1} {visible(opened.text(token_id))}", "rank": rank, "part": "kept" if rank < top_k else "cut", "p": p}
        rows.append(row | {"low": p, "high": p, "at_one": float(one.probabilities_K[rank])})
    further = min(top_k, len(place.ids_K)) - SHOWN_TOKENS
    if further > 0:
        p, at_one = (float(belief.probabilities_K[SHOWN_TOKENS:].sum()) for belief in (chosen, chosen_at_one))
        label = say("{count} more of the K", count=further)
        rows.append({"label": label, "rank": SHOWN_TOKENS, "part": "kept", "p": p, "low": p, "high": p, "at_one": at_one})
    hidden = max(0, SHOWN_TOKENS - top_k)  # shown above as cut off, so not in the last bar again
    above = float(now.probabilities_K[top_k:SHOWN_TOKENS].sum()) if hidden else 0.0
    above_at_one = float(one.probabilities_K[top_k:SHOWN_TOKENS].sum()) if hidden else 0.0
    low, high = (max(0.0, bound - above) for bound in chosen.rest_bound)
    rest = {"label": say("all other tokens"), "rank": SHOWN_TOKENS + 1, "part": "rest", "p": max(0.0, chosen.rest - above)}
    rows.append(rest | {"low": low, "high": high, "at_one": max(0.0, chosen_at_one.rest - above_at_one)})
    return rows


def taught_rows(place: Place, opened: OpenCache, belief: Belief, *, divergence: Divergence, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """For charts.taught_chart: where a student ends with each tail mode, over the first tokens and all others together."""
    count = min(TAUGHT_TOKENS, len(belief.probabilities_K))
    labels = [f"{rank + 1} {visible(opened.text(int(place.ids_K[rank])))}" for rank in range(count)]
    further = len(belief.probabilities_K) - count
    rows = []
    for tail in TAILS:
        taught = lesson(belief, tail=tail, divergence=divergence)
        pairs = [(rank, label, taught.probabilities_K[rank], belief.probabilities_K[rank]) for rank, label in enumerate(labels)]
        if further:
            label = say("{count} more of the K", count=further)
            pairs.append((count, label, taught.probabilities_K[count:].sum(), belief.probabilities_K[count:].sum()))
        if taught.rest is not None:
            pairs.append((count + 1, say("all other tokens"), taught.rest, belief.rest))
        rows += [{"label": label, "rank": rank, "mode": tail, "p": float(p), "teacher": float(q)} for rank, label, p, q in pairs]
    return rows


def mass_rows(table: MassTable, *, temperature: float, top_k: int, say: Say = ENGLISH) -> list[dict[str, Any]]:
    """For charts.mass_chart: curves over K, about ten points a decade, the chosen one, the chosen point, and names where there is room."""
    ks = sorted({1, table.top_k, top_k, *(round(10 ** (step / 10)) for step in range(40))})
    ks = [k for k in ks if k <= table.top_k]
    rows: list[dict[str, Any]] = [{"kind": "share", "mass": share} for share in (MUCH, MOST)]
    shown = sorted({*CURVES, temperature})
    names = {t: f"T = {say.figure(f'{t:g}')}" for t in shown}
    for t in shown:
        mass_K = table.at(t)
        kind = "chosen" if t == temperature else "curve"
        rows += [{"kind": kind, "t": names[t], "k": k, "mass": round(float(mass_K[k - 1]), 5)} for k in ks]
        if (k := _room_for_name(table, t, shown)) is not None:
            rows.append({"kind": "name", "t": names[t], "k": k, "mass": round(float(mass_K[k - 1]), 5)})
    rows.append({"kind": "point", "t": names[temperature], "k": top_k, "mass": float(table.at(temperature)[top_k - 1])})
    return rows


def _room_for_name(table: MassTable, temperature: float, shown: list[float]) -> int | None:
    """The smallest K at which a curve's name, to the upper left of its point, touches no other curve; none where all run too close."""
    width = table.top_k**NAME_WIDTH
    for place in range(1, 13):
        k = round(table.top_k ** (NAME_WIDTH + place * (1 - NAME_WIDTH) / 12))
        mass, left = table.at(temperature)[k - 1], max(1, int(k / width))
        above = [table.at(t)[[left - 1, k - 1]] for t in shown if t != temperature]
        if mass <= 1 - NAME_HEIGHT / 2 and all(other[1] < mass or other[0] >= mass + NAME_HEIGHT for other in above):
            return k
    return None


# ---- sentences


def belief_facts(belief: Belief, place: Place, *, say: Say = ENGLISH) -> list[tuple[str, str]]:
    """(figure, words) pairs of one position."""
    half = _rounded_up((belief.rest_bound[1] - belief.rest_bound[0]) / 2, 4)
    spread = _rounded_up(max(belief.entropy - belief.entropy_bound[0], belief.entropy_bound[1] - belief.entropy), 2)
    top_k = len(belief.probabilities_K)
    return [
        (f"{belief.kept_mass:.2%}", say("kept mass: in the {count} most likely", count=top_k)),
        (f"{belief.rest:.2%} ± {half:.2%}", say("the tail: all other tokens, with its error bar")),
        (f"{belief.entropy:.2f} ± {spread:.2f}", say("nats of entropy, over the whole vocabulary")),
        (f"{math.exp(belief.entropy):.3g}", say("equally likely tokens would be as uncertain")),
        (f"{math.exp(place.gold_logprob):.2%}", say("for the text's own next token, at T = 1")),
    ]


def _rounded_up(error: float, digits: int) -> float:
    """An error bar as it is shown is never smaller than it is, nor 0."""
    return math.ceil(error * 10**digits) / 10**digits


WHOLE = later("<b>bucket</b>: the rest is one more entry, so the student is taught the teacher itself.")
SPREAD = later("<b>renormalize</b>: the K get everything, {factor:.2f} times what the teacher gives them; the rest nothing.")
MODE_WORDS: dict[Divergence, tuple[str, str, str]] = {
    "forward_kl": (WHOLE, SPREAD, later("<b>drop</b>: it ends where renormalize ends, but pulls with {mass:.1%} of the strength.")),
    "reverse_kl": (
        WHOLE,
        later("<b>renormalize</b>: only proportions among the K are taught; what the rest gets is left open."),
        later("<b>drop</b>: the best score is at 1/e of the teacher's, so {rest:.1%} of the student's belief is pushed out of the K."),
    ),
    "jsd": (WHOLE, SPREAD, later("<b>drop</b>: among the K the student is taught the teacher; the rest follows from that.")),
}
"""What each of TAILS would teach at a position, as HTML."""


def mode_words(belief: Belief, *, divergence: Divergence, say: Say = ENGLISH) -> list[str]:
    """One sentence (HTML) a tail mode: what it would teach at this position."""
    drop = lesson(belief, tail="drop", divergence=divergence)
    values = {"factor": 1 / belief.kept_mass, "mass": belief.kept_mass, "rest": drop.rest or 0.0}
    return [say(words, **values) for words in MODE_WORDS[divergence]]


def advice(table: MassTable, *, temperature: float, top_k: int, say: Say = ENGLISH) -> list[str]:
    """What this cache says about K and T, on average over its sample."""
    mass = float(table.at(temperature)[top_k - 1])
    low, high = table.bound(temperature, top_k)
    words = [
        say(
            "At T = {t:g} the {k} most likely tokens keep {mass:.2%} of this teacher's belief on average "
            "(between {low:.3%} and {high:.3%}).",
            t=temperature, k=top_k, mass=mass, low=low, high=high,
        )
    ]  # fmt: skip
    enough = smallest_k(table, temperature, MOST)
    if enough is not None:
        words.append(say("The smallest K that keeps 99 % at T = {t:g} is {k}.", t=temperature, k=enough))
    else:
        most = float(table.at(temperature)[-1])
        words.append(
            say("No K of this cache keeps 99 % at T = {t:g}: all {k} together keep {mass:.1%}.", t=temperature, k=table.top_k, mass=most)
        )
    hottest, hot = (highest_temperature(table, top_k, share) for share in (MOST, MUCH))
    if hottest is not None:
        kept = say("With K = {k}, 99 % is kept up to T = {hottest:g}, and 90 % up to T = {hot:g}.", k=top_k, hottest=hottest, hot=hot)
        words.append(kept)
    elif hot is not None:
        words.append(say("With K = {k}, 99 % is kept at no T here, and 90 % up to T = {hot:g}.", k=top_k, hot=hot))
    else:
        words.append(say("With K = {k}, not even 90 % is kept at any T here: take a larger K.", k=top_k))
    words.append(verdict(mass, say=say))
    saved = ENTRY_BYTES * (table.top_k - enough) * 1_000_000 if enough is not None else 0
    if saved > 0:
        size = show_disk(saved)
        words.append(say("A cache with that K would be {size} smaller per million tokens, before compression.", size=size))
    return words


def verdict(mass: float, *, say: Say = ENGLISH) -> str:
    """What such a kept mass means for the tail mode."""
    if mass >= MOST:
        return say("So the tail hardly matters here: all three tail modes teach nearly the same.")
    if mass >= MUCH:
        return say("So keep the tail as one entry (bucket): the other modes would already teach something else.")
    return say("So T loses too much for this K: more than a tenth lies in the tail, of which only its sum is known. Lower T, or raise K.")
