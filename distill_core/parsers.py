"""What every command's options are made of: a parser with whole names and near misses, one option per setting, and the config they give."""

import argparse
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, get_args

from .config import DistillConfig, read_config, with_overrides
from .errors import did_you_mean
from .hf_arguments import known_arguments

Options = argparse.Namespace
Handler = Callable[[Options], None]
EPILOG = "Every setting has one name, SECTION.OPTION, in config files, in the app and here. Work is kept in ~/distill, or in $DISTILL_HOME."


class Parser(argparse.ArgumentParser):
    """argparse with whole option names only, a wider help, and a near miss named."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        unknown = [word.partition("=")[0] for word in message.split() if word.startswith("--")] if "unrecognized" in message else []
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = self._hint_for(unknown[0]) if unknown else ""
        if choice:
            hint = did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        self.exit(2, f"error: {message}.{hint if 'Did' in hint else ''} See: {self.prog} --help\n")

    def _hint_for(self, option: str) -> str:
        """The nearest option, or the commands that have it; --help is near to many words and meant by none."""
        parsers = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        having = [name for choices in parsers for name, parser in choices.items() if option in parser.known_options()]
        if having:
            return f" Did you mean another command? {option} belongs to: {', '.join(having)}."
        return did_you_mean(option, [name for name in self.known_options() if name != "--help"])

    def known_options(self) -> list[str]:
        """Its own options and those of its subcommands."""
        names = [name for action in self._actions for name in action.option_strings]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                names += [name for parser in action.choices.values() for name in parser.known_options()]
        return names


def add_command(place: Any, name: str, words: str, handler: Handler) -> Parser:
    parser: Parser = place.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.", epilog=EPILOG)
    parser.set_defaults(handler=handler, parser=parser)
    return parser


def add_settings(parser: Parser, *sections: str) -> None:
    """One option per field of these sections of the config, with its own docstring as help, plus --config and --device."""
    parser.add_argument("--config", metavar="FILE", help="a config file (.json); options given here win over it")
    parser.add_argument(
        "--device", dest="set:device", metavar="DEVICE", default=argparse.SUPPRESS, help=DistillConfig.model_fields["device"].description
    )
    for section in sections:
        model = DistillConfig.model_fields[section].annotation
        also = "any other field of transformers.TrainingArguments too, such as --train.adam_beta2 0.95" if section == "train" else None
        group = parser.add_argument_group(section, also)
        for name, field in model.model_fields.items():  # type: ignore[union-attr]
            default = field.get_default(call_default_factory=True)
            words = f"{field.description} (default: {'none' if default in (None, (), {}) else default})".replace("%", "%%")
            group.add_argument(
                f"--{section}.{name}", dest=f"set:{section}.{name}", metavar=_choices(field), default=argparse.SUPPRESS, help=words
            )
        for name in sorted(known_arguments().keys() - model.model_fields.keys()) if section == "train" else ():  # type: ignore[union-attr]
            group.add_argument(f"--train.{name}", dest=f"set:train.{name}", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _choices(field: Any) -> str:
    """'{a,b,c}' for a field that takes one of several words, else '…'."""
    options = [value for value in get_args(field.annotation) if isinstance(value, str)]
    return "{" + ",".join(options) + "}" if options else "…"


def settings(options: Options, *, base: DistillConfig | None = None) -> DistillConfig:
    """The config of --config (or the base, or the defaults) with the options given on the command line. Raises ConfigError."""
    config = read_config(options.config) if options.config else base or DistillConfig()
    given = {name.removeprefix("set:"): _value(text) for name, text in vars(options).items() if name.startswith("set:")}
    return with_overrides(config, given)


def _value(text: str) -> Any:
    """'[0, 9]', '0,9' and 'null' as what they are; all else stays text, which the config turns into the right type."""
    if re.fullmatch(r"\d+(,\s*\d+)+", text):
        text = f"[{text}]"
    return json.loads(text) if text.startswith("[") or text == "null" else text
