"""A cache in another tokenizer's tokens: where both cut the text at the same two places, and there only. No torch.

asked         what is asked for, and what can only fail
byte_strings  which bytes every token stands for
documents     a document's text out of the teacher's tokens, and the student's tokens of it, each with its place in the bytes
look          all windows of a cache cut anew, once before anything is written
rows          the teacher's entries in the student's tokens; what has no twin joins the tail
"""

from .asked import UNALIGNED, check_source, command, translated_config, translation_config
from .byte_strings import ByteStrings, byte_strings, twins
from .documents import Aligned, Placed, align, placed, rebuilt
from .look import TEXT_COLUMNS, Found, Window, Work
from .rows import Rows, translated

__all__ = [
    "TEXT_COLUMNS",
    "UNALIGNED",
    "Aligned",
    "ByteStrings",
    "Found",
    "Placed",
    "Rows",
    "Window",
    "Work",
    "align",
    "byte_strings",
    "check_source",
    "command",
    "placed",
    "rebuilt",
    "translated",
    "translated_config",
    "translation_config",
    "twins",
]
