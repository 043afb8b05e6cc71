"""Texts that a model wrote, on disk: what was kept, what was rejected and why, and who wrote it how. No torch.

texts/<name>/
  plan.json            frozen before the first text: writer, weights, beginnings, settings
  parts/*.parquet      while it is written: one file for each batch, so that a kill loses one batch at most
  texts.parquet        what was kept: text, prompt, number, num_tokens, is_finished, repeated
  rejected.parquet     the same of what was not, with the reason
  manifest.json        published last: a text with a manifest is complete
"""

from .judge import REASONS, Draw, Judge, repeated_share
from .record import TextWriter, Written, check_written, delete_text, list_texts, open_text, rejected_examples

__all__ = [
    "REASONS",
    "Draw",
    "Judge",
    "TextWriter",
    "Written",
    "check_written",
    "delete_text",
    "list_texts",
    "open_text",
    "rejected_examples",
    "repeated_share",
]
