"""From any text to windows of tokens: documents -> encode -> window, and build_windows, which does all three.

Pure Python, NumPy and Polars. A tokenizer is handed in by the caller; builtin_tokenizer() needs neither torch nor transformers.
"""

from .build import SplitText, build_windows, preview, show_preview
from .encoding import EncodedDocument, Tokenizer, builtin_tokenizer, encode
from .first_batch import document_lengths, show_batch
from .sources import Document, documents
from .windows import Windows, window

__all__ = [
    "Document",
    "EncodedDocument",
    "SplitText",
    "Tokenizer",
    "Windows",
    "build_windows",
    "builtin_tokenizer",
    "document_lengths",
    "documents",
    "encode",
    "preview",
    "show_batch",
    "show_preview",
    "window",
]
