"""The walk's controls as data: what each one is, its label, its stops or choices. The app makes a widget of each, and nothing else.

A section and a name here are a section and a name of the config wherever the config has them; controls.py knows the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..config import BUILTIN
from ..language import Say, later

AUTOMATIC = "suits the student"
"""Value of the learning rate's control that means: as suits the way in which the student begins."""


@dataclass(frozen=True, kw_only=True)
class Control:
    kind: Literal["radio", "dropdown", "slider", "number", "text", "checkbox", "switch"]
    label: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """radio, dropdown: words -> value."""
    stops: tuple[float, ...] = ()
    """slider, and a dropdown of numbers: the values it offers, besides the one it starts at."""
    low: float = 0
    high: float = 1_000_000
    step: float = 1
    """number: its range."""
    placeholder: str = ""
    is_wide: bool = False
    """text: takes the whole width."""
    technique: str = ""
    """Key of techniques.TECHNIQUES that it switches on: the walk says when to use it and what it costs."""


KINDS = {later("built-in (tiny, no download)"): BUILTIN, "Hugging Face": "hub", later("folder or .gguf file"): "local"}
TEXTS = {
    later("built-in stories"): BUILTIN,
    later("Hugging Face dataset"): "hub",
    later("local .txt, .jsonl or .parquet"): "local",
}
INITS = {
    later("fresh small model"): "fresh",
    later("the teacher with layers removed"): "prune_layers",
    later("smaller pretrained model"): "pretrained",
}
DIVERGENCES = {
    later("match all it finds likely (forward KL)"): "forward_kl",
    later("match its favourites (reverse KL)"): "reverse_kl",
    later("something between the two (JSD)"): "jsd",
}
TAILS = {
    later("kept as one entry (bucket)"): "bucket",
    later("spread over the kept (renormalize)"): "renormalize",
    later("left out (drop)"): "drop",
}
POSITIONS = {
    later("all positions"): "all",
    later("where the teacher is least sure (entropy)"): "entropy",
    later("where the student is furthest off (gap)"): "gap",
}
CODECS = {later("plain Parquet columns (exact)"): "exact", later("two thirds of the disk (packed)"): "packed"}
STATE_CODECS = {later("half precision (float16)"): "float16", later("half of that (int8)"): "int8"}
QUANTIZED = {later("their own precision"): "", later("8 bits"): "8bit", later("4 bits (QLoRA)"): "4bit"}
LAYER_CHOICES = {later("evenly: first, last and between"): "even", later("by importance, measured"): "importance"}
RATES = {later("suits the student"): AUTOMATIC} | {
    rate: rate for rate in ("1e-05", "2e-05", "5e-05", "0.0001", "0.0003", "0.001", "0.003", "0.005", "0.01")
}

FORMS: dict[str, dict[str, Control]] = {
    "teacher": {
        "kind": Control(kind="radio", choices=KINDS),
        "model": Control(kind="text", label=later("Id or path"), placeholder=later("Qwen/Qwen3-8B, or a path"), is_wide=True),
    },
    "text": {
        "kind": Control(kind="radio", choices=TEXTS),
        "source": Control(kind="text", label=later("Path or id"), placeholder=later("path, or owner/name")),
        "column": Control(kind="text", label=later("Column (text, or chat messages)")),
        "subset": Control(kind="text", label=later("Subset")),
        "split": Control(kind="text", label=later("Split")),
        "num_windows": Control(kind="slider", label=later("Windows to train on"), stops=(50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)),
        "window_tokens": Control(kind="dropdown", label=later("Tokens in a window"), stops=(64, 128, 256, 512, 1024, 2048, 4096, 8192)),
        "packing": Control(kind="checkbox", label=later("several documents share a window")),
        "synthetic": Control(
            kind="text", label=later("Written text to train on as well"), placeholder=later("written:NAME, or a path"), technique="writing"
        ),
        "synthetic_share": Control(
            kind="slider", label=later("Share of the training windows that are of it"), stops=(0.1, 0.25, 0.5, 0.75, 1)
        ),
    },
    "capture": {
        "top_k": Control(kind="slider", label=later("Tokens kept per position (K)"), stops=(1, 5, 10, 20, 50, 100, 200)),
        "codec": Control(kind="dropdown", label=later("On disk as"), choices=CODECS),
        "hidden_layers": Control(
            kind="text", label=later("Layers whose hidden states are kept"), placeholder="2,4", technique="hidden_states"
        ),
        "hidden_codec": Control(kind="dropdown", label=later("Hidden states on disk as"), choices=STATE_CODECS),
        "context": Control(
            kind="text",
            label=later("Context: what the teacher alone reads before every document"),
            placeholder=later("an instruction, or the beginning of an example"),
            is_wide=True,
            technique="context",
        ),
    },
    "peek": {
        "is_open": Control(kind="switch", label=later("Look into the cache, token by token")),
        "split": Control(kind="dropdown", label=later("Windows"), choices={later("to train on"): "train", later("held out"): "heldout"}),
        "window": Control(kind="number", label=later("Number, from 0"), high=1_000_000_000),
    },
    "student": {
        "init": Control(kind="radio", choices=INITS),
        "num_layers": Control(kind="number", label=later("Layers (0: half of the teacher's)"), high=200),
        "hidden_size": Control(kind="number", label=later("Width (0: half of the teacher's)"), high=16384, step=8),
        "model": Control(kind="text", label=later("Id or path"), placeholder=later("Qwen/Qwen3-0.6B, or a path"), is_wide=True),
        "layer_choice": Control(kind="dropdown", label=later("Which layers stay"), choices=LAYER_CHOICES, technique="structure"),
        "intermediate_size": Control(
            kind="number", label=later("Feed-forward units of each layer (0: all)"), high=200_000, technique="structure"
        ),
        "lora_rank": Control(kind="number", label=later("LoRA rank (0: all weights learn)"), high=4096),
        "quantize": Control(kind="dropdown", label=later("With LoRA, its frozen weights in"), choices=QUANTIZED),
    },
    "loss": {
        "temperature": Control(kind="slider", label=later("Temperature T"), stops=(0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)),
        "hard_share": Control(kind="slider", label=later("Share of hard labels"), stops=(0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)),
        "divergence": Control(kind="dropdown", label=later("The student should"), choices=DIVERGENCES),
        "tail": Control(kind="dropdown", label=later("What K leaves out is"), choices=TAILS),
        "jsd_weight": Control(kind="slider", label=later("JSD: the teacher's share of the mixture"), stops=(0.1, 0.25, 0.5, 0.75, 0.9)),
        "z_loss_weight": Control(kind="dropdown", label=later("Weight of the z-loss, keeps logits small"), stops=(0, 1e-5, 1e-4, 1e-3)),
        "hidden_weight": Control(
            kind="dropdown", label=later("Weight of the hidden states' loss"), stops=(0, 0.1, 0.3, 1, 3), technique="hidden_states"
        ),
        "adversarial_weight": Control(
            kind="dropdown", label=later("Weight of the loss on input changed for the worse"), stops=(0, 0.3, 1, 3), technique="adversarial"
        ),
        "adversarial_radius": Control(
            kind="dropdown", label=later("How far input may be changed, in embeddings' lengths"), stops=(0.02, 0.05, 0.1, 0.3)
        ),
        "positions": Control(kind="dropdown", label=later("Learn from"), choices=POSITIONS, technique="positions"),
        "position_share": Control(
            kind="slider", label=later("Share of the positions that it learns from"), stops=(0.1, 0.25, 0.5, 0.75, 1)
        ),
        "top_k": Control(kind="number", label=later("Use only the first K entries (0: all in the cache)"), high=100_000),
    },
    "train": {
        "max_steps": Control(kind="number", label=later("Steps"), low=1),
        "batch_size": Control(kind="number", label=later("Windows in a step"), low=1, high=1024),
        "learning_rate": Control(kind="dropdown", label=later("Learning rate"), choices=RATES),
        "seed": Control(kind="number", label=later("Seed")),
        "twin": Control(kind="checkbox", label=later("also train its hard-label twin (the same time again)")),
        "gradient_accumulation_steps": Control(kind="number", label=later("Micro-batches in a step"), low=1, high=4096),
        "activation_checkpointing": Control(kind="checkbox", label=later("compute activations twice: less memory, slower")),
        "bf16": Control(kind="checkbox", label=later("bfloat16 (for GPUs)")),
        "weight_decay": Control(kind="number", label=later("Weight decay"), high=10, step=0.01),
    },
}
"""Section -> name -> control, in the order of the screen."""

MORE: dict[str, tuple[str, ...]] = {
    "text": ("packing", "synthetic", "synthetic_share"),
    "capture": ("codec", "hidden_layers", "hidden_codec", "context"),
    "fresh": (),
    "prune_layers": ("layer_choice", "intermediate_size", "lora_rank"),
    "pretrained": ("lora_rank", "quantize"),
    "loss": (
        "jsd_weight",
        "z_loss_weight",
        "top_k",
        "positions",
        "position_share",
        "hidden_weight",
        "adversarial_weight",
        "adversarial_radius",
    ),
    "train": ("gradient_accumulation_steps", "activation_checkpointing", "bf16", "weight_decay", "seed"),
}
"""Those that wait under 'More settings'; the student's by its beginning."""

FIELDS = {
    "teacher": ("model",),
    "text": ("source", "column", "subset", "split"),
    "prune_layers": ("num_layers",),
    "fresh": ("num_layers", "hidden_size"),
    "pretrained": ("model",),
}
"""Text and number fields that a choice asks for: of teacher and text where they are not built in, of the student by its beginning."""


def fields_for(section: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the controls that the choice in `values` asks for; none for what is built in."""
    if section == "student":
        return FIELDS[values["init"]]
    if values["kind"] == BUILTIN:
        return ()
    return FIELDS[section] if section == "teacher" or values["kind"] == "hub" else ("source", "column")


def more_for(section: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the controls under 'More settings'."""
    return MORE[values["init"] if section == "student" else section]


def techniques_of(section: str, names: Iterable[str]) -> tuple[str, ...]:
    """Keys of TECHNIQUES that those controls switch on, each once, in their order."""
    return tuple(dict.fromkeys(key for name in names if (key := FORMS[section][name].technique)))


def arguments(control: Control, value: Any, say: Say) -> dict[str, Any]:
    """What marimo's widget of that kind is made with, the value it starts at included."""
    made: dict[str, Any] = {"value": value, "label": say(control.label)}
    if control.kind == "slider":
        return made | {"steps": sorted({*control.stops, value}), "show_value": True}
    if control.kind in ("radio", "dropdown"):
        choices = {say(words): known for words, known in offered(control, value).items()}
        made |= {"options": choices, "value": next(words for words, known in choices.items() if known == value)}
        return made | ({"inline": True} if control.kind == "radio" else {"allow_select_none": False})
    if control.kind == "number":
        return made | {"start": control.low, "stop": control.high, "step": control.step}
    if control.kind == "text":
        return made | {"placeholder": say(control.placeholder), "full_width": control.is_wide}
    return made


def offered(control: Control, value: Any) -> dict[str, Any]:
    """Choices of a radio or dropdown, words -> value, the one it starts at always among them."""
    if control.choices and value in control.choices.values():
        return dict(control.choices)
    if control.choices:
        return {**control.choices, f"{value:g}" if isinstance(value, float) else str(value): value}
    return {f"{stop:g}": stop for stop in sorted({*control.stops, value})}
