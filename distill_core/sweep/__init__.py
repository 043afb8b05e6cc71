"""A sweep: the same student trained under several settings with several seeds, all from one cache, through the queue. No torch.

record   what is tried, frozen in sweeps/NAME/sweep.json; each trial is an ordinary run
drive    lets the runs be worked on, a few at a time; what is there already is taken as it is
losers   which run is not worth its remaining steps (Optuna's pruner)
results  mean and spread of each setting, and whether one of them can be called the best
advice   where to start: from the cache before any run, from the results afterwards
"""

from .advice import from_cache, from_results, in_text
from .drive import carry_on, start_in_background
from .record import Sweep, Trial, create_sweep, grid_of, list_sweeps, open_sweep
from .results import Setting, rows, rows_by_share, settings, table, verdict

__all__ = [
    "Setting",
    "Sweep",
    "Trial",
    "carry_on",
    "create_sweep",
    "from_cache",
    "from_results",
    "grid_of",
    "in_text",
    "list_sweeps",
    "open_sweep",
    "rows",
    "rows_by_share",
    "settings",
    "start_in_background",
    "table",
    "verdict",
]
