"""What holds several runs together, a sweep or a chain: a folder NAMEs/NAME whose .json is frozen when it is made."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import RunError, did_you_mean
from .paths import checked_name, home, publish


class Frozen(BaseModel):
    """Subclasses say in `kind` what they are: 'sweep' is frozen in sweeps/NAME/sweep.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]
    name: str
    created_s: float

    @classmethod
    def parent(cls) -> Path:
        """Where all of this kind are."""
        return home() / f"{cls.kind}s"

    @property
    def folder(self) -> Path:
        return self.parent() / self.name

    @property
    def path(self) -> Path:
        return self.folder / f"{self.kind}.json"

    @property
    def log_path(self) -> Path:
        return self.folder / "log.txt"

    def ask_to_stop(self) -> None:
        """Ask whoever drives it to let the runs at work save and end, and to begin no other; safe to ask twice."""
        (self.folder / "stop").touch()

    def freeze(self) -> None:
        """Write it into its folder, which is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        publish(self.path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def opened(cls, name: str) -> Self:
        """Raises RunError, with the nearest name, when there is none, or it is not one."""
        path = cls.parent() / checked_name(name, cls.kind) / f"{cls.kind}.json"
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = [each.name for each in cls.all_there()]
            hint = did_you_mean(name, known) if known else " There is none yet."
            raise RunError(f"no {cls.kind} '{name}' in {cls.parent()}.{hint}") from None
        except ValidationError as error:
            faults = error.error_count()
            raise RunError(f"{cls.kind} {name}: {path} is not a {cls.kind} ({faults} faults). Delete its folder to be rid of it.") from None

    @classmethod
    def all_there(cls) -> list[Self]:
        """Newest first; folders that hold none are passed over."""
        found = []
        for path in cls.parent().glob(f"*/{cls.kind}.json"):
            try:
                found.append(cls.model_validate_json(path.read_text(encoding="utf-8")))
            except (ValidationError, FileNotFoundError):  # being deleted now
                continue
        return sorted(found, key=lambda each: each.created_s, reverse=True)

    def name_taken(self) -> RunError:
        """What to raise where another of the same name is there."""
        look = f"python -m distill_core {self.kind} show {self.name}"
        return RunError(f"{self.kind} {self.name}: the name is taken, by other settings. Choose another, or look: {look}")
