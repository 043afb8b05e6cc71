"""What every section of a config is: frozen, checked at once, each field explained under its name."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from .errors import ConfigError
from .faults import explain
from .paths import checked_name

Positive = Annotated[int, Field(gt=0)]
FolderName = Annotated[str, AfterValidator(lambda name: checked_name(name, "name"))]
Share = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    def changed(self, **values: Any) -> Self:
        """A copy with other values, checked like a new one. Raises ConfigError."""
        try:
            return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **values})
        except ValidationError as error:
            raise ConfigError(explain(type(self), error)) from None
