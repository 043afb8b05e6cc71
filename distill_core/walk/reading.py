"""Text token by token, as HTML: what the student will learn, and what the teacher expected where."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..language import ENGLISH, Say
from .pieces import text


def tokens(rows: Sequence[Mapping[str, Any]], *, num_documents: int = 2, say: Say = ENGLISH) -> str:
    """The first documents, token by token; those that are learned are underlined, the rest is pale."""
    if not rows:
        return f'<p class="walk-quiet">{say("No text yet.")}</p>'
    documents: dict[Any, list[str]] = {}
    for row in rows:
        shown = text(row["token"]).replace("\n", "⏎\n")
        kind = "learned" if row["is_target"] else "seen"
        piece = f'<span class="{kind}" title="token {text(row["token_id"])}">{shown}</span>'
        documents.setdefault(row["document"], []).append(piece)
    blocks = "".join(f"<p>{''.join(pieces)}</p>" for pieces in list(documents.values())[:num_documents])
    return (
        f'<div class="walk-tokens" tabindex="0" role="region" aria-label="{say("The first tokens")}">{blocks}</div>'
        f'<p class="walk-quiet"><span class="learned">{say("Underlined")}</span>: {say("tokens that the student learns to predict.")} '
        f'<span class="seen">{say("Pale")}</span>: {say("tokens it only reads.")}</p>'
    )


def window(rows: Sequence[Mapping[str, Any]], *, temperature: float, say: Say = ENGLISH) -> str:
    """One window of a cache as a table, a token a line: how likely the teacher found it, and what it would have said instead."""

    def percent(share: float, digits: int) -> str:
        return say.figure(f"{share:.{digits}%}")

    lines = []
    for row in rows:
        token = text(row["token"]).replace("\n", "⏎")
        if not row["is_target"]:
            lines.append(
                f'<tr class="seen"><td>{row["position"]}</td><th>{token}</th><td colspan="3">{say("only read, not learned")}</td></tr>'
            )
            continue
        choices = "".join(
            f"<li{' class=hit' if choice['token'] == row['token'] else ''} style='--share:{choice['probability']:.3f}'>"
            f"{text(choice['token']).replace(chr(10), '⏎')} <small>{percent(choice['probability'], 1)}</small></li>"
            for choice in row["choices"]
        )
        figures = f"<td>{percent(row['probability'], 2)}</td><td>{percent(row['kept_mass'], 2)}</td>"
        lines.append(f"<tr><td>{row['position']}</td><th>{token}</th>{figures}<td><ol>{choices}</ol></td></tr>")
    expected = say("what the teacher expected here, most likely first")
    heads = ("", say("token"), say("its probability"), say("kept mass"), expected)
    legend = say(
        "A token's own probability is at T = 1, kept mass and choices at T = {temperature:g}. Framed: the teacher expected what came.",
        temperature=temperature,
    )
    return (
        f'<div class="walk-look" tabindex="0" role="region" aria-label="{expected}"><table><thead><tr>'
        + "".join(f"<th>{head}</th>" for head in heads)
        + f'</tr></thead><tbody>{"".join(lines)}</tbody></table></div><p class="walk-quiet">{legend}</p>'
    )
