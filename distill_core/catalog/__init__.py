"""What is known of a model before its weights: facts from headers, the Hub or the list that ships; the shape a student would have."""

from .lookup import builtin_folder, config_facts, facts, listed_facts, models_table, resolve, token_of_id
from .model_facts import ModelFacts, dtype_in_memory
from .shapes import check_window, student_facts

__all__ = [
    "ModelFacts",
    "builtin_folder",
    "check_window",
    "config_facts",
    "dtype_in_memory",
    "facts",
    "listed_facts",
    "models_table",
    "resolve",
    "student_facts",
    "token_of_id",
]
