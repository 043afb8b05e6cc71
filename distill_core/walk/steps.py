"""What each of the nine steps says: a sentence at its head, what it needs and what will come while locked, its button, its words."""

from dataclasses import dataclass

from ..language import later


@dataclass(frozen=True, kw_only=True)
class StepWords:
    head: str
    """Markdown."""
    needs: str = ""
    then: str = ""
    """While the step is locked: what it needs, and what will appear here."""
    press: str = ""
    again: str = ""
    """Beside its button: what pressing it does; when it was pressed before."""
    terms: tuple[str, ...] = ()
    """Keys of glossary.TERMS that are explained here."""


WORDS: dict[str, StepWords] = {
    "teacher": StepWords(
        head=later(
            "The large model to learn from. It is only read, never changed. Its facts come before anything is loaded or downloaded."
        ),
        terms=("token", "gguf"),
    ),
    "text": StepWords(
        head=later(
            "What the teacher reads and the student learns from, cut into windows of equal length. Some documents are held out, for "
            "judging."
        ),
        terms=("window", "heldout"),
    ),
    "cache": StepWords(
        head=later(
            "For each token the teacher writes down its most likely next tokens, and how likely each is. Then it leaves memory for good: "
            "*one* reading serves every later training."
        ),
        press=later("The teacher reads the text once, and writes down what it thinks."),
        again=later("There is a cache already. Press again after a change above: a finished one is found, an unfinished one goes on."),
        terms=("cache", "top_k", "kept_mass"),
    ),
    "student": StepWords(
        head=later(
            "The small model that will learn. It must share the teacher's tokens, or the cache would speak of words that it does not have."
        ),
    ),
    "loss": StepWords(
        head=later(
            "What *being wrong* means. The student is pulled towards the teacher's whole distribution (KL), towards the text's own next "
            "token (hard labels), or both."
        ),
        needs=later("a finished cache (step 3)"),
        then=later("Then: temperature, hard labels, and how much of the teacher's belief your cache holds."),
        terms=("kl", "temperature", "hard_labels", "tail", "z_loss"),
    ),
    "plan": StepWords(
        head=later(
            "Three ways to train this student. *Online*: the teacher stays in memory. *Offline dense*: the cache replaces it. *Offline "
            "fused*, what happens here: the loss comes in chunks, and no matrix of all tokens × all vocabulary ever exists."
        ),
        terms=("oom",),
    ),
    "train": StepWords(
        head=later(
            "Each **step** shows the student some windows and turns its weights a little. The *hard-label twin* is the honest comparison: "
            "same student, same text, same steps, no teacher."
        ),
        needs=later("a finished cache (step 3)"),
        then=later("Then: live charts of loss, memory, and agreement with the teacher."),
        press=later("The student learns, then its twin. Watch the lines below fall."),
        again=later("Change something and press again: the earlier run stays on disk."),
        terms=("learning_rate", "floor", "agreement"),
    ),
    "judge": StepWords(
        head=later(
            "How good is the student on text that it never saw? *Bits per byte* compares models whatever their tokens; *KL* says how far "
            "its beliefs are from the teacher's."
        ),
        needs=later("a trained student (step 7)"),
        then=later("Then: the student beside its teacher, its twin and its untrained self, on text none of them was trained on."),
        press=later("Student, twin and teacher are measured on the held-out text, and each writes a little."),
        terms=("bits_per_byte", "kl", "agreement"),
    ),
    "home": StepWords(
        head=later(
            "The student, its tokenizer, and a model card: teacher, cache, temperature, kept mass, measured quality. It loads without this "
            "app."
        ),
        needs=later("a judged student (step 8)"),
        then=later("Then: a folder that plain from_pretrained loads, with a card that says where the student comes from."),
        press=later("Writes a folder that any Hugging Face program can load."),
        terms=("model_card",),
    ),
}
LESSON_HINT = later(
    "The best lesson in this app: set the windows to train on to 100, later to 1,600. With little text a teacher helps a lot; "
    "with plenty, less."
)
