"""How close a model is to the teacher and to the text, on windows it never trained on; the teacher itself is not needed."""
# B: windows in a batch   L: tokens in a window   P = L - 1: positions   W: windows

import numpy as np
import torch
from torch import nn

from .batches import model_inputs, to_tensors
from .cache import Cache
from .group import ALONE, Group
from .heads import HeadOps, head_inputs, read_head
from .judgement import Scores
from .losses import topk_kl
from .progress import Progress


@torch.no_grad()
def score(
    model: nn.Module,
    ops: HeadOps,
    cache: Cache,
    *,
    split: str = "heldout",
    batch_windows: int = 8,
    num_windows: int | None = None,
    progress: Progress | None = None,
    group: Group = ALONE,
) -> Scores:
    """Score every window of a split, or its first `num_windows`; several processes share the windows, and all get all scores.

    The model's mode is restored.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    total = cache.num_windows(split) if num_windows is None else num_windows
    rows = []
    for picked, is_mine in shares(total, batch_windows, group):
        stored = cache.rows(split, picked)
        batch = {name: tensor.to(device) for name, tensor in to_tensors(stored).items()}
        hidden_BLD = head_inputs(model, **model_inputs(batch, packing=cache.packing))
        head = read_head(model, ops)  # after the forward pass, in which FSDP2 puts its weight together
        for i in range(len(picked) if is_mine else 0):
            parts = topk_kl(
                hidden_BLD[i, :-1],
                head.weight_VD,
                batch["teacher_ids"][i],
                batch["teacher_logprobs"][i],
                teacher_tail_N=batch["teacher_tail"][i],
                labels_N=batch["labels"][i],
                bias_V=head.bias_V,
                logit_scale=head.logit_scale,
                logit_softcap=head.logit_softcap,
                vocab_size=cache.plan.vocab_size,
            )
            num_bytes = stored["token_bytes"][i, 1:][stored["targets"][i]].sum()
            rows.append(
                [float(picked[i]), float(parts.ce), float(parts.kl), float(parts.agreement), float(parts.num_valid), float(num_bytes)]
            )
        if progress is not None:
            progress.at(picked[-1] + 1, total, "windows")
    model.train(was_training)
    return Scores(*np.array(sorted(group.gathered(rows)), dtype=np.float64).T[1:])


def shares(total: int, batch_windows: int, group: Group) -> list[tuple[list[int], bool]]:
    """This process's batches of window numbers, and whether they count: all processes get as many, for a model in pieces (FSDP2) is put
    together by all of them at once, and who has none left reads the first one again."""
    batches = [list(range(first, min(first + batch_windows, total))) for first in range(0, total, batch_windows)]
    mine = [(batch, True) for batch in batches[group.number :: group.count]]
    rounds = -(-len(batches) // group.count)
    return mine + [(batches[0], False)] * (rounds - len(mine))
