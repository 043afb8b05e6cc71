"""The first windows as the student is fed them, for the log and for `data preview --cache`."""

from typing import Any

from ..batches import Visits
from ..cache import Cache
from ..corpus import document_lengths, show_batch

SHOWN_WINDOWS = 2


def first_windows(cache: Cache, visits: Visits, tokenizer: Any) -> str:
    """Windows, masks and document borders of what comes first in the first micro-batch."""
    windows = [visits[visit] for visit in range(min(SHOWN_WINDOWS, len(visits)))]
    rows = cache.rows("train", windows)
    lengths = document_lengths(rows["position_ids"], rows["targets"])
    return show_batch(rows["input_ids"], rows["targets"], lengths, tokenizer, numbers=windows)
