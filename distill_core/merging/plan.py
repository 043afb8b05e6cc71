"""What a merge will write, before it writes: which caches go together, with which weights, and the frozen plan of the result."""

import json
import shlex
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from .. import catalog
from ..cache import Cache, Fingerprint, Plan, ShardPlan, open_cache
from ..cache.manifest import Teacher
from ..config import DistillConfig, from_dict
from ..errors import CacheError, ConfigError
from ..paths import checked_name

By = Literal["mixture", "pick", "join"]
BY: tuple[By, ...] = get_args(By)
KEPT_FIELDS = ("tokenizer.vocabulary_sha256", "tokenizer.chat_template_sha256", "text.source", "text.window_tokens", "text.packing")


class Merge(BaseModel):
    """What is asked for, as the run's inputs and the command hold it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    caches: tuple[str, ...]
    name: str
    by: By = "mixture"
    weights: tuple[float, ...] = ()
    """One for each cache, above 0; they are divided by their sum. None given: all the same. Only a mixture has any."""
    top_k: int | None = None
    """Entries a position keeps of a mixture; none: as many as the cache that has fewest."""

    def shares(self) -> np.ndarray:
        weights = np.array(self.weights or [1.0] * len(self.caches), np.float64)
        return weights / weights.sum()

    def to_inputs(self) -> dict[str, str]:
        """As a run folder keeps it."""
        return {"merge": self.model_dump_json()}

    def command(self) -> str:
        """What makes it again."""
        words = ["python", "-m", "distill_core", "cache", "merge", *self.caches, "--name", self.name]
        words += ["--by", self.by] if self.by != "mixture" else []
        words += ["--weights", ",".join(f"{weight:g}" for weight in self.weights)] if self.weights else []
        words += ["--top-k", str(self.top_k)] if self.top_k else []
        return shlex.join(words)


def read_merge(inputs: dict[str, str]) -> Merge:
    return Merge.model_validate_json(inputs["merge"])


def check_merge(merge: Merge) -> list[Cache]:
    """The caches, opened. Raises ConfigError or CacheError, by name, for what cannot be merged; the windows are compared later."""
    checked_name(merge.name, "cache")
    if len(merge.caches) < 2 or len(set(merge.caches)) < len(merge.caches):
        raise ConfigError(f"cache merge needs two caches or more, each once, not: {', '.join(merge.caches) or 'none'}.")
    if merge.name in merge.caches:
        raise ConfigError(f"cache merge: --name {merge.name} is one of the caches to merge. Choose another name.")
    _check_weights(merge)
    caches = [open_cache(name) for name in merge.caches]
    for cache in caches:
        if cache.plan.merged == "mixture":
            raise CacheError(f"cache {cache.name} is a mixture itself. Merge the caches that it was made of in one go, with all weights.")
    first = caches[0]
    for other in caches[1:]:
        check_tokenizers(first, other)
        for what in ("window_tokens", "packing") + (() if merge.by == "mixture" else ("top_k", "num_exact", "codec")):
            ours, theirs = getattr(first.plan, what), getattr(other.plan, what)
            if ours != theirs:
                raise CacheError(
                    f"caches {first.name} and {other.name} differ in {what}: {ours} and {theirs}. Merge by {merge.by} needs them alike: "
                    "capture one of them again."
                )
    if merge.by == "mixture":
        _check_mixture(merge, caches)
    return caches


def _check_weights(merge: Merge) -> None:
    weights = merge.weights
    if not weights:
        return
    if merge.by != "mixture":
        raise ConfigError(f"--weights are for a mixture; merging by {merge.by} has none. Leave them out, or use --by mixture.")
    if len(weights) != len(merge.caches):
        raise ConfigError(f"--weights names {len(weights)} numbers for {len(merge.caches)} caches. Give one for each.")
    wrong = [weight for weight in weights if not (weight > 0 and np.isfinite(weight))]
    if wrong:
        raise ConfigError(f"--weights: {wrong[0]:g} is not above 0. A teacher that should not count is left out of the caches instead.")


def _check_mixture(merge: Merge, caches: list[Cache]) -> None:
    for cache in caches:
        if cache.plan.num_exact is not None:
            raise CacheError(
                f"cache {cache.name} was captured with select 'topk+sample': its drawn entries cannot be mixed. "
                "Capture it with --capture.select topk, or merge by pick or join."
            )
    fewest = min(caches, key=lambda cache: cache.plan.top_k)
    if merge.top_k is not None and not 1 <= merge.top_k <= fewest.plan.top_k:
        raise ConfigError(f"--top-k {merge.top_k} must lie between 1 and {fewest.plan.top_k}, which is what cache {fewest.name} holds.")


def check_tokenizers(first: Cache, other: Cache) -> None:
    """Raise CacheError, with the first differing tokens, unless both caches' tokenizers cut text alike."""
    ours, theirs = _tokenizer(first), _tokenizer(other)
    tokens, their_tokens = _tokens(ours), _tokens(theirs)
    differing = [i for i in range(max(len(tokens), len(their_tokens))) if tokens[i : i + 1] != their_tokens[i : i + 1]]
    if differing:
        shown = "; ".join(f"{i}: {_token(tokens, i)} and {_token(their_tokens, i)}" for i in differing[:3])
        raise CacheError(
            f"caches {first.name} and {other.name} have different tokenizers: {len(differing):,} tokens differ ({shown}). Only teachers "
            "that share a tokenizer can be merged."
        )
    for part in ("merges", "pre_tokenizer", "normalizer"):
        if _part(ours, part) != _part(theirs, part):
            raise CacheError(
                f"caches {first.name} and {other.name} have the same tokens, but their tokenizers cut text differently ({part})."
                " Only teachers that share a tokenizer can be merged."
            )


def _tokenizer(cache: Cache) -> dict[str, Any]:
    path = cache.tokenizer_folder / "tokenizer.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CacheError(f"cache {cache.name}: tokenizer/tokenizer.json cannot be read ({error}). Capture again.") from None


def _tokens(tokenizer: dict[str, Any]) -> list[str | None]:
    """Token by id; none where an id stands for nothing."""
    by_id = catalog.token_of_id(tokenizer)
    return [by_id.get(i) for i in range(max(by_id, default=-1) + 1)]


def _token(tokens: list[str | None], i: int) -> str:
    return repr(tokens[i]) if i < len(tokens) else "none"


def _part(tokenizer: dict[str, Any], name: str) -> Any:
    return tokenizer["model"].get("merges") if name == "merges" else tokenizer.get(name)


def make_plan(merge: Merge, caches: list[Cache]) -> Plan:
    """The frozen plan. A mixture and a pick have the shards of the first cache; a join has those of all, one cache after the other.

    Hidden states are left out: those of several teachers speak different languages.
    """
    first = caches[0].plan
    top_k = merge.top_k or min(cache.plan.top_k for cache in caches)
    fields = {
        "merge.by": merge.by,
        **{f"merge.{i}.cache": cache.name for i, cache in enumerate(caches)},
        **{f"merge.{i}.sha256": cache.manifest.sha256() for i, cache in enumerate(caches)},
        **({f"merge.{i}.weight": repr(float(share)) for i, share in enumerate(merge.shares())} if merge.by == "mixture" else {}),
        **{name: first.fingerprint.fields[name] for name in KEPT_FIELDS if name in first.fingerprint.fields},
        "capture.top_k": str(top_k),
        "capture.codec": first.codec,
    }
    changes = {"fingerprint": Fingerprint(fields=fields), "top_k": top_k, "merged": merge.by, "hidden": None}
    if merge.by == "join":
        changes["shards"] = _joined_shards(caches)
    return first.model_copy(update=changes)


def _joined_shards(caches: list[Cache]) -> tuple[ShardPlan, ...]:
    shards: list[ShardPlan] = []
    begins: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for split in dict.fromkeys(shard.split for cache in caches for shard in cache.plan.shards):
        for shard in [shard for cache in caches for shard in cache.plan.shards if shard.split == split]:
            number, begin = numbers.get(split, 0), begins.get(split, 0)
            shards.append(ShardPlan(name=f"{split}-{number:05d}", split=split, first_window=begin, num_windows=shard.num_windows))
            numbers[split], begins[split] = number + 1, begin + shard.num_windows
    return tuple(shards)


def merge_config(merge: Merge, caches: list[Cache]) -> DistillConfig:
    """The config that training on the result begins from: the first cache's, with what the merge changed. Raises ConfigError."""
    values = dict(caches[0].manifest.config)
    try:
        config = from_dict(values)
    except (ConfigError, ValidationError):
        config = DistillConfig()
    plan = make_plan(merge, caches)
    windows = {split: sum(shard.num_windows for shard in plan.shards if shard.split == split) for split in ("train", "heldout")}
    return config.changed(
        capture=config.capture.changed(name=merge.name, top_k=plan.top_k, hidden_layers=(), hidden_size=None),
        text=config.text.changed(num_windows=max(1, windows["train"]), num_heldout_windows=max(1, windows["heldout"])),
    )


def merged_teacher(merge: Merge, caches: list[Cache]) -> Teacher:
    """Says what the result's 'teacher' is: all of them, in words; sizes are summed, samples are the first one's."""
    teachers = [cache.manifest.teacher for cache in caches]
    links = {"mixture": " + ", "pick": " or ", "join": " and "}
    shares = [f"{share:.3g} x " for share in merge.shares()] if merge.by == "mixture" else [""] * len(teachers)
    words = links[merge.by].join(f"{share}{teacher.model}" for share, teacher in zip(shares, teachers, strict=True))
    licences = list(dict.fromkeys(teacher.license or "unknown" for teacher in teachers))
    return teachers[0].model_copy(
        update={
            "model": words,
            "num_parameters": sum(teacher.num_parameters for teacher in teachers),
            "disk_bytes": sum(teacher.disk_bytes for teacher in teachers),
            "license": None if licences == ["unknown"] else " and ".join(licences),
            "read_tokens_per_s": None,
            "generated_tokens_per_s": None,
            "first_token_s": None,
        }
    )


def copy_tokenizer(source: Path, to: Path) -> None:
    """Every file of the tokenizer, so that the result needs no other cache."""
    to.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
