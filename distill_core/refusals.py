"""What can be known to fail before a run is made and torch is loaded: from the config, the cache's manifest and headers of local models."""

from pathlib import Path

from . import catalog, engines
from .cache import Cache, open_cache
from .config import DistillConfig
from .errors import ConfigError
from .hf_arguments import check_reporters_installed
from .layer_map import layer_pairs
from .limits import num_gpus
from .paths import caches_dir, checked_name

AMD_DRIVER = Path("/dev/kfd")
"""Where it is, torch may have devices called cuda that NVIDIA's driver does not know."""


def check_training(config: DistillConfig, cache: str) -> None:
    """Raise ConfigError, CacheError or ModelError for a training that could only fail.

    A cache that is still being captured is looked at when its turn comes.
    """
    check_settings(config)
    folder = caches_dir() / checked_name(cache, "cache")
    if (folder / "manifest.json").exists():
        opened = open_cache(cache)
        check_tokens_of(config, opened)
        if config.loss.hidden_weight:
            layer_pairs(config.loss, opened.manifest, cache=cache, num_layers=student_layers(config))
        opened.check_asked(config.loss.top_k, config.loss.temperature, has_drawn=opened.plan.num_exact is not None)


def check_tokens_of(config: DistillConfig, cache: Cache) -> None:
    """Raise ConfigError for a student cut out of the teacher, tokens and all, where the cache speaks another tokenizer's tokens."""
    if cache.is_translated and config.student.init == "prune_layers":
        raise ConfigError(
            f"cache {cache.name} speaks other tokens than its teacher's, so a student cut out of the teacher cannot learn from it. Use "
            "student.init 'pretrained' with a model of those tokens, or 'fresh'."
        )


def check_settings(config: DistillConfig) -> None:
    """Raise ConfigError or ModelError for trackers, a device or a student that cannot be had, whatever the cache."""
    check_reporters_installed(config.train.report_to)
    if engines.chosen() == "local":
        check_device(config.device)
    check_student(config)


def student_layers(config: DistillConfig) -> int | None:
    """How many layers the student will have, where the facts are on this machine; no network is asked."""
    asked = config.student.model if config.student.init == "pretrained" else config.teacher.model
    if catalog.resolve(str(asked)) == "hub":
        return None
    return catalog.student_facts(config, catalog.facts(config.teacher.model)).num_layers


def check_device(device: str) -> None:
    """Raise ConfigError for a CUDA device that this machine's driver does not show."""
    if not device.startswith("cuda") or AMD_DRIVER.exists():
        return
    count, index = num_gpus(), int(device.partition(":")[2] or 0)
    if index >= count:
        found = f"{count} CUDA device{'s' if count > 1 else ''}, numbered from 0" if count else "no CUDA device"
        raise ConfigError(f"device '{device}': this machine has {found}. Use 'auto' or 'cpu'.")


def check_student(config: DistillConfig) -> None:
    """Raise ConfigError for sizes and layers that do not fit the teacher, where its facts are on this machine; no network is asked."""
    if config.student.init == "pretrained":
        catalog.resolve(str(config.student.model))
    elif catalog.resolve(config.teacher.model) != "hub":
        catalog.student_facts(config, catalog.facts(config.teacher.model))
