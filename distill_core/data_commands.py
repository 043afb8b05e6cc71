"""What the data commands do: documents with their masks, windows as they are fed, counts."""

import argparse
import json
from typing import Any

from .cache import open_cache
from .config import DistillConfig
from .errors import TextError


def base(options: argparse.Namespace) -> DistillConfig | None:
    """The settings that a cache was made with, where one is asked for."""
    return DistillConfig(**open_cache(options.cache).manifest.config) if options.cache else None


def data(options: argparse.Namespace, config: DistillConfig) -> None:
    from . import corpus, models

    if options.cache:
        _preview_cache(options.cache, config)
        return
    tokenizer = models.load_tokenizer(config.teacher.model, revision=config.teacher.revision)
    if options.what == "preview":
        table = corpus.preview(config.text, tokenizer)
        print(table.write_json() if options.json else corpus.show_preview(table))
        if not options.json:
            _preview_windows(config, tokenizer)
        return
    text = corpus.build_windows(config.text, tokenizer)
    facts = {
        "documents": text.num_documents,
        "duplicates left out": text.num_duplicates,
        "windows to train on": len(text.train),
        "windows held out": len(text.heldout),
        "share of trained tokens": round(text.share_trained, 4),
        "notes": list(text.notes),
    }
    print(json.dumps(facts) if options.json else "\n".join(f"{name}: {value}" for name, value in facts.items()))


def _preview_windows(config: DistillConfig, tokenizer: Any) -> None:
    """The same documents in windows, as a model is fed them; too little text for that has been shown above."""
    from . import corpus

    try:
        text = corpus.build_windows(config.text.changed(num_windows=2, num_heldout_windows=1), tokenizer)
    except TextError as error:
        print(f"\nNo windows can be made of it: {error}")
        return
    train = text.train
    print(f"\nThe same text in windows: {text.share_trained:.1%} of these tokens are learned.")
    print(corpus.show_batch(train.input_ids_NL, train.targets_NP, train.doc_lens, tokenizer))
    print("\n".join(note for note in text.notes if "template" in note))
    print("Training shuffles the windows. A captured cache shows its very first ones: python -m distill_core data preview --cache NAME")


def _preview_cache(name: str, config: DistillConfig) -> None:
    """The first windows that `train --cache` will feed, in their order."""
    from . import models
    from .trainer import make_visits
    from .training.first_batch import first_windows

    cache = open_cache(name)
    print(first_windows(cache, make_visits(config, cache), models.load_tokenizer(str(cache.tokenizer_folder))))
