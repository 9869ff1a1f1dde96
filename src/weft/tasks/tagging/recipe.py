"""Recommended settings of taggers: words in lowercase with strong dropout, next to a character encoder that sees their case and
spelling.

The numbers were found on UD English EWT (12,500 sentences, parts of speech) and WNUT-17 (3,400 sentences, entities), see
docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.data.profile import DataProfile
from weft.nn.mixers import recurrent_mixers
from weft.tasks.recipe import Recipe, Tables, early_stopping, scaled, training_flops

SENTENCES = 12_500  # of EWT
FEW_SENTENCES = 5_000  # fewer need more dropout and more updates
MAX_WORDS = 20_000
CHAR_ENCODER = {"hidden_size": 256, "embedding_dim": 64, "pooling": "last"}


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for tagged sentences."""
    arch = tables["model"].get("arch", "lstm")
    has_spans = any(tag.startswith(("B-", "I-")) for tag in profile.summary.tags)
    is_small = profile.num_examples < FEW_SENTENCES
    tags = "spans" if has_spans else "a tag for each word"
    reason = f"{profile.num_examples:,} sentences of {profile.texts[0].mean_words:.0f} words, {tags}"
    epochs = round(scaled(18, profile.num_examples, SENTENCES, -0.4, (6, 40)))
    train: dict[str, Any] = {"max_epochs": float(epochs), "batch_tokens": 512 if is_small else 1024, **early_stopping(profile)}
    model: dict[str, Any] = {"arch": arch, "head": "crf" if has_spans else "linear"}
    tokenizer = {} if tables["tokenizer"] else {"type": "whitespace", "vocab_size": MAX_WORDS, "lowercase": True}
    if arch not in recurrent_mixers():
        return [Recipe(reason, model, train, tokenizer)]
    model |= {
        "embedding_dropout": 0.5 if is_small else 0.4,
        "word_dropout": 0.4 if is_small else 0.3,
        "char_encoder": CHAR_ENCODER,
    }
    train |= {"lr": 3e-3, "ema_decay": 0.998}
    if "hidden_size" in tables["model"]:
        return [Recipe(reason, model, train, tokenizer)]
    num_tokens = epochs * profile.num_words
    return [
        Recipe(reason, {**model, "hidden_size": size}, train, tokenizer, flops=training_flops(num_parameters, num_tokens))
        for size, num_parameters in ((512, 4.5e6), (256, 3e6))  # the character encoder reads about five letters per word
    ]
