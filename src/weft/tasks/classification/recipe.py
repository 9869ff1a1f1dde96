"""Recommended settings of classifiers: logistic regression, which is as good as networks that start from random weights unless
there are very many texts, or texts come in pairs.

The numbers of networks were found on TREC-6 and SST (5,000 to 8,500 texts of 10 to 20 words) and, for words that are spelled
out, on 16,000 names of 18 languages, see docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.data.profile import DataProfile
from weft.nn.mixers import recurrent_mixers
from weft.tasks.recipe import Recipe, Tables, early_stopping, scaled, scaled_steps, training_flops
from weft.text.reading import pluralize

WORDS, NAMES = 100_000, 16_000  # of the data that the numbers were found on
MANY_TEXTS = 200_000  # from which networks win
NOT_OF_NETWORKS = ("device",)  # options of [train] that say nothing about the model
BASELINES = ("naive-bayes", "logistic-regression")
SIZES: Mapping[str, tuple[int, int]] = {
    "conv": (512, 256), **dict.fromkeys(("rnn", "lstm", "gru", "mingru", "minlstm"), (384, 128)),
}  # fmt: skip
SPELLED: Mapping[str, Any] = {"embedding_dim": 64, "dropout": 0.5, "pooling": "last"}


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for labeled texts."""
    arch = tables["model"].get("arch") or _arch(profile, tables)
    num_labels, text = len(profile.summary.labels), profile.texts[0]
    kind = "single words" if text.is_single_words else f"texts of {text.mean_words:.0f} words"
    pairs = "pairs of " if len(profile.texts) > 1 else ""
    reason = f"{profile.num_examples:,} {pairs}{kind}, {pluralize(num_labels, 'label')}"
    if arch in BASELINES:
        return [Recipe(reason, {"arch": arch})]
    is_spelled = text.is_single_words and tables["tokenizer"].get("type", "char") == "char"
    tokenizer = {"type": "char"} if is_spelled and not tables["tokenizer"] else {}
    train = _spelled_training(profile) if is_spelled else _training(profile)
    if arch not in SIZES:
        return [Recipe(reason, {"arch": arch}, train if arch == "transformer" else early_stopping(profile), tokenizer)]
    model = {"arch": arch, **(SPELLED if is_spelled and arch in recurrent_mixers() else {})}
    if "hidden_size" in tables["model"]:
        return [Recipe(reason, model, train, tokenizer)]
    num_tokens = train["max_steps"] * train["batch_tokens"]
    return [
        Recipe(reason, {**model, "hidden_size": size}, train, tokenizer, flops=training_flops(10 * size**2, num_tokens))
        for size in SIZES[arch]
    ]


def _arch(profile: DataProfile, tables: Tables) -> str:
    """A bag of words can't relate one text to another; options of networks in the run file ask for a network."""
    train = [name for name in tables["train"] if name not in NOT_OF_NETWORKS]
    is_pair, sets_network = len(profile.texts) > 1, bool(tables["tokenizer"] or tables["model"] or train)
    return "gru" if is_pair or sets_network or profile.num_examples >= MANY_TEXTS else "logistic-regression"


def _training(profile: DataProfile) -> dict[str, Any]:
    """Few steps: networks learn small data sets by heart after a few epochs."""
    batch_tokens = 1024 * round(scaled(2048, profile.num_words, WORDS, 0.25, (2048, 16_384)) / 1024)
    steps = scaled_steps(300, profile.num_words, WORDS, (300, 20_000))
    return {"max_steps": steps, "batch_tokens": batch_tokens, **early_stopping(profile)}


def _spelled_training(profile: DataProfile) -> dict[str, Any]:
    steps = scaled_steps(3000, profile.num_examples, NAMES, (1000, 20_000))
    return {"max_steps": steps, "batch_tokens": 2048, **early_stopping(profile)}
