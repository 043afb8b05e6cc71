"""A chain: a student taught by the student before it, or rounds of one student; each link an ordinary cache and run. No torch.

record   what a chain is, frozen in chains/NAME/chain.json; its links, with their names and configs
checks   what can be known to be senseless before the first link: sizes, tokenizers, a student larger than its teacher
drive    lets the links be worked on, one after the other; what is there already is taken as it is
results  every link's student beside the first teacher, as rows, table and verdict; views: the same on the screen
deletion a chain goes with all that it made
"""

from .deletion import delete_chain
from .drive import carry_on, resume, start_in_background, stop, submit
from .record import Chain, Link, check_may_touch, create_chain, list_chains, open_chain, warnings_of
from .results import rows, state_of, table, verdict
from .views import KINDS, STATES, table_rows

__all__ = [
    "KINDS",
    "STATES",
    "Chain",
    "Link",
    "carry_on",
    "check_may_touch",
    "create_chain",
    "delete_chain",
    "list_chains",
    "open_chain",
    "resume",
    "rows",
    "start_in_background",
    "state_of",
    "stop",
    "submit",
    "table",
    "table_rows",
    "verdict",
    "warnings_of",
]
