"""Image-text teachers: what the teacher reads of an (image, text) pair, aligned with a student that reads the text alone.

The image stands before the text, or at the beginning of a chat's first question. The processor that comes with the teacher says how many
tokens the image takes; the text's own tokens are never cut anew, so the two readings agree token by token.
"""
# B: pairs read at once   S: tokens that the teacher reads   T: tokens of the student's text

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from . import corpus, models
from .config import DistillConfig
from .corpus import Aligner, Document, EncodedDocument, View, behind, encode, leading_ids, on_last_learned, refuse_empty_answers
from .errors import ConfigError, TextError

BESIDE = {"<|image_pad|>": ("<|vision_start|>", "<|vision_end|>")}
"""Placeholders that a family wants between two tokens of its own (Qwen2-VL, arXiv:2409.12191)."""
TOKENS = ("input_ids", "attention_mask")
"""What a processor makes of the text; the rest is the images'."""
KINDS = "token_type_ids"
"""So the names end that say which tokens are images', for families that ask: 1 there, 0 elsewhere."""


@dataclass(kw_only=True)
class Images:
    """Gives every document a view that begins with its image. See corpus.build.Aligner."""

    processor: Any
    tokenizer: Any
    assistant_only_loss: bool = True
    num_pairs: int = field(default=0, init=False)
    num_unaligned: int = field(default=0, init=False)
    longest: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        token = str(self.processor.image_token)
        self._around = BESIDE.get(token, ("", ""))
        self._placeholder = token.join(self._around)
        self._image_id = int(self.tokenizer.convert_tokens_to_ids(token))
        self._leading = leading_ids(self.tokenizer)

    def fields(self) -> dict[str, str]:
        """See Aligner; the images themselves enter with the windows."""
        return {"teacher.processor_sha256": hashlib.sha256(self.processor.to_json_string().encode()).hexdigest()}

    def to_record(self) -> dict[str, Any]:
        """See Aligner."""
        return {"images": {"most_tokens": self.longest, "num_unaligned": self.num_unaligned}}

    def notes(self) -> list[str]:
        """See Aligner."""
        if self.num_unaligned and self.num_unaligned == self.num_pairs:
            raise TextError(
                f"none of {self.num_pairs:,} pairs could be aligned: with an image before the question the chat template writes the "
                "answers in other tokens. Use pairs of image and plain text, or another teacher."
            )
        told = [f"The teacher sees an image before every text, of at most {self.longest:,} tokens; the student reads the text alone."]
        if self.num_unaligned:
            told.append(f"Pairs whose answers the template writes otherwise with an image, left out: {self.num_unaligned:,}.")
        return told

    def aligned(self, document: Document, encoded: EncodedDocument) -> EncodedDocument:
        """See Aligner. Raises TextError for a pair without an image, an image that cannot be read, an empty answer, and a text that names
        the placeholder itself."""
        self.num_pairs += 1
        if document.image is None:
            raise TextError(f"pair {self.num_pairs} has no image. Remove it, or capture without text.image_column.")
        if (encoded.token_ids == self._image_id).any():
            raise TextError(f"pair {self.num_pairs}: its text holds {self.processor.image_token}. Remove it; the image is put in front.")
        ids = self._image_ids(document.image)
        self.longest = max(self.longest, len(ids))
        view = self._in_chat(ids, document, encoded) if document.messages else behind(self._leading, ids, encoded.token_ids)
        if view is None:
            self.num_unaligned += 1
            return replace(encoded, is_target=np.zeros(len(encoded), bool))
        return replace(encoded, view=replace(view, image=document.image, before_pieces=None))

    def _image_ids(self, image: bytes) -> np.ndarray:
        """The image's tokens, as the processor writes them."""
        try:
            picture = open_image(image)
        except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for bytes that are no image
            raise TextError(f"the image of pair {self.num_pairs} cannot be read ({error}). Mend or remove it.") from None
        made = self.processor(text=[self._placeholder], images=[[picture]], add_special_tokens=False)
        return np.array(made["input_ids"][0], np.uint32)

    def _in_chat(self, ids: np.ndarray, document: Document, encoded: EncodedDocument) -> View | None:
        """The template writes the conversation with the placeholder in its first question; its one token there becomes the image's."""
        messages = [dict(each) for each in document.messages or ()]
        refuse_empty_answers(messages)
        asked = next((each for each in messages if each["role"] == "user"), None)
        if asked is None or not self.assistant_only_loss:
            raise TextError(
                f"pair {self.num_pairs}: a chat with an image needs a question of the user, which the image is put before, and "
                "text.assistant_only_loss true."
            )
        asked["content"] = f"{self._placeholder}\n{asked['content']}"
        written = encode(Document(messages=tuple(messages)), self.tokenizer, assistant_only_loss=True)
        places = np.flatnonzero(written.token_ids == self._image_id)
        if len(places) != 1:
            return None
        before, after = (len(self.tokenizer(part, add_special_tokens=False)["input_ids"]) for part in self._around)
        core, at = ids[before : len(ids) - after], int(places[0])
        ids_S = np.concatenate([written.token_ids[:at], core, written.token_ids[at + 1 :]])
        is_target_S = np.concatenate([written.is_target[:at], np.zeros(len(core), bool), written.is_target[at + 1 :]])
        return on_last_learned(encoded.token_ids, encoded.is_target, ids_S, is_target_S)

    def inputs(self, views: Sequence[View], ids_BS: torch.Tensor) -> dict[str, torch.Tensor]:
        """See Aligner: pixels, and what else the family's processor makes of an image; nothing for no views."""
        if not views:
            return {}
        pictures = [[open_image(view.image)] for view in views if view.image is not None]
        made = self.processor(text=[self._placeholder] * len(pictures), images=pictures, padding=True, return_tensors="pt")
        kinds_BS = (ids_BS == self._image_id).long()
        return {name: kinds_BS if name.endswith(KINDS) else tensor for name, tensor in made.items() if name not in TOKENS}


def open_image(content: bytes) -> Any:
    """A picture in RGB. Raises what Pillow raises for bytes that are none."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return picture.convert("RGB")


def aligner_of(config: DistillConfig, tokenizer: Any) -> Aligner | None:
    """What gives the teacher something else to read than the student's windows, or none. Raises ConfigError for both kinds at once,
    ModelError for a teacher that sees no images, and what corpus.context_of does."""
    context = corpus.context_of(config, tokenizer)
    if config.text.image_column is None:
        return context
    if context is not None:
        raise ConfigError("capture.context and text.image_column are both given. Put the words that go with every image into the text.")
    processor = models.load_processor(config.teacher.model, revision=config.teacher.revision)
    return Images(processor=processor, tokenizer=tokenizer, assistant_only_loss=config.text.assistant_only_loss)


def fields_of(aligner: Aligner | None, windows: dict[str, Any]) -> dict[str, str]:
    """What enters the fingerprint of a capture with views: nothing without."""
    if aligner is None:
        return {}
    views = [view for part in windows.values() for row in part.views or [] for view in row]
    shown = hashlib.sha256(b"".join(hashlib.sha256(view.image or b"").digest() for view in views)).hexdigest()
    return aligner.fields() | ({"text.images_sha256": shown} if any(view.image for view in views) else {})
