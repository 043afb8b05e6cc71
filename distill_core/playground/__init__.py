"""What the playground shows, without a widget: one position's belief at any temperature and K, what tail modes teach, mass over K and T."""

from .belief import Belief, Lesson, Place, believe, lesson
from .mass import TEMPERATURES, MassTable, highest_temperature, mass_of_top, mass_table, smallest_k
from .window import OpenCache, Window, open_shared

__all__ = [
    "TEMPERATURES",
    "Belief",
    "Lesson",
    "MassTable",
    "OpenCache",
    "Place",
    "Window",
    "believe",
    "highest_temperature",
    "lesson",
    "mass_of_top",
    "mass_table",
    "open_shared",
    "smallest_k",
]
