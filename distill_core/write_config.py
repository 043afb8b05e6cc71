"""The section 'write': texts that a model writes, to be captured and learned from like any other."""

from typing import Annotated

from pydantic import Field, field_validator

from .section import FolderName, Positive, Section

BY_TEACHER = "teacher"


class WriteConfig(Section):
    by: str = BY_TEACHER
    """Who writes: 'teacher', or 'run:NAME', a student made here (on-policy rounds: the teacher then reads what the student writes)."""
    name: FolderName | None = None
    """Name of the text in texts/; none: made from writer and source. Read it with text.source or text.synthetic 'written:NAME'."""
    num_texts: Positive = 200
    """Texts to keep. What is rejected is written again, with other random numbers, up to four times as many in all."""
    instruction: str = ""
    """For models with a chat template: what to do with each beginning, which stands for {text}, such as 'Tell this in other words: {text}';
    the answer is kept. Empty: the model continues the beginning, and both are kept."""
    prompt_tokens: Positive = 16
    """Length of a beginning; documents of fewer than twice as many give half of theirs. With an instruction: at most so much of each."""
    max_new_tokens: Positive = 256
    """Written tokens at most; time and memory grow with them."""
    min_new_tokens: Annotated[int, Field(ge=1)] = 8
    """Texts that end before are rejected as too short."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """1: as the model believes; below: safer and more alike; above: more varied and more often wrong."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Each token comes from the most likely ones that together have this probability; 1: from all."""
    max_repeated: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Texts in which more of the four-token sequences than this share have been there before are rejected; 1: none are."""
    keep_unfinished: bool = True
    """Keep texts that were cut off at max_new_tokens. Off for ce_weight on them, which would teach the student to stop in mid-sentence."""
    batch_texts: Positive = 16
    """Texts written at once: faster on a GPU, more memory. Changes rounding, and so now and then a word."""
    seed: int = 0
    """Each text has random numbers of its own, from this and its number."""

    @field_validator("by")
    @classmethod
    def _is_a_writer(cls, by: str) -> str:
        if by != BY_TEACHER and not (by.startswith("run:") and by != "run:"):
            raise ValueError(f"write.by '{by}' is not 'teacher' or 'run:NAME'")
        return by

    @field_validator("instruction")
    @classmethod
    def _has_a_place(cls, instruction: str) -> str:
        if instruction and "{text}" not in instruction:
            raise ValueError(f"write.instruction '{instruction}' has no place for the beginning. Put {{text}} where it shall stand")
        return instruction
