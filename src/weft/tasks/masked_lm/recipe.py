"""Recommended settings of masked language models: a Transformer that reads subwords.

The numbers were found on 1.8 million words, by the accuracy of classifiers and taggers that start from its weights, see
docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.data.profile import DataProfile
from weft.tasks.recipe import Recipe, Tables, bpe_size, early_stopping, scaled_steps, training_flops

WORDS = 1_800_000
LARGE, MEDIUM, SMALL = ((6, 512), (4, 256), (2, 128))  # layers and hidden size
MANY_WORDS = 10_000_000  # from which the large model is recommended
SIZES = ("num_layers", "hidden_size", "num_heads")


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for a text."""
    arch = tables["model"].get("arch", "transformer")
    reason = f"a text of {profile.num_words:,} words"
    tokenizer = _tokenizer(profile, tables["tokenizer"])
    stop = early_stopping(profile)
    if arch not in ("transformer", "bert"):
        return [Recipe(reason, {"arch": arch}, stop, tokenizer)]
    steps = scaled_steps(8000, profile.num_words, WORDS, (500, 100_000))
    sets_size = any(name in tables["model"] for name in SIZES)
    sizes = [(MEDIUM, steps, 8192), (SMALL, min(steps, 4000), 4096)]
    if profile.num_words >= MANY_WORDS:
        sizes.insert(0, (LARGE, steps, 16_384))
    return [
        Recipe(
            reason,
            {"arch": arch, **({} if sets_size else {"num_layers": num_layers, "hidden_size": hidden_size})},
            {"max_steps": max_steps, "batch_tokens": batch_tokens, **stop},
            tokenizer,
            flops=training_flops(12 * num_layers * hidden_size**2, max_steps * batch_tokens),
        )
        for (num_layers, hidden_size), max_steps, batch_tokens in sizes
    ]


def _tokenizer(profile: DataProfile, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of [tokenizer]; of one whose type is given, only the vocabulary size."""
    if "file" in given:
        return {}
    if "type" in given:
        return {"vocab_size": bpe_size(profile.num_words)} if given["type"] in ("bpe", "unigram", "wordpiece") else {}
    return {"type": "wordpiece", "vocab_size": bpe_size(profile.num_words)}
