"""The words of the walk, each explained in plain sentences: beside the controls that use it, and all together at the end."""

from ..language import ENGLISH, Say, later
from .pieces import folded, text

TERMS: dict[str, tuple[str, str]] = {
    "token": (
        later("Token"),
        later(
            "A piece of text that models read and write: a short word, or a part of a long one. A model's vocabulary is the list of all "
            "tokens it knows; for each position it gives every one of them a probability."
        ),
    ),
    "window": (
        later("Window"),
        later("A stretch of text of fixed length. Models learn from windows; several documents can share one, and do not see each other."),
    ),
    "heldout": (
        later("Held-out text"),
        later(
            "Documents that are put aside and never trained on. Only they can tell whether a student has learned something, or has only "
            "learned its text by heart."
        ),
    ),
    "cache": (
        later("Cache"),
        later(
            "The teacher's notes on disk: for each position its most likely next tokens and how likely each is. It is made once, and "
            "serves any number of students; the teacher is not needed again."
        ),
    ),
    "top_k": (
        later("Top K"),
        later(
            "Of the thousands of tokens that could come next, the cache keeps the K most likely. A larger K takes more disk and keeps "
            "more of what the teacher thinks."
        ),
    ),
    "kept_mass": (
        later("Kept mass"),
        later("The teacher's probability that falls on the K kept tokens, added up. At 99 % only one part in a hundred is left outside."),
    ),
    "tail": (
        later("Tail"),
        later(
            "All tokens outside the K, together. Kept as one entry (bucket), the student learns how much probability belongs there; spread "
            "over the kept ones or left out, it is told something that the teacher did not say."
        ),
    ),
    "kl": (
        later("KL divergence"),
        later(
            "How far one set of probabilities is from another, in nats: 0 when they are equal, larger the more they differ. Training makes "
            "the KL from teacher to student small. Forward KL wants the student to cover all that the teacher finds likely; reverse KL "
            "lets it keep to the teacher's favourites; JSD lies between the two."
        ),
    ),
    "temperature": (
        later("Temperature"),
        later(
            "Divides the logits before they become probabilities. Above 1 unlikely tokens count more, and the kept K hold less; below 1 "
            "the favourites count more. Teacher and student get the same temperature."
        ),
    ),
    "hard_labels": (
        later("Hard labels"),
        later(
            "The token that really comes next in the text, and nothing else: what a model learns from without a teacher. The hard-label "
            "twin is the same student trained this way, with the same text and as many steps: the fair comparison."
        ),
    ),
    "z_loss": (
        later("z-loss"),
        later("A small penalty on large logits, which keeps them in a range where numbers are exact. 0 leaves it out; 0.0001 is usual."),
    ),
    "oom": (
        later("Out of memory (OOM)"),
        later(
            "The device has no room for what a step needs at its peak, and the run ends. Ways out: fewer windows in a micro-batch, "
            "computing activations twice, a smaller chunk of the loss. The memory plan says what each would save."
        ),
    ),
    "gguf": (
        later("GGUF"),
        later(
            "A file format for models, often with coarser weights, as used by programs that run models on laptops. A teacher can be one."
        ),
    ),
    "learning_rate": (
        later("Learning rate"),
        later(
            "How far each step turns the weights. Too small: slow. Too large: the loss jumps. Fresh students bear much more than "
            "pretrained ones."
        ),
    ),
    "floor": (
        later("Floor line"),
        later(
            "The lowest value that the loss can reach with this cache and these settings. It is not always 0: with hard labels, or with "
            "the tail left out, it lies elsewhere, and the loss can even be negative. Read the distance to the floor."
        ),
    ),
    "bits_per_byte": (
        later("Bits per byte"),
        later(
            "How many bits a model would need to write down one byte of unseen text: lower is better. Models with different vocabularies "
            "can be compared by it, which perplexity does not allow."
        ),
    ),
    "agreement": (
        later("Agreement"),
        later("How often the student's most likely next token is also the teacher's."),
    ),
    "model_card": (
        later("Model card"),
        later("The README that travels with a model: where it comes from, how it was made, how good it is, what it may be used for."),
    ),
}
"""Key -> (term, explanation), in the order in which the walk meets them."""


def why(*keys: str, say: Say = ENGLISH) -> str:
    """Terms that a click, Enter or Space explains, side by side: for the place where they are used."""
    items = "".join(folded(f"{say(TERMS[key][0])} ?", f"<p>{say(TERMS[key][1])}</p>", kind="why") for key in keys)
    return f'<div class="walk-why" role="group" aria-label="{text(say("What these words mean"))}">{items}</div>'


def glossary(*, say: Say = ENGLISH) -> str:
    """All terms, as a list of definitions."""
    items = "".join(f"<dt>{say(term)}</dt><dd>{say(meaning)}</dd>" for term, meaning in TERMS.values())
    return f'<dl class="walk-glossary" lang="{say.code}">{items}</dl>'
