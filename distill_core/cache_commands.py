"""The cache's own commands: list, look into, check, estimate, browse, compare, delete."""

import argparse
import sys

from . import jobs
from .cache import Cache, browse, delete_cache, estimate, guessed_speed, list_caches, open_cache, show_browse, verify_records
from .config import DistillConfig
from .errors import ConfigError
from .foreground import carry_out
from .limits import is_gpu
from .merging import BY, Merge
from .runs import list_runs
from .translation import UNALIGNED
from .units import show_count, show_disk


def add_merge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("others", nargs="*", help="merge: the caches to merge with it")
    parser.add_argument("--by", choices=BY, default="mixture", help="merge: mixture (default): the teachers' weighted mean, on the same "
        "text; pick: each window from the teacher that fits its text best; join: caches of different texts, side by side")  # fmt: skip
    parser.add_argument("--weights", metavar="W,W", help="merge: one number above 0 for each cache of a mixture (all the same)")
    parser.add_argument("--to", metavar="MODEL", help="translate: the student's model, or a folder with its tokenizer")
    parser.add_argument(
        "--min-coverage",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="translate: least share of the student's tokens with a row (0.5)",
    )
    parser.add_argument("--unaligned", choices=UNALIGNED, default="hard", help="translate: what training does with the other tokens of the "
        "text: their hard labels (default), or nothing")  # fmt: skip
    parser.add_argument("--name", dest="new_name", metavar="NAME", help="merge, translate: the new cache's name")
    parser.add_argument("--top-k", type=int, metavar="K", help="merge: entries a mixture keeps per position (all that every cache has)")
    parser.add_argument("--background", action="store_true", help="merge, translate: start it and return; see: distill runs show")


TEMPERATURES = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)


def cache(options: argparse.Namespace, config: DistillConfig) -> None:
    """Carry out `cache WHAT [NAME]`; the config is what the command line's settings make of the defaults."""
    if options.what == "list":
        for found in list_caches():
            manifest = found.manifest
            print(f"{found.name}  {manifest.all_positions:,} positions  {show_disk(manifest.num_bytes)}  {manifest.teacher.model}")
        return
    if options.what == "estimate":
        print_estimate(config, num_students=options.students)
        return
    if not options.name:
        raise ConfigError(f"cache {options.what} needs the name of a cache. See them: python -m distill_core cache list")
    if options.what == "delete":
        refuse_if_needed(options.name, is_sure=options.yes)
        print(f"{show_disk(delete_cache(options.name))} came back")
        return
    if options.what == "merge":
        merge(options)
        return
    if options.what == "translate":
        translate(options)
        return
    if options.others:
        raise ConfigError(f"cache {options.what} takes one cache, not {len(options.others) + 1}.")
    opened = open_cache(options.name)
    if options.what == "verify":
        opened.verify()
        verify_records(opened)
        print(f"cache {opened.name}: {len(opened.manifest.entries)} shards, {show_disk(opened.manifest.num_bytes)}, every byte as written")
    elif options.what == "browse":
        table = browse(opened, options.split, options.window, num_choices=options.choices, temperature=config.loss.temperature)
        print(table.write_json() if options.json else show_browse(table))
    elif options.what == "compare":
        from .faithfulness import compare

        found_here = compare(
            opened, num_windows=options.windows, device=config.device, progress=lambda words: print(words, file=sys.stderr)
        )
        print(found_here.to_text())
    else:
        print_cache(options.name)


def merge(options: argparse.Namespace) -> None:
    """Merge the named caches here, or in the background; the same command again goes on, or finds it done."""
    if not options.new_name:
        raise ConfigError("cache merge needs --name NAME for the new cache.")
    wanted = Merge(
        caches=(options.name, *options.others),
        name=options.new_name,
        by=options.by,
        weights=read_weights(options.weights),
        top_k=options.top_k,
    )
    if options.background:
        print(f"run {jobs.submit_merge(wanted).id} is queued")
        return
    name = carry_out(jobs.new_merge(wanted))["cache"]
    print_cache(name)
    print(f"\nTrain on it: python -m distill_core train --cache {name} --twin")


def translate(options: argparse.Namespace) -> None:
    """Write the cache anew for another tokenizer, here or in the background; the same command again goes on, or finds it done."""
    if not options.new_name or not options.to:
        raise ConfigError("cache translate needs --to MODEL, whose tokenizer the student has, and --name NAME for the new cache.")
    asked = {"cache": options.name, "to": options.to, "name": options.new_name}
    asked |= {name: getattr(options, name) for name in ("min_coverage", "unaligned")}
    if options.background:
        print(f"run {jobs.submit_translate(**asked).id} is queued")
        return
    name = carry_out(jobs.new_translation(**asked))["cache"]
    print_cache(name)
    print(f"\nTrain on it: python -m distill_core train --cache {name} --twin")


def read_weights(text: str | None) -> tuple[float, ...]:
    """'0.7,0.3' -> (0.7, 0.3). Raises ConfigError for what is no number."""
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"--weights '{text}' are not numbers with commas between them, such as 0.7,0.3.") from None


def refuse_if_needed(name: str, *, is_sure: bool) -> None:
    """Raise ConfigError if runs learned from the cache and the user did not say that it may go."""
    learned = [run.id for run in list_runs("train") if run.inputs().get("cache") == name]
    if learned and not is_sure:
        raise ConfigError(
            f"cache {name}: {len(learned)} runs learned from it ({', '.join(learned[:3])}{', …' if len(learned) > 3 else ''}). Without it "
            "they can be neither judged nor exported nor resumed. Export what you want to keep, then say --yes."
        )


def print_estimate(config: DistillConfig, *, num_students: int) -> None:
    from . import catalog, corpus

    facts = catalog.facts(config.teacher.model, revision=config.teacher.revision)
    vocab_size = facts.vocab_size_tokenizer or facts.vocab_size_config
    guess = guessed_speed(facts.num_parameters, on_gpu=is_gpu(config.device))
    factor = corpus.reading_factor(config)
    print(
        estimate(
            config, vocab_size=vocab_size, num_students=num_students, guess=guess, context_factor=factor, hidden_size=facts.hidden_size
        ).to_text()
    )


def mass_words(opened: Cache, temperature: float) -> str:
    """'0.340 at T = 2', with the bounds of a mixture, whose tail is not known exactly."""
    words = f"{float(opened.kept_mass(temperature).mean()):.3f} at T = {temperature:g}"
    if opened.plan.merged != "mixture":
        return words
    low, high = (float(bound.mean()) for bound in opened.kept_mass_bracket(temperature))
    return f"{words} ({low:.3f} to {high:.3f})"


def print_cache(name: str) -> None:
    opened = open_cache(name)
    manifest, plan_ = opened.manifest, opened.plan
    positions = manifest.all_positions
    print(f"cache {opened.name} in {opened.folder}")
    print(
        f"  teacher     {manifest.teacher.model}: {manifest.teacher.architecture}, {show_count(manifest.teacher.num_parameters)} parameters"
    )
    print(f"  text        {manifest.num_windows('train'):,} windows to train on, {manifest.num_windows('heldout'):,} held out")
    print(f"  stored      {plan_.stored_words} of {plan_.vocab_size:,} at {positions:,} positions, codec {plan_.codec}")
    if plan_.hidden is not None:
        print(f"  states      {plan_.hidden.words}")
    print(f"  disk        {show_disk(manifest.num_bytes)}, {manifest.num_bytes / max(1, positions):.0f} bytes per position")
    masses = ", ".join(mass_words(opened, T) for T in TEMPERATURES)
    print(f"  kept mass   {masses}")
    print(f"  teacher NLL {-manifest.mean('gold_logprob', 'heldout'):.4f} nats per held-out token")
    print(
        "".join(f"  note        {note}\n" for note in manifest.text.get("notes", ())) if plan_.merged or opened.is_translated else "",
        end="",
    )
    print(f"  sha256      {manifest.sha256()}")
