"""Which layer of the student learns from which stored layer of the teacher."""

from .cache.manifest import Manifest
from .config import LossConfig
from .errors import ConfigError

Pairs = tuple[tuple[int, int], ...]
"""(student layer, teacher layer) each: 0 is the embeddings, n what layer n gives."""


def layer_pairs(loss: LossConfig, manifest: Manifest, *, cache: str, num_layers: int | None) -> Pairs:
    """The pairs that loss.layer_map names, or every stored layer with the student's layer at the same depth, rounded.

    `num_layers`: the student's; none where it is not known yet (then a map's numbers are not held against it, and there is no default).
    Raises ConfigError for a cache without hidden states, and for layers that are not there.
    """
    hidden = manifest.plan.hidden
    if hidden is None:
        raise ConfigError(
            f"loss.hidden_weight {loss.hidden_weight:g}: cache {cache} holds no hidden states. Capture again under another name with "
            "--capture.hidden_layers, such as 2,4; what that takes: python -m distill_core cache estimate --capture.hidden_layers 2,4"
        )
    for student, teacher in loss.layer_map:
        if teacher not in hidden.layers:
            stored = ", ".join(map(str, hidden.layers))
            raise ConfigError(f"loss.layer_map {student}:{teacher}: cache {cache} holds the teacher's layers {stored}. Name one of them.")
        if num_layers is not None and student > num_layers:
            raise ConfigError(
                f"loss.layer_map {student}:{teacher}: the student has {num_layers} layers, numbered from 1; 0 is its embeddings."
            )
    if loss.layer_map or num_layers is None:
        return loss.layer_map
    depth = manifest.teacher.num_layers or max(hidden.layers)
    return tuple((round(teacher * num_layers / depth), teacher) for teacher in hidden.layers)
