"""The pictures: one pure function per question, each from plain rows to an Altair chart, empty rows included."""

from .belief import belief_chart, mass_chart, taught_chart
from .style import LIVE, SCHEMA_VERSION, Row, Rows, spec
from .tables import JUDGE_QUESTIONS, PART_COLORS, WHO_COLORS, judge_chart, kept_mass_chart, plan_chart
from .training import agreement_chart, capture_chart, gradient_chart, heldout_chart, loss_chart, memory_chart, speed_chart

__all__ = [
    "JUDGE_QUESTIONS",
    "LIVE",
    "PART_COLORS",
    "SCHEMA_VERSION",
    "WHO_COLORS",
    "Row",
    "Rows",
    "agreement_chart",
    "belief_chart",
    "capture_chart",
    "gradient_chart",
    "heldout_chart",
    "judge_chart",
    "kept_mass_chart",
    "loss_chart",
    "mass_chart",
    "memory_chart",
    "plan_chart",
    "spec",
    "speed_chart",
    "taught_chart",
]
