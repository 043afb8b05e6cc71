"""What a config's student keeps of its teacher, as plain numbers: measured once, written beside the run, and read when it is resumed."""

from typing import NamedTuple, Self

import torch

from .. import models
from ..cache import Cache
from ..catalog.shapes import kept_layers
from ..config import DistillConfig
from ..heads import probe_head
from .layers import Sample, Say, layer_list, left_out, order_of_removal
from .units import find_mlp, measure_units, most_important


class Structure(NamedTuple):
    layers: tuple[int, ...]
    """Of the teacher, counted from 0, in their order."""
    units: tuple[tuple[int, ...], ...] | None = None
    """For each of these layers the feed-forward units that stay; none: all."""

    def to_dict(self) -> dict[str, list]:
        return {"layers": list(self.layers)} | ({} if self.units is None else {"units": [list(each) for each in self.units]})

    @classmethod
    def from_dict(cls, values: dict[str, list]) -> Self:
        return cls(tuple(values["layers"]), tuple(map(tuple, values["units"])) if "units" in values else None)


def choose(config: DistillConfig, cache: Cache, device: torch.device, say: Say) -> Structure:
    """Measure on the cache's training windows which layers and units the student keeps; the teacher is loaded for it, and let go.

    Raises ConfigError for more layers or units than there are, ModelError for a teacher whose parts are not recognised.
    """
    student, source = config.student, config.teacher.model
    teacher = models.load_model(source, revision=config.teacher.revision, device=device)
    num_layers, width = teacher.config.get_text_config().num_hidden_layers, teacher.config.get_text_config().hidden_size
    layers = list(teacher.get_submodule(layer_list(teacher, num_layers, source)))
    chosen, sample = kept_layers(student, num_layers), Sample(cache)
    if student.layer_choice == "importance":
        say(f"measuring on {sample.count} windows which {num_layers - len(chosen)} of {num_layers} layers can go")
        ops = probe_head(teacher, cache.plan.vocab_size)
        gone = {removal.layer for removal in order_of_removal(teacher, layers, ops, sample, until=len(chosen), say=say)}
        chosen = tuple(layer for layer in range(num_layers) if layer not in gone)
    if student.intermediate_size is None:
        return Structure(chosen)
    mlps = [find_mlp(layers[layer], width, place=layer, source=source) for layer in chosen]
    say(f"measuring on {sample.count} windows which {student.intermediate_size:,} of {mlps[0].num_units:,} feed-forward units stay")
    with left_out([layer for place, layer in enumerate(layers) if place not in chosen]):
        importances = measure_units(teacher, [layers[layer] for layer in chosen], mlps, sample)
    return Structure(chosen, tuple(most_important(importance_I, student.intermediate_size) for importance_I in importances))
