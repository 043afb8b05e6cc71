"""From any text to windows of tokens: documents -> encode -> window, and build_windows, which does all three.

Pure Python, NumPy and Polars. A tokenizer is handed in by the caller; builtin_tokenizer() needs neither torch nor transformers.
"""

from .build import Aligner, SplitText, build_windows, preview, show_preview
from .context import Context, context_of, leading_ids, read_context, reading_factor, refuse_empty_answers
from .encoding import EncodedDocument, Tokenizer, builtin_tokenizer, encode
from .first_batch import document_lengths, show_batch
from .sources import Document, documents
from .view import View, behind, on_last_learned
from .windows import Windows, window

__all__ = [
    "Aligner",
    "Context",
    "Document",
    "EncodedDocument",
    "SplitText",
    "Tokenizer",
    "View",
    "Windows",
    "behind",
    "build_windows",
    "builtin_tokenizer",
    "context_of",
    "document_lengths",
    "documents",
    "encode",
    "leading_ids",
    "on_last_learned",
    "preview",
    "read_context",
    "reading_factor",
    "refuse_empty_answers",
    "show_batch",
    "show_preview",
    "window",
]
