"""Records in words and figures, as HTML: a model, a cache, what it will cost, the memory plan, the loss, the exported folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cache import Cache, Estimate
from ..catalog.model_facts import ModelFacts
from ..language import ENGLISH, Say
from ..memory import MODES, Report
from ..units import show_count, show_disk, show_gib, show_time
from .pieces import facts, notes, quiet, text


def model_facts(model: ModelFacts, *, say: Say = ENGLISH) -> str:
    """Facts before weights, and the notes one should read before choosing it."""
    vocabulary, meaning = say("{count:,}", count=model.vocab_size_config), say("tokens it knows")
    if model.vocab_size_tokenizer and model.vocab_size_tokenizer != model.vocab_size_config:
        vocabulary = say("{real:,} of {rows:,}", real=model.vocab_size_tokenizer, rows=model.vocab_size_config)
        meaning = say("real tokens of vocabulary rows")
    pairs = [
        (show_count(model.num_parameters), say("parameters")),
        (str(model.num_layers), say("layers")),
        (say("{count:,}", count=model.hidden_size), say("wide")),
        (vocabulary, meaning),
        (show_gib(model.memory_bytes["float32"]), say("memory as float32")),
        (show_gib(model.memory_bytes["bfloat16"]), say("memory as bfloat16")),
    ]
    if model.disk_bytes:
        pairs.append((show_disk(model.disk_bytes), say("on disk") if model.kind != "hub" else say("to download")))
    pairs.append((model.license or say("not stated"), say("licence")))
    gated = say("Gated: its owner wants the terms accepted on its Hugging Face page first, and a token on this machine.")
    return facts(pairs, say=say) + notes([*([gated] if model.gated else []), *map(say.known, model.notes)])


def cost(estimate: Estimate, *, say: Say = ENGLISH) -> str:
    """What the capture will take, and when it has paid for itself."""
    context = [(f"{estimate.context_factor:.2g} ×", say("the windows' tokens: the context is read before every document"))]
    context = context if estimate.context_factor > 1 else []
    pairs = [
        (say("{count:,}", count=estimate.num_tokens), say("tokens to read")),
        *context,
        (say("about {size}", size=show_disk(estimate.disk_bytes)), say("on disk")),
        (say("about {time}", time=show_time(estimate.capture_s)), say("reading ({source})", source=say.known(estimate.speed_from or ""))),
        (f"{estimate.readings:.3g} ×", say("readings that one training would ask of an online teacher")),
    ]
    return facts(pairs, say=say)


def cache_facts(cache: Cache, kept: Mapping[str, float], *, say: Say = ENGLISH) -> str:
    """What is in the cache in use; `kept`: its kept mass at the chosen temperature, with the bounds of it."""
    manifest = cache.manifest
    error = max(kept["highest"] - kept["kept_mass"], kept["kept_mass"] - kept["lowest"], 1e-6)
    windows = say("{train:,} + {heldout:,}", train=manifest.num_windows("train"), heldout=manifest.num_windows("heldout"))
    belief = say(
        "of the teacher's belief at T = {temperature:g} is in the top {top_k}, at most {error:.4%} off",
        temperature=kept["temperature"],
        top_k=cache.plan.num_ranked,
        error=error,
    )
    pairs = [
        (cache.name, say("cache in use")),
        (windows, say("windows to train on + held out")),
        (show_disk(manifest.num_bytes), say("on disk")),
        (f"{kept['kept_mass']:.2%}", belief),
        (f"{-manifest.mean('gold_logprob', 'heldout'):.3f}", say("nats per held-out token: the teacher's own score")),
    ]
    return facts(pairs, say=say)


def student_facts(student: ModelFacts, teacher: ModelFacts, *, say: Say = ENGLISH) -> str:
    """The student's size beside the teacher's."""
    times = teacher.num_parameters / student.num_parameters
    pairs = [
        (show_count(student.num_parameters), say("parameters")),
        (f"{times:.3g} ×", say("smaller than its teacher") if times >= 1 else say("of the teacher's size: not smaller")),
        (say("{part:,} of {all:,}", part=student.num_layers, all=teacher.num_layers), say("layers")),
        (say("{part:,} of {all:,}", part=student.hidden_size, all=teacher.hidden_size), say("width")),
    ]
    if student.hidden_size == teacher.hidden_size and student.intermediate_size != teacher.intermediate_size:
        units = say("{part:,} of {all:,}", part=student.intermediate_size, all=teacher.intermediate_size)
        pairs.append((units, say("feed-forward units")))
    return facts(pairs, say=say)


def stale(changed: Sequence[str], *, say: Say = ENGLISH) -> str:
    """What was changed since the cache in use was made."""
    words = say("These settings are not those of the cache in use, which stays in use until you capture again.")
    return f'<div class="walk-aside"><b>{words}</b>{notes(changed)}</div>'


def plan_words(plan: Report, *, say: Say = ENGLISH) -> str:
    """Whether it fits, what fusing saves, and where it would be tight, what to turn."""
    online, dense, fused = (show_gib(plan.peaks[mode]) for mode in MODES)
    limit, name = show_gib(plan.limit_bytes), say.known(plan.limit_name)
    if plan.fits:
        said = say("It fits: {peak} of the {limit} of {name}.", peak=fused, limit=limit, name=name)
    else:
        said = say("It does not fit: {peak} is more than the {limit} of {name}. What would help:", peak=fused, limit=limit, name=name)
    if plan.peaks[MODES[2]] < plan.peaks[MODES[0]]:
        said += " " + say("Online it would be {online}, offline dense {dense}.", online=online, dense=dense)
    return quiet(text(said)) + (notes(plan.advice) if plan.predicted_gib > 0.7 * plan.limit_gib else "")


def formula(loss: Mapping[str, Any], *, say: Say = ENGLISH) -> str:
    """The loss that the controls describe, as a formula in words."""
    hard, temperature = loss["hard_share"], loss["temperature"]
    teacher, student = say("teacher"), say("student")
    measure = {
        "forward_kl": f"KL({teacher} ‖ {student})",
        "reverse_kl": f"KL({student} ‖ {teacher})",
        "jsd": f"JSD({teacher}, {student})",
    }[loss["divergence"]]
    squared = f" × {say.figure(f'{temperature:g}')}²" if temperature != 1 else ""
    at = " " + say("at T = {temperature:g}", temperature=temperature) if temperature != 1 else ""
    parts = [f"{say.figure(f'{1 - hard:g}')}{squared} × {measure}{at}"] if hard < 1 else []
    if hard > 0:
        parts.append(say("{weight:g} × cross-entropy with the text's next token", weight=hard))
    if loss["z_loss_weight"]:
        parts.append(say("{weight:g} × z-loss", weight=loss["z_loss_weight"]))
    if loss["hidden_weight"]:
        parts.append(say("{weight:g} × hidden states", weight=loss["hidden_weight"]))
    if loss["adversarial_weight"]:
        parts.append(say("{weight:g} × the same on changed input", weight=loss["adversarial_weight"]))
    where = ""
    if loss["positions"] != "all" and loss["position_share"] < 1:
        share = say.figure(f"{loss['position_share']:.0%}")
        where = ", " + say("over {share} of each window's positions", share=share)
    return f'<p class="walk-formula">{say("loss")} = {" + ".join(parts)}{where}</p>'


def kept_mass_words(rows: Sequence[Mapping[str, float]], temperature: float, *, say: Say = ENGLISH) -> str:
    """How to read the kept-mass chart at the chosen temperature, with advice."""
    if not rows:
        return ""
    near = min(rows, key=lambda row: abs(row["temperature"] - temperature))
    kept = near["kept_mass"]
    said = say(
        "At T = {temperature:g} the cache holds {kept:.2%} of the teacher's belief; the rest is the tail.",
        temperature=near["temperature"],
        kept=kept,
    )
    if kept < 0.8:
        said += " " + say("That is little: a lower temperature, or a cache with a larger K, would teach more of what the teacher thinks.")
    elif temperature > 1:
        said += " " + say(
            "A higher temperature makes unlikely words count more. It is no free gain: on the built-in stories T = 1 is best."
        )
    return quiet(text(said))


def suggestions(models: Sequence[tuple[str, int]], *, say: Say = ENGLISH) -> str:
    """Pretrained students that share the teacher's tokenizer, by id and size."""
    if not models:
        return quiet(say("Its tokens are compared with the teacher's before anything is trained."))
    listed = ", ".join(f"<code>{text(name)}</code> ({say.figure(show_count(size))})" for name, size in models)
    return quiet(say("Share its tokenizer: {models}.", models=listed))


def exported(folder: Path, *, say: Say = ENGLISH) -> str:
    """Where the student is, and three lines that load it anywhere."""
    code = "\n".join(
        [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})",
            f"tokenizer = AutoTokenizer.from_pretrained({str(folder)!r})",
        ]
    )
    size = show_disk(sum(path.stat().st_size for path in folder.iterdir() if path.is_file()))
    words = say("It is in <code>{folder}</code> ({size}). Load it anywhere, without this app:", folder=text(folder), size=size)
    return f'<p>{words}</p><pre class="walk-code">{text(code)}</pre>'
