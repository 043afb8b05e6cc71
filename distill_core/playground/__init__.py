"""What the playground shows: one position's belief at any temperature and K, what tail modes teach, mass over K and T, and the text."""

from .belief import Belief, Lesson, Place, believe, lesson
from .mass import TEMPERATURES, MassTable, highest_temperature, mass_of_top, mass_table, smallest_k
from .rows import advice, belief_facts, belief_rows, mass_rows, mode_words, taught_rows, verdict
from .strip import TokenStrip
from .window import OpenCache, Window, open_shared

__all__ = [
    "TEMPERATURES",
    "Belief",
    "Lesson",
    "MassTable",
    "OpenCache",
    "Place",
    "TokenStrip",
    "Window",
    "advice",
    "belief_facts",
    "belief_rows",
    "believe",
    "highest_temperature",
    "lesson",
    "mass_of_top",
    "mass_rows",
    "mass_table",
    "mode_words",
    "open_shared",
    "smallest_k",
    "taught_rows",
    "verdict",
]
