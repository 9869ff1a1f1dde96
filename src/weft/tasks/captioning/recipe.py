"""Recommended settings of captioners.

Captions of a few hundred or thousand different words are sequences of words; longer vocabularies are split into subwords. The
best weights are those with the best outputs, as the loss of a small training set rises while the outputs still improve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.data.profile import DataProfile
from weft.tasks.recipe import Recipe, Tables, bpe_size, early_stopping, scaled_steps, training_flops

REPETITIONS = 8  # of a word in the sample, on average, for a vocabulary of words
MAX_WORDS = 7_900  # of the default vocabulary
FILES = 8_500  # examples of the data that the steps are meant for
CTC_ARCHS = ("lipnet",)
BATCH_FILES = 128


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for files with texts."""
    arch = tables["model"].get("arch") or "transformer"
    has_ctc = tables["model"].get("ctc_weight", 1.0 if arch in CTC_ARCHS else 0.0) > 0
    text = profile.texts[0]
    tokenizer = {} if tables["tokenizer"] else {"type": "char"} if has_ctc else _tokenizer(profile)
    reason = f"{profile.num_examples:,} texts of {text.mean_words:.0f} words"
    train = {
        "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.05, "lr_schedule": "cosine", "warmup_ratio": 0.05,
        "ema_decay": 0.998, **early_stopping(profile, "wer" if has_ctc else "word_f1"),
    }  # fmt: skip
    # CTC spells: with words as tokens, 700 clips did not suffice to learn more than which words are frequent
    if has_ctc:  # batches are measured in frames, which are many more than tokens
        steps = scaled_steps(8_000, profile.num_examples, 700, (4000, 50_000))
        return [Recipe(reason, {"arch": arch}, {**train, "max_steps": steps, "batch_tokens": 3200, "lr": 2e-3}, tokenizer)]
    steps = scaled_steps(8_000, profile.num_examples, FILES, (1500, 100_000))
    tokens = round(text.mean_words if tokenizer.get("type") == "whitespace" else text.mean_chars) + 2
    train |= {"max_steps": steps, "batch_tokens": BATCH_FILES * tokens, "label_smoothing": 0.1}
    best = Recipe(reason, {"arch": arch, "dropout": 0.3 if profile.num_examples < 50_000 else 0.1}, train, tokenizer)
    # the front end counts once per pixel: about 3,000 operations per weight
    best = best._replace(flops=training_flops(1.5e6, steps * BATCH_FILES * 100))
    small = {**train, "max_steps": max(1500, steps // 4), "batch_tokens": BATCH_FILES * tokens // 2}
    return [best, best._replace(train=small, flops=best.flops / 8)]


def _tokenizer(profile: DataProfile) -> Mapping[str, Any]:
    """Words, if each occurs often enough to be learned; otherwise subwords, or letters if there are few texts."""
    text = profile.texts[0]
    if text.num_words >= REPETITIONS * text.num_distinct_words and text.num_distinct_words <= MAX_WORDS:
        return {"type": "whitespace"}
    if profile.num_examples < 2000:
        return {"type": "char"}
    return {"type": "bpe", "vocab_size": bpe_size(profile.num_words)}
