"""What `write` and `texts` do: let a model write, and look at what it wrote."""

from typing import Any

from . import jobs
from .config import DistillConfig
from .errors import ConfigError
from .foreground import carry_out
from .parsers import Options, add_command, add_settings, settings
from .texts import REASONS, delete_text, list_texts, open_text, rejected_examples
from .units import show_disk

SHOWN_CHARACTERS = 300


def add_parsers(commands_of: Any) -> None:
    """Both commands and their options."""
    words = "let the teacher, or a student, write texts from beginnings of yours, to be learned from"
    parser = add_command(commands_of, "write", words, write)
    parser.add_argument("--background", action="store_true", help="start it and return; follow it with: distill runs show")
    add_settings(parser, "teacher", "text", "write")

    parser = add_command(commands_of, "texts", "list written texts, look into one, delete it", texts)
    parser.add_argument(
        "what", choices=["list", "info", "delete"], help="info: who wrote it how, what was rejected and why, and a few of each"
    )
    parser.add_argument("name", nargs="?", help="the text (info, delete)")


def write(options: Options) -> None:
    config = settings(options)
    if options.background:
        run = jobs.submit_write(config)
        print(f"run {run.id} is queued. Follow it: python -m distill_core runs show {run.id}")
        return
    name = carry_out(jobs.new_writing(config))["text"]
    _print_text(name)
    print(_how_to_use(name, config))


def _how_to_use(name: str, config: DistillConfig) -> str:
    source = f" --text.source {config.text.source}" if config.text.source != DistillConfig().text.source else ""
    return (
        f"\nCapture it beside the other text:  python -m distill_core capture{source} --text.synthetic written:{name}\n"
        f"Look at it:                        python -m distill_core texts info {name}"
    )


def texts(options: Options) -> None:
    if options.what == "list":
        for written in list_texts():
            manifest = written.manifest
            print(f"{written.name}  {manifest.num_texts:,} texts  {show_disk(manifest.num_bytes)}  {manifest.writer}")
        return
    if not options.name:
        raise ConfigError(f"texts {options.what} needs the name of a text. See them: python -m distill_core texts list")
    if options.what == "delete":
        print(f"{show_disk(delete_text(options.name))} came back")
        return
    _print_text(options.name)
    _print_examples(options.name)


def _print_text(name: str) -> None:
    written = open_text(name)
    written.verify()
    manifest = written.manifest
    speed = f", {manifest.written_tokens_per_s:,.0f} tokens/s" if manifest.written_tokens_per_s else ""
    chosen = ", ".join(f"{key} {manifest.settings[key]}" for key in ("temperature", "top_p", "max_new_tokens", "seed"))
    print(f"text {name} in {written.folder}")
    print(f"  written by  {manifest.writer}{speed}; {chosen}")
    print(f"  beginnings  of {manifest.source}, documents that are trained on")
    print(f"  kept        {manifest.num_texts:,} texts, {manifest.num_tokens:,} written tokens, {show_disk(manifest.num_bytes)}")
    print(f"  rejected    {sum(manifest.rejected.values()):,} of {manifest.num_drawn:,}")
    for reason, count in manifest.rejected.items():
        print(f"    {count:>6,} {reason}: {REASONS[reason]}")


def _print_examples(name: str) -> None:
    import polars as pl

    written = open_text(name)
    first = pl.read_parquet(written.path, n_rows=1)
    print(f"\nThe first, after \u2039{first['prompt'][0]}\u203a:\n{_shown(first['text'][0])}")
    for reason, text in rejected_examples(written).iter_rows():
        print(f"\n{reason}: {_shown(text)}")


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
