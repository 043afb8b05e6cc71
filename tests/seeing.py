"""Tiny image-text models with random weights, in folders: the built-in tokenizer, two layers that read, one that sees."""

import io

import numpy as np
import torch
import transformers as tf
from PIL import Image

from distill_core import models

TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"


def tokenizer_with(*names):
    tokenizer = models.load_tokenizer("builtin")
    tokenizer.add_tokens(list(names), special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save(folder, model, processor):
    """The folder's name, for teacher.model. Weights are large, so that an image changes what is said."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def llava(folder):
    """An image is 5 tokens in its place."""
    tokenizer = tokenizer_with("<image>")
    vision = tf.CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8, projection_dim=16
    )
    text, image_id = tf.LlamaConfig(vocab_size=len(tokenizer), **TEXT), tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    model = tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=image_id, vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
    )  # fmt: skip
    size = {"height": 16, "width": 16}
    pixels = tf.CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    shape = {"patch_size": 8, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 1}
    return save(folder, model, tf.LlavaProcessor(image_processor=pixels, tokenizer=tokenizer, **shape))


def idefics3(folder):
    """An image is cut into tiles by its size, each with tokens of its own around it; a mask says which pixels are padding."""
    tokenizer = tokenizer_with(
        "<image>", "<fake_token_around_image>", "<global-img>", *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2))
    )
    vision = tf.models.idefics3.configuration_idefics3.Idefics3VisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4
    )
    pixels = tf.Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    processor = tf.Idefics3Processor(image_processor=pixels, tokenizer=tokenizer, image_seq_len=4)  # gives the tokenizer one more token
    text, image_id = tf.LlamaConfig(vocab_size=len(tokenizer), **TEXT), tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    model = tf.Idefics3ForConditionalGeneration(
        tf.Idefics3Config(vision_config=vision, text_config=text, image_token_id=image_id, scale_factor=2, pad_token_id=1)
    )
    return save(folder, model, processor)


def picture(seed, size=(16, 16)):
    """The bytes of a PNG file of random colours, [height, width] pixels."""
    colours = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).save(file, "PNG")
    return file.getvalue()
