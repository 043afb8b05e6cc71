"""How close a model is to the teacher and to the text, on windows it never trained on; the teacher itself is not needed."""
# B: windows in a batch   L: tokens in a window   P = L - 1: positions   W: windows

import numpy as np
import torch
from torch import nn

from .batches import model_inputs, to_tensors
from .cache import Cache
from .heads import HeadOps, head_inputs, read_head
from .judgement import Scores
from .losses import topk_kl
from .progress import Progress


@torch.no_grad()
def score(
    model: nn.Module, ops: HeadOps, cache: Cache, *, split: str = "heldout", batch_windows: int = 8, progress: Progress | None = None
) -> Scores:
    """Score every window of a split. The model's mode is restored."""
    was_training = model.training
    model.eval()
    head = read_head(model, ops)
    device = head.weight_VD.device
    total = cache.num_windows(split)
    rows = []
    for first in range(0, total, batch_windows):
        picked = list(range(first, min(first + batch_windows, total)))
        stored = cache.rows(split, picked)
        batch = {name: tensor.to(device) for name, tensor in to_tensors(stored).items()}
        hidden_BLD = head_inputs(model, **model_inputs(batch, packing=cache.packing))
        for i in range(len(picked)):
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
            rows.append([float(parts.ce), float(parts.kl), float(parts.agreement), float(parts.num_valid), float(num_bytes)])
        if progress is not None:
            progress.at(picked[-1] + 1, total, "windows")
    model.train(was_training)
    return Scores(*np.array(rows, dtype=np.float64).T)
