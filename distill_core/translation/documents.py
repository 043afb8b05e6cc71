"""One document: its text out of the teacher's tokens, the student's tokens of the same text, and where both cut it alike."""
# T: tokens of a document, the teacher's or the student's

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus import Document, EncodedDocument, encode
from .byte_strings import ByteStrings


@dataclass(frozen=True)
class Placed:
    """A document's tokens with their places in its bytes."""

    ids_T: NDArray[np.int64]
    ends_T: NDArray[np.int64]
    """Byte at which each ends; a special token covers nothing."""
    is_text_T: NDArray[np.bool_]
    text: bytes
    has_prefix: bool
    """The tokenizer put a space before the text: its first token stands for something else there than elsewhere."""
    ends_itself: bool
    """The last token is the end token."""

    def starts(self) -> NDArray[np.int64]:
        """Byte at which each token begins, [T]."""
        return np.concatenate([[0], self.ends_T[:-1]])


def placed(ids_T: NDArray, token_bytes_T: NDArray, known: ByteStrings) -> Placed | None:
    """None where the tokens do not give the text exactly: special tokens inside it, halves of characters at its ends, or other bytes
    than `token_bytes_T` counted when the text was read."""
    strings = [known.of_id[token] for token in ids_T.tolist()]
    is_text_T = np.array([string is not None for string in strings])
    inside = np.flatnonzero(is_text_T)
    if not len(inside) or not is_text_T[inside[0] : inside[-1] + 1].all():
        return None
    pieces = [string or b"" for string in strings]
    has_prefix = pieces[inside[0]][:1] == b" " and sum(map(len, pieces)) == int(token_bytes_T.sum()) + 1
    if has_prefix:
        pieces[inside[0]] = pieces[inside[0]][1:]
    text, ends_T = b"".join(pieces), np.cumsum([len(piece) for piece in pieces])
    if not _is_as_counted(text, ends_T, token_bytes_T):
        return None
    ends_itself = len(ids_T) > inside[-1] + 1 and ids_T[inside[-1] + 1] == known.eos_id
    return Placed(ids_T.astype(np.int64), ends_T, is_text_T, text, has_prefix, bool(ends_itself))


def _is_as_counted(text: bytes, ends_T: NDArray[np.int64], token_bytes_T: NDArray) -> bool:
    """Whether tokens that end there cover as many bytes as corpus.encode counted in the text itself: it counts a character that several
    tokens share with the first of them, leaves spaces at a token's end, if the tokenizer trims its offsets, to the next one, and may give
    the first character to a space before the text."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    bytes_ = np.frombuffer(text + b"\n", np.uint8)
    whole_T = ends_T.copy()
    while (inside_T := (bytes_[whole_T] & 0xC0) == 0x80).any():
        whole_T[inside_T] += 1
    is_sure_T = (ends_T > 0) & ((bytes_[ends_T - 1] != ord(" ")) | (ends_T == len(text)))
    return bool((whole_T == np.cumsum(token_bytes_T))[is_sure_T].all())


def rebuilt(teacher: Placed, tokenizer: Any, known: ByteStrings) -> tuple[EncodedDocument, Placed] | None:
    """The same text in the student's tokens; without an end token where the teacher's document, cut by a window, has none. None where
    the student's tokenizer does not keep the text as it is."""
    encoded = encode(Document(text=teacher.text.decode()), tokenizer, assistant_only_loss=False)
    if not teacher.ends_itself and len(encoded) and encoded.token_ids[-1] == known.eos_id:
        without = {name: getattr(encoded, name)[:-1] for name in ("token_ids", "is_target", "token_bytes")}
        encoded = EncodedDocument(**without)
    found = placed(encoded.token_ids, encoded.token_bytes.astype(np.int64), known)
    return None if found is None or found.text != teacher.text else (encoded, found)


@dataclass(frozen=True)
class Aligned:
    """Rows of the teacher's that speak of a student's token: row t of either is about token t + 1 of its own document."""

    teacher_rows: NDArray[np.int64]
    student_rows: NDArray[np.int64]


def align(teacher: Placed, student: Placed) -> Aligned:
    """Where a token of both covers exactly the same bytes, so that it also begins at a cut of both; and the end of the document.

    The first text token is left out where either tokenizer put a space before the text: ' Once' is 'Once' there, and nowhere else.
    """
    assert teacher.text == student.text
    keys_T = _keys(teacher)
    _, teacher_T, student_T = np.intersect1d(keys_T, _keys(student), return_indices=True)
    real = (teacher_T > 0) & (student_T > 0) & (keys_T[teacher_T] >= 0)
    if teacher.has_prefix or student.has_prefix:
        real &= teacher.starts()[teacher_T] > 0
    return Aligned(teacher_T[real] - 1, student_T[real] - 1)


def _keys(side: Placed) -> NDArray[np.int64]:
    """A number for each token that is the same for tokens over the same bytes; below 0, each its own, for what cannot be aligned."""
    size = len(side.text) + 1
    covers_T = side.is_text_T & (side.ends_T > side.starts())
    keys_T = np.where(covers_T, side.starts() * size + side.ends_T, -1 - np.arange(len(side.ids_T)))
    if side.ends_itself:
        keys_T[np.flatnonzero(side.is_text_T)[-1] + 1] = size * size
    return keys_T
