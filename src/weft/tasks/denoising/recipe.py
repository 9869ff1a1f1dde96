"""Recommended settings of denoising: those of the seq2seq models that start from the weights. Words are spelled out, sentences
are split into subwords.

Sizes and optimizers are those that were found for seq2seq models (docs/experiments.md), so that weights fit; the density of the
noise is that of BART and T5. Words are too short for spans of three letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.data.profile import DataProfile
from weft.tasks.recipe import MUON, Recipe, Tables, bpe_size, scaled_steps, training_flops

WORDS, SENTENCES = 6_400, 58_000  # texts of the data that the numbers were found on
MIN_SENTENCES = 2_000  # fewer sentences have too few words to learn subwords from
SIZES = ("hidden_size", "num_layers", "num_heads", "ffn_dim", "embedding_dim", "encoder", "decoder")


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for texts."""
    (text,) = profile.texts
    arch = tables["model"].get("arch", "transformer")
    tokenizer = _tokenizer(profile, tables["tokenizer"])
    is_short = text.is_single_words or text.is_symbols
    kind = "single words" if text.is_single_words else "symbols" if is_short else f"sentences of {text.mean_words:.0f} words"
    reason = f"{profile.num_examples:,} texts, {kind}"
    steps = scaled_steps(*((3000, profile.num_examples, WORDS) if is_short else (8000, profile.num_examples, SENTENCES)),
                         (1000, 200_000))  # fmt: skip
    batch_tokens = 2048 if is_short else 8192
    train = {
        "max_steps": steps, "batch_tokens": batch_tokens, "lr_schedule": "cosine", "warmup_ratio": 0.05,
        **(MUON if arch == "transformer" else {"lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.1}),
        "ema_decay": 0.998,
    }  # fmt: skip
    data = {"mean_span_length": 2.0} if is_short and tables["data"].get("noise", "infilling") != "none" else {}
    sets_size = any(name in tables["model"] for name in SIZES)
    ladder = _transformers() if arch == "transformer" else _recurrent()
    return [
        Recipe(
            reason,
            {"arch": arch, **({} if sets_size else model)},
            train,
            tokenizer,
            data,
            training_flops(size, steps * batch_tokens),
        )
        for model, size in ladder
    ]


def _transformers() -> list[tuple[dict[str, Any], float]]:
    """[model] of Transformers, and their number of weights, roughly."""
    model = {
        "position_encoding": "rotary", "hidden_size": 256, "num_layers": 4, "num_heads": 4, "ffn_dim": 512, "dropout": 0.1,
    }  # fmt: skip
    return [(model, 7.3e6), ({**model, "hidden_size": 128, "num_layers": 3}, 1.4e6)]


def _recurrent() -> list[tuple[dict[str, Any], float]]:
    return [({"hidden_size": 512, "dropout": 0.2}, 8e6), ({"hidden_size": 256, "dropout": 0.2}, 2e6)]


def _tokenizer(profile: DataProfile, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of [tokenizer]; of one whose type is given, only the vocabulary size."""
    if "file" in given:
        return {}
    size = bpe_size(profile.num_words)
    if "type" in given:
        return {"vocab_size": size} if given["type"] in ("bpe", "unigram", "wordpiece") else {}
    (text,) = profile.texts
    if text.is_symbols:
        return {"type": "whitespace"}
    if text.is_single_words or profile.num_examples < MIN_SENTENCES:
        return {"type": "char"}
    return {"type": "bpe", "vocab_size": size}
