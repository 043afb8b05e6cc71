"""What a student that is cut out of its teacher keeps: measured on a sample of a cache, before anything is trained.

layers   the layers of a model: left out for a while, what that costs, in which order they can go
units    the feed-forward units of a layer: found, measured, and cut out of the weights
report   how many layers can go, as rows and a table
chosen   what a config's student keeps, layers and units together, as plain numbers
"""

from .chosen import Structure, choose
from .layers import LayerCost, Removal, Sample, layer_list, left_out, measure_layers, order_of_removal
from .units import Mlp, cut_units, find_mlp, measure_units

__all__ = [
    "LayerCost",
    "Mlp",
    "Removal",
    "Sample",
    "Structure",
    "choose",
    "cut_units",
    "find_mlp",
    "layer_list",
    "left_out",
    "measure_layers",
    "measure_units",
    "order_of_removal",
]
