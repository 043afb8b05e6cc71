"""What practice knows beyond plain soft targets: each technique's name, when to use it, what it costs, and the command that does it.

The walk shows these sentences beside the setting that switches a technique on, apps/techniques.py as cards; what each one gained is
measured by `python -m distill_core bench techniques`.
"""

from dataclasses import dataclass

from .language import later

COMMAND = "python -m distill_core "


@dataclass(frozen=True, kw_only=True)
class Technique:
    title: str
    when: str
    """One sentence: when to use it."""
    costs: str
    """One sentence: what it costs in time, memory and disk."""
    command: str
    """What stands after `python -m distill_core`."""


TECHNIQUES: dict[str, Technique] = {
    "writing": Technique(
        title=later("Text written by the teacher"),
        when=later(
            "Use it when you have little text of your own: the teacher writes more from its beginnings, and the student learns from both."
        ),
        costs=later("The teacher writes one token at a time, many times slower than it reads; the texts are captured like any other."),
        command="write --write.name more --write.num_texts 500",
    ),
    "hidden_states": Technique(
        title=later("Intermediate layers"),
        when=later("For trials: at 300 steps on the built-in models it made no difference that three seeds can tell from chance."),
        costs=later(
            "Each cached layer takes disk for its whole width at every token, often more than the top 100; steps took a quarter longer."
        ),
        command="train --cache NAME --loss.hidden_weight 1",
    ),
    "several_teachers": Technique(
        title=later("Several teachers"),
        when=later(
            "Use it when two teachers with the same tokenizer are good at different things: mixed on the same text, the better one picked "
            "window by window, or each with texts of its own."
        ),
        costs=later(
            "One capture for each teacher, and the merged cache's disk; merging reads about ten thousand tokens a second; training costs "
            "what it always does."
        ),
        command="cache merge ONE TWO --weights 0.5,0.5 --name BOTH",
    ),
    "chains": Technique(
        title=later("A chain of students"),
        when=later("Use it when the student is very much smaller than the teacher: a middle-sized model teaches in between."),
        costs=later("Every link is a capture, a cache on disk and a training of its own; the middle student's steps cost more."),
        command="chain run steps --chain.kind progressive --student.hidden_size 128,64 --with-direct",
    ),
    "self_distillation": Technique(
        title=later("Self-distillation"),
        when=later("Use it when there is no larger teacher: a model learns again, from an earlier copy of itself."),
        costs=later("Each round costs a capture, its cache on disk, and a whole training from the start."),
        command="chain run again --chain.kind born_again --chain.rounds 2 --with-direct",
    ),
    "on_policy": Technique(
        title=later("On-policy rounds"),
        when=later("Use it when the student shall write by itself: the teacher then corrects the mistakes that the student really makes."),
        costs=later("In each round the student writes, one token at a time, and the teacher reads what it wrote: a cache for each."),
        command="chain run own --chain.kind on_policy --chain.rounds 2 --write.num_texts 400 --with-direct",
    ),
    "adversarial": Technique(
        title=later("Adversarial training"),
        when=later(
            "Use it when input embeddings may be attacked: there the student stays nearer to the teacher. Noise and typos: no difference."
        ),
        costs=later("A step takes two to four times as long, activations take memory twice; a radius that is too large ruins the student."),
        command="train --cache NAME --loss.adversarial_weight 1",
    ),
    "context": Technique(
        title=later("Learning an instruction by heart"),
        when=later("Use it when the teacher needs a long instruction or examples in its prompt: the student learns to do without."),
        costs=later(
            "The teacher reads the instruction again before every document, and the held-out text once more; "
            "training costs what it always does."
        ),
        command="capture --capture.context_file instruction.txt",
    ),
    "structure": Technique(
        title=later("Choosing what to cut"),
        when=later(
            "Use it when the student is cut out of the teacher: a measurement says which layers and feed-forward units it can spare."
        ),
        costs=later(
            "Before training the teacher reads eight windows once for each layer that is tried, at most about half the square of their "
            "number; training and disk are those of any student of that size."
        ),
        command="students importance --cache NAME",
    ),
    "positions": Technique(
        title=later("The most informative tokens only"),
        when=later("Use it when the student already knows the easy tokens: its steps then go where it is furthest from the teacher."),
        costs=later(
            "The student sees fewer targets in a step, which may cost quality; by gap, the output layer is computed once more to find the "
            "positions."
        ),
        command="train --cache NAME --loss.positions gap --loss.position_share 0.5",
    ),
    "tokenizers": Technique(
        title=later("A student with another tokenizer"),
        when=later("Use it when the small model you want comes from another family than the teacher."),
        costs=later(
            "Where the tokenizers cut the text otherwise it learns hard labels: the less they agree, the less it has of its teacher."
        ),
        command="cache translate NAME --to MODEL --name OTHER",
    ),
    "images": Technique(
        title=later("Teachers that see pictures"),
        when=later(
            "Use it when the teacher needs a picture to know what a text speaks of: the student learns to say the same from the text alone."
        ),
        costs=later(
            "The teacher reads each picture as up to some thousand tokens before its text; one pair to a window; "
            "training costs what it always does."
        ),
        command="capture --text.source pairs.parquet --text.image_column image --text.packing false",
    ),
}
"""Name, as `bench techniques --only` knows it -> technique, in the order of the screen."""
