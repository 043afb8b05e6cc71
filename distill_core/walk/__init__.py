"""The walk without a widget: where a visitor is (place), what the controls mean, what is shown (views, scoreboard)."""

from .place import (
    PLACES,
    STEPS,
    Found,
    Place,
    cache_names,
    capture_to_watch,
    export_folder,
    find,
    moved,
    opening_config,
    place_from,
    resume_all,
    step_states,
    stop_all,
    to_judge,
    what_next,
)

__all__ = [
    "PLACES",
    "STEPS",
    "Found",
    "Place",
    "cache_names",
    "capture_to_watch",
    "export_folder",
    "find",
    "moved",
    "opening_config",
    "place_from",
    "resume_all",
    "step_states",
    "stop_all",
    "to_judge",
    "what_next",
]
