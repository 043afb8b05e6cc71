"""Memory before it is spent: the predicted peak of a training step, for the three ways to distil, against what devices have.

formulas    bytes of each part            prediction  which parts are alive together: the peak of each way
reports     facts, limit and advice       fitting     which GPU it fits, how long the windows may be
published   what others measured, to put beside it
"""

from .fitting import GPU, fitting_gpus, gpus, longest_windows
from .formulas import activation_bytes, chunk_tokens, layer_activation_bytes, loss_bytes
from .prediction import MODES, PARTS, PROGRAM_BYTES, Mode, peaks, plan, plan_over
from .published import PUBLISHED, PublishedPoint, published_config
from .reports import Knob, Report, knobs, report, savings

__all__ = [
    "GPU",
    "MODES",
    "PARTS",
    "PROGRAM_BYTES",
    "PUBLISHED",
    "Knob",
    "Mode",
    "PublishedPoint",
    "Report",
    "activation_bytes",
    "chunk_tokens",
    "fitting_gpus",
    "gpus",
    "knobs",
    "layer_activation_bytes",
    "longest_windows",
    "loss_bytes",
    "peaks",
    "plan",
    "plan_over",
    "published_config",
    "report",
    "savings",
]
