"""A student that reads captions alone learns from a teacher that sees the pictures, or from the same teacher without them.

The teacher is made here, in seconds: a LLaVA (arXiv:2304.08485) of two thin layers, trained on pictures of one coloured square on a
coloured ground, each with a caption that names both. It shows that the path works and what it is worth on text a picture explains; it says
nothing of large teachers.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from ...corpus import Document, encode
from ...images import Images
from ...losses import IGNORE_INDEX
from ...models import load_processor, load_tokenizer
from ...paths import home, publish
from ..techniques import Bench, Pair, cache_bytes

FIGURE = "held-out KL to the teacher that sees the pictures, nats a token"
COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "yellow": (230, 210, 40), "white": (240, 240, 240)}
PLACES = {"left": 1, "right": 9}
SIDE, PATCH, STEPS, BATCH = 16, 8, 400, 16


def compare(bench: Bench, seed: int) -> Pair:
    teacher, pairs = _made(home() / "pictures", bench.base.text.num_windows)
    shared: dict[str, Any] = {"source": str(pairs), "packing": False, "window_tokens": 48}
    blind = _config(bench, seed, teacher, "captions", shared)
    seeing = _config(bench, seed, teacher, "pictures", shared | {"image_column": "image"})
    (without, _), (cache, capture_s) = bench.capture(blind), bench.capture(seeing)
    plain, learned = bench.train(blind, without), bench.train(seeing, cache)
    return Pair(
        plain.outcome(bench.kl(plain.run_id, cache)),
        learned.outcome(bench.kl(learned.run_id, cache), before_s=capture_s, more_bytes=cache_bytes(cache) - cache_bytes(without)),
    )


def _config(bench: Bench, seed: int, teacher: Path, name: str, text: dict[str, Any]) -> Any:
    return bench.seeded(seed, teacher={"model": str(teacher)}, text=text, capture={"name": name})


def _made(folder: Path, num_windows: int) -> tuple[Path, Path]:
    """(the teacher's folder, the pairs as Parquet), made once."""
    pairs, done = folder / "pairs.parquet", folder / "made"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rows = [_pair(number) for number in range(num_windows + num_windows // 2)]
        pl.DataFrame({"text": [text for text, _ in rows], "image": [image for _, image in rows]}).write_parquet(pairs)
        _teach(folder / "teacher")
        publish(done, "")
    return folder / "teacher", pairs


def _pair(number: int) -> tuple[str, bytes]:
    """A caption and its picture; the number at its end makes every caption another document."""
    from PIL import Image

    dice = np.random.default_rng(number)
    square, ground = dice.choice(list(COLOURS), 2, replace=False)
    place = str(dice.choice(list(PLACES)))
    pixels = np.empty((SIDE, SIDE, 3), np.uint8)
    pixels[:] = COLOURS[str(ground)]
    pixels[5:11, PLACES[place] : PLACES[place] + 6] = COLOURS[str(square)]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"There is a {square} square on the {place}. The ground is {ground}. This is picture {number}.", file.getvalue()


def _teach(folder: Path) -> None:
    """A LLaVA with the built-in tokenizer, trained on pairs that no cache holds."""
    import transformers as tf

    tokenizer = load_tokenizer("builtin")
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    model = _model(len(tokenizer), tokenizer.convert_tokens_to_ids("<image>"))
    size = {"height": SIDE, "width": SIDE}
    pixels = tf.CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    rules = {"patch_size": PATCH, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 1}
    tf.LlavaProcessor(image_processor=pixels, tokenizer=tokenizer, **rules).save_pretrained(folder)
    model.save_pretrained(folder)
    processor, optimizer = load_processor(str(folder)), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        made = _batch(processor, tokenizer, range(1_000_000 + step * BATCH, 1_000_000 + (step + 1) * BATCH))
        model(**made).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def _batch(processor: Any, tokenizer: Any, numbers: range) -> dict[str, torch.Tensor]:
    """As a capture lays them out: begin token, picture, caption, end token."""
    aligner, views = Images(processor=processor, tokenizer=tokenizer), []
    for text, image in map(_pair, numbers):
        document = Document(text=text, image=image)
        view = aligner.aligned(document, encode(document, tokenizer, assistant_only_loss=True)).view
        assert view is not None, "plain text is always aligned"
        views.append(view)
    ids_BS = torch.full((len(views), max(len(view.ids_S) for view in views)), tokenizer.pad_token_id)
    labels_BS = torch.full_like(ids_BS, IGNORE_INDEX)
    for row, view in enumerate(views):
        ids_BS[row, : len(view.ids_S)] = torch.from_numpy(view.ids_S.astype(np.int64))
        labels_BS[row, view.places_T[1:]] = ids_BS[row, view.places_T[1:]]
    return {"input_ids": ids_BS, "labels": labels_BS, **aligner.inputs(views, ids_BS)}


def _model(vocab_size: int, image_id: int) -> Any:
    import transformers as tf

    vision = tf.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=SIDE, patch_size=PATCH
    )
    text = tf.LlamaConfig(
        vocab_size=vocab_size, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=128, bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    rules: dict[str, Any] = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    return tf.LlavaForConditionalGeneration(tf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=image_id, **rules))
