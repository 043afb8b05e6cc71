"""What is wrong with a config, in our words: one line for every fault that pydantic found."""

from typing import get_args

from pydantic import BaseModel, ValidationError

from .errors import did_you_mean

PLAIN_KINDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
}
"""pydantic's types of fault, and what the value should have been."""


def _section_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    for name in path:
        field = model.model_fields.get(str(name))
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner is None:
            return model
        model = inner
    return model


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Every fault in one line each: which key, what is wrong, with which value, what to do."""
    lines = []
    for fault in error.errors():
        path = fault["loc"]
        dotted = ".".join(str(part) for part in path) or model.__name__
        if fault["type"] == "extra_forbidden":
            known = _section_at(model, path[:-1]).model_fields
            lines.append(f"no option '{dotted}'.{did_you_mean(str(path[-1]), known)}")
        elif fault["type"] == "value_error":
            words = fault["msg"].removeprefix("Value error, ")
            lines.append(words if words.endswith((".", "?")) else f"{words}.")
        elif fault["type"] in PLAIN_KINDS:
            lines.append(f"{dotted} takes {PLAIN_KINDS[fault['type']]}, got {fault['input']!r}.")
        else:
            lines.append(f"{dotted}: {fault['msg'].lower()}, got {fault['input']!r}.")
    return "\n".join(lines)
