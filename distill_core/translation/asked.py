"""What is asked for: which cache, for whose tokenizer; what can only fail is said before there is a run."""

import shlex

from .. import catalog
from ..cache import Cache, open_cache
from ..config import DistillConfig, from_dict
from ..errors import CacheError, ConfigError
from ..paths import checked_name, local_path

UNALIGNED = ("hard", "skip")
"""What becomes of tokens of the training text that the two tokenizers cut otherwise: hard labels, or nothing is learned from them."""


def command(asked: dict[str, str]) -> str:
    """What makes it again."""
    words = ["cache", "translate", asked["source"], "--to", asked["to"], "--name", asked["name"], "--min-coverage", asked["min_coverage"]]
    words += ["--unaligned", asked["unaligned"]]
    return shlex.join(["python", "-m", "distill_core", *words])


def check_source(source: Cache) -> None:
    """Raise CacheError for a cache whose rows would not be exact, or whose text is not in its windows."""
    if source.plan.merged == "mixture":
        raise CacheError(
            f"cache {source.name} is a mixture, whose tail is known within bounds only. Translate its caches, then merge those."
        )
    if source.is_translated:
        raise CacheError(f"cache {source.name} is a translation itself. Translate the cache that it was made from.")
    if "teacher_without_context" in source.manifest.text:
        raise CacheError(
            f"the teacher of cache {source.name} had a context or images, which are not in its windows. Capture without them to translate."
        )


def translation_config(cache: str, to: str, name: str, *, min_coverage: float, unaligned: str) -> DistillConfig:
    """The config of the run. Raises CacheError, ConfigError or ModelError for what could only fail."""
    source = open_cache(cache)
    check_source(source)
    if checked_name(name, "cache") == cache:
        raise ConfigError(f"cache translate: --name {name} is the cache itself. Choose another name.")
    if not 0 <= min_coverage <= 1:
        raise ConfigError(f"cache translate: --min-coverage {min_coverage:g} is no share. Give a number from 0 to 1, such as 0.5.")
    if unaligned not in UNALIGNED:
        raise ConfigError(f"cache translate: --unaligned {unaligned} is not known. Give {' or '.join(UNALIGNED)}.")
    return translated_config(source, to, name)


def translated_config(source: Cache, to: str, name: str, *, window_tokens: int | None = None) -> DistillConfig:
    """What training on the result begins from: the source's settings, and the student whose tokens they are, where `to` is a model."""
    has_weights = catalog.resolve(to) != "folder" or (local_path(to) / "config.json").exists()
    config = from_dict(source.manifest.config)
    return config.changed(
        capture=config.capture.changed(name=name, codec="exact", select="topk", num_exact=None, top_k=source.plan.num_ranked),
        text=config.text.changed(window_tokens=max(8, window_tokens or config.text.window_tokens)),
        student=config.student.changed(init="pretrained", model=to) if has_weights else config.student.changed(init="fresh", model=None),
    )
