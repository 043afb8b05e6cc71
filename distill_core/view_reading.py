"""The teacher reads views: other tokens than the student's windows hold, and the rows that speak of the student's next tokens.

Documents are read one to a row, whether the student's windows are packed or not, and put back to where they stand in the windows.
"""
# R: rows, positions with a target   S: tokens that the teacher reads of a document   T: tokens of the student's document
# B: documents read at once   D: hidden size   P: positions of a window

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from . import generation
from .cache.tail import AT_ONE
from .corpus import Aligner, View, Windows
from .errors import ConfigError
from .heads import Head, head_inputs
from .losses import topk_kl
from .sparse import SparseRows, sparse_rows

Asked = tuple[NDArray[Any], NDArray[Any], View | None]
"""(ids to read [S], the positions whose next token is asked for, the view they are of)."""


def check_length(windows: dict[str, Windows], max_positions: int | None) -> None:
    """Raise ConfigError for a document that is longer behind its context than the teacher has positions."""
    views = [view for part in windows.values() for row in part.views or [] for view in row]
    longest = max(views, key=lambda view: len(view.ids_S), default=None)
    if longest is not None and max_positions is not None and len(longest.ids_S) > max_positions:
        own = len(longest.places_T)
        raise ConfigError(
            f"the {'image' if longest.image else 'context'} takes {len(longest.ids_S) - own:,} tokens; with the longest document ({own:,}) "
            f"the teacher would read {len(longest.ids_S):,}, but it has {max_positions:,} positions. "
            "Shorten the context, or set a smaller text.window_tokens."
        )


def tokens_read(windows: Windows, picked: NDArray[Any], window_tokens: int) -> int:
    """Tokens that the teacher reads for these windows."""
    if windows.views is None:
        return len(picked) * window_tokens
    return sum(len(view.ids_S) for window in picked for view in windows.views[window])


@torch.no_grad()
def read_views(
    model: Any, head: Head, aligner: Aligner, windows: Windows, picked: NDArray[Any], *, at_once: int, **kept: Any
) -> SparseRows:
    """What the teacher says of the windows' targets behind their views, rows in the windows' order; `kept`: as for sparse_rows."""
    hidden_RD, gold_R = _hidden_rows(model, head, aligner, windows, picked, _through_views, at_once)
    return sparse_rows(hidden_RD, gold_R, head, **kept)


def _through_views(windows: Windows, window: int) -> list[Asked]:
    assert windows.views is not None
    asked: list[Asked] = []
    for view, learned_T in zip(windows.views[window], _learned(windows, window), strict=True):
        asked.append((view.ids_S, view.places_T[learned_T] - 1, view))
    return asked


def _as_they_are(windows: Windows, window: int) -> list[Asked]:
    starts = np.cumsum([0, *windows.doc_lens[window]])
    ids_L = windows.input_ids_NL[window]
    learned = _learned(windows, window)
    return [(ids_L[start:end], found - 1, None) for start, end, found in zip(starts[:-1], starts[1:], learned, strict=True)]


def _learned(windows: Windows, window: int) -> list[NDArray[Any]]:
    """For each document of a window, which of its tokens are learned, from the first one's place."""
    is_learned_L = np.concatenate([[False], windows.targets_NP[window]])
    starts = np.cumsum([0, *windows.doc_lens[window]])
    return [np.flatnonzero(is_learned_L[start:end]) for start, end in itertools.pairwise(starts)]


@torch.no_grad()
def _hidden_rows(
    model: Any, head: Head, aligner: Aligner, windows: Windows, picked: NDArray[Any], asked_of: Any, at_once: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden states [R, D] that predict the windows' targets, those targets [R]); the longest documents are read first."""
    asked: list[Asked] = [each for window in picked for each in asked_of(windows, int(window))]
    order = sorted(range(len(asked)), key=lambda number: -len(asked[number][0]))
    rows: list[torch.Tensor] = [torch.empty(0)] * len(asked)
    for first in range(0, len(order), at_once):
        some = order[first : first + at_once]
        ids_BS = _padded([asked[number][0] for number in some])
        seen = aligner.inputs([view for number in some if (view := asked[number][2])], ids_BS)
        inputs = {name: tensor.to(head.weight_VD.device) for name, tensor in {"input_ids": ids_BS, **seen}.items()}
        hidden_BSD = head_inputs(model, **inputs)
        for row, number in enumerate(some):
            rows[number] = hidden_BSD[row, torch.from_numpy(asked[number][1]).to(hidden_BSD.device)]
    gold_R = windows.input_ids_NL[picked][:, 1:][windows.targets_NP[picked]].astype(np.int64)
    return torch.cat(rows), torch.from_numpy(gold_R).to(head.weight_VD.device)


def _padded(rows: Sequence[NDArray[Any]]) -> torch.Tensor:
    """[B, S], filled at the right, where a causal model does not look."""
    ids_BS = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for place, row in enumerate(rows):
        ids_BS[place, : len(row)] = row
    return torch.from_numpy(ids_BS)


@torch.no_grad()
def without_views(model: Any, head: Head, aligner: Aligner, windows: Windows, *, at_once: int, **kept: Any) -> dict[str, float]:
    """How the teacher itself does on these windows without its views, judged as a student is against what it says with them:
    means per token, 'nll' and 'kl' in nats, 'agreement' a share. `kept`: as for sparse_rows."""
    sums = dict.fromkeys(("nll", "kl", "agreement"), 0.0)
    num_valid = 0.0
    for first in range(0, len(windows), at_once):
        picked = np.arange(first, min(first + at_once, len(windows)))
        told = read_views(model, head, aligner, windows, picked, at_once=at_once, **kept)
        hidden_RD, gold_R = _hidden_rows(model, head, aligner, windows, picked, _as_they_are, at_once)
        device = hidden_RD.device
        parts = topk_kl(
            hidden_RD.to(head.weight_VD.dtype),
            head.weight_VD,
            told.ids_RK.to(device),
            told.logprobs_RK.to(device),
            teacher_tail_N=told.tail_RA[:, AT_ONE].to(device),
            labels_N=gold_R,
            bias_V=head.bias_V,
            logit_scale=head.logit_scale,
            logit_softcap=head.logit_softcap,
            vocab_size=kept["vocab_size"],
        )
        for name, part in (("nll", parts.ce), ("kl", parts.kl), ("agreement", parts.agreement)):
            sums[name] += float(part)
        num_valid += float(parts.num_valid)
    return {name: total / num_valid for name, total in sums.items()}


def prompts(
    windows: Windows, aligner: Aligner | None, *, num_prompts: int
) -> tuple[list[list[int]], list[list[int]], list[dict[str, Any]]]:
    """(beginnings of held-out documents, what the teacher reads in their place, what it is called with besides): the same without views.
    In a chat a beginning is all that stands before the assistant's first words."""
    total = len(windows)
    if windows.views is None or aligner is None:
        plain = generation.beginnings(windows.input_ids_NL.tolist(), [lens[0] for lens in windows.doc_lens], num_prompts=num_prompts)
        return plain, plain, [{}] * len(plain)
    picked = [number * total // min(num_prompts, total) for number in range(min(num_prompts, total))]
    students, teachers, others = [], [], []
    for window in picked:
        view: View = windows.views[window][0]
        at = max(1, min(generation.PROMPT_TOKENS, len(view.places_T) // 2))
        if view.places_T[at] < 0:
            at = int(np.flatnonzero(view.places_T >= 0)[0])
        students.append(windows.input_ids_NL[window, :at].tolist())
        teachers.append(view.ids_S[: view.places_T[at]].tolist())
        others.append(aligner.inputs([view], torch.tensor(teachers[-1:])))
    return students, teachers, others
