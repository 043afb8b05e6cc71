"""How the walk's controls become one config and back. No widgets here."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..cache import Cache
from ..config import BUILTIN, DistillConfig, StudentConfig, from_dict, without_unset_steps
from ..errors import DistillError
from ..language import ENGLISH, Say
from ..paths import local_path
from .options import AUTOMATIC

Values = Mapping[str, Any]

T = TypeVar("T")

LEARNING_RATES = {"fresh": 5e-3, "prune_layers": 5e-4, "pretrained": 5e-5}
"""Peak learning rates that suit each way to begin: random weights bear the largest, trained ones want to be kept."""
TEXT_FIELDS = ("column", "split", "window_tokens", "num_windows", "packing", "synthetic_share")
CAPTURE_FIELDS = ("top_k", "codec", "hidden_codec")
LOSS_FIELDS = (
    "temperature", "divergence", "tail", "jsd_weight", "z_loss_weight", "positions", "position_share", "hidden_weight",
    "adversarial_weight", "adversarial_radius",
)  # fmt: skip
TRAIN_FIELDS = ("seed", "gradient_accumulation_steps", "activation_checkpointing", "bf16", "weight_decay")
"""Controls that are a field of the config, under its name and with its value."""


def tried(call: Callable[..., T], *args: Any, **named: Any) -> tuple[T | None, str]:
    """(result, '') or, where the call says what its user did wrong, (None, its words). Other errors pass: they are ours."""
    try:
        return call(*args, **named), ""
    except DistillError as error:
        return None, str(error)


def teacher_kind(model: str) -> str:
    return BUILTIN if model == BUILTIN else "local" if model.endswith(".gguf") or local_path(model).exists() else "hub"


def text_kind(source: str) -> str:
    return BUILTIN if source == BUILTIN else "local" if local_path(source).suffix in (".txt", ".jsonl", ".parquet") else "hub"


def config_from(base: DistillConfig, values: Mapping[str, Values]) -> DistillConfig:
    """One config from the controls' values, section by section, over `base` for all they do not show. Raises ConfigError."""
    teacher, text, student, loss, train = (values[name] for name in ("teacher", "text", "student", "loss", "train"))
    plain = base.model_dump()
    model = BUILTIN if teacher["kind"] == BUILTIN else teacher["model"].strip()
    if model != base.teacher.model:
        plain["teacher"] = {"model": model}
    source = BUILTIN if text["kind"] == BUILTIN else text["source"].strip()
    plain["text"] |= {name: text[name] for name in TEXT_FIELDS} | {"source": source}
    plain["text"] |= {name: text[name].strip() or None for name in ("subset", "synthetic")}
    if text["num_windows"] != base.text.num_windows:
        plain["text"]["num_heldout_windows"] = min(64, max(8, text["num_windows"] // 4))
    plain["capture"] |= {name: values["capture"][name] for name in CAPTURE_FIELDS} | _context_from(base, values["capture"])
    plain["capture"]["hidden_layers"] = layers = values["capture"]["hidden_layers"].strip()
    if not layers:
        plain["capture"]["hidden_size"] = None
    init = student["init"]
    plain["student"] = _student_from(base, student)
    plain["loss"] |= {name: loss[name] for name in LOSS_FIELDS} | {"top_k": loss["top_k"] or None}
    if not loss["hidden_weight"]:
        plain["loss"]["layer_map"] = ()
    if loss["positions"] == "all":
        plain["loss"]["position_share"] = 1.0
    hard = loss["hard_share"]
    if hard != control_values(base)["loss"]["hard_share"]:
        plain["loss"] |= {"kl_weight": round(1 - hard, 4), "ce_weight": round(hard, 4)}
    steps = train["max_steps"]
    rate = train["learning_rate"]
    if steps and steps != base.train.max_steps:  # looks at the held-out text and warm-up follow the number of steps
        plain["train"] = without_unset_steps(base.train)
    plain["train"] |= {
        "max_steps": steps,
        "per_device_train_batch_size": train["batch_size"],
        "learning_rate": LEARNING_RATES[init] if rate == AUTOMATIC else float(rate),
        "name": None,
        **{name: train[name] for name in TRAIN_FIELDS},
    }
    return from_dict(plain)


def configs_from(
    base: DistillConfig, values: Mapping[str, Values], *, say: Say = ENGLISH
) -> tuple[DistillConfig | None, DistillConfig | None, str, str]:
    """(the config, the one to capture with, what is wrong, what is wrong with the student alone).

    Capturing needs no student: with one that cannot be, there is no config, but one to capture with, whose student is that of `base`.
    """
    student = values["student"]
    if student["init"] == "pretrained" and not student["model"].strip():
        config, wrong = None, say("Name the smaller model: its Hugging Face id, a folder, or a .gguf file.")
    else:
        config, wrong = tried(config_from, base, values)
    if config is not None:
        return config, config, "", ""
    reading, problem = tried(config_from, base, {**values, "student": control_values(base)["student"]})
    return None, reading, problem, "" if problem else wrong


def _context_from(base: DistillConfig, capture: Values) -> dict[str, Any]:
    """The teacher's context as typed, in place of a file's; as in `base`, file and white space included, while it is not changed."""
    typed = capture["context"]
    if typed == (base.capture.context or ""):
        return {}
    return {"context": typed, "context_file": None} if typed.strip() else {"context": None}


def _student_from(base: DistillConfig, student: Values) -> dict[str, Any]:
    """The student section; what the controls do not show stays as in `base` while the way to begin is the same."""
    init = student["init"]
    chosen: dict[str, Any] = base.student.model_dump() if init == base.student.init else {}
    chosen["init"] = init
    if init == "pretrained":
        model = student["model"].strip() or None
        if model != base.student.model:
            chosen["revision"] = None
        return chosen | {"model": model} | _adapters_from(base, student)
    num_layers = student["num_layers"] or None
    if num_layers != base.student.num_layers:
        chosen["keep_layers"] = None
    chosen["num_layers"] = num_layers
    if init == "fresh":
        return chosen | {"hidden_size": student["hidden_size"] or None}
    if student["layer_choice"] == "importance":
        chosen["keep_layers"] = None
    cut = {"layer_choice": student["layer_choice"], "intermediate_size": student["intermediate_size"] or None}
    return chosen | cut | _adapters_from(base, student)


def _adapters_from(base: DistillConfig, student: Values) -> dict[str, Any]:
    """LoRA's settings: those the controls do not show stay as in `base` while the rank does."""
    rank = student["lora_rank"] or None
    kept = base.student if rank == base.student.lora_rank and student["init"] == base.student.init else StudentConfig()
    chosen = kept.model_dump(include={"lora_alpha", "lora_dropout", "lora_target_modules"})
    quantize = student["quantize"] or None if rank and student["init"] == "pretrained" else None
    return chosen | {"lora_rank": rank, "quantize": quantize}


def control_values(config: DistillConfig) -> dict[str, dict[str, Any]]:
    """The inverse of config_from: what each control shows for a config."""
    kind = teacher_kind(config.teacher.model)
    total = config.loss.kl_weight + config.loss.ce_weight
    rate = config.train.learning_rate
    return {
        "teacher": {"kind": kind, "model": "" if kind == BUILTIN else config.teacher.model},
        "text": {
            "kind": text_kind(config.text.source),
            "source": "" if config.text.source == BUILTIN else config.text.source,
            **config.text.model_dump(include=set(TEXT_FIELDS)),
            "subset": config.text.subset or "",
            "synthetic": config.text.synthetic or "",
        },
        "capture": {
            **config.capture.model_dump(include=set(CAPTURE_FIELDS)),
            "context": config.capture.context or "",
            "hidden_layers": ",".join(map(str, config.capture.hidden_layers)),
        },
        "student": {
            "init": config.student.init,
            "model": config.student.model or "",
            "num_layers": config.student.num_layers or 0,
            "hidden_size": config.student.hidden_size or 0,
            "layer_choice": config.student.layer_choice,
            "intermediate_size": config.student.intermediate_size or 0 if config.student.init == "prune_layers" else 0,
            "lora_rank": config.student.lora_rank or 0,
            "quantize": config.student.quantize or "",
        },
        "loss": {
            **config.loss.model_dump(include=set(LOSS_FIELDS)),
            "top_k": config.loss.top_k or 0,
            "hard_share": round(config.loss.ce_weight / total, 2),
        },
        "train": {
            "max_steps": config.train.max_steps,
            "batch_size": config.train.per_device_train_batch_size,
            "learning_rate": AUTOMATIC if rate == LEARNING_RATES[config.student.init] else f"{rate:g}",
            **config.train.model_dump(include=set(TRAIN_FIELDS)),
        },
    }


def for_cache(config: DistillConfig, cache: Cache) -> DistillConfig:
    """The config with teacher, text and capture as the cache was made: what a training on it is."""
    made = from_dict(cache.manifest.config)
    return config.changed(teacher=made.teacher, text=made.text, capture=made.capture)


def differences(config: DistillConfig, cache: Cache, *, say: Say = ENGLISH) -> list[str]:
    """Settings of teacher, text and capture that are not those of the cache: 'text.num_windows: 400 in the cache, now 800'."""
    made = from_dict(cache.manifest.config)
    return [
        say("{name}: {made} in the cache, now {value}", name=f"{section}.{name}", made=getattr(getattr(made, section), name), value=value)
        for section, fields in (
            ("teacher", ("model", "revision")),
            ("text", tuple(type(config.text).model_fields)),
            ("capture", (*CAPTURE_FIELDS, "hidden_layers", "hidden_size", "context", "context_file")),
        )
        for name in fields
        if (value := getattr(getattr(config, section), name)) != getattr(getattr(made, section), name)
    ]
