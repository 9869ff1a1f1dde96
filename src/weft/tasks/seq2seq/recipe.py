"""Recommended settings of encoder-decoders: words are spelled out and read by an LSTM, sentences are split into subwords and
read by a Transformer.

The best weights are those with the best outputs: the loss of a small training set rises while the outputs still improve. LSTMs
that spell keep the last weights.

The numbers were found on SIGMORPHON 2020 (3,600 words) and Multi30k (29,000 sentences), see docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.data.profile import DataProfile, TextProfile
from weft.tasks.recipe import MUON, NUM_VALIDATIONS, Recipe, Tables, bpe_size, early_stopping, scaled_steps, training_flops

WORDS, SENTENCES = 3_600, 29_000  # examples of the data that the numbers were found on
MIN_SENTENCES = 2_000  # fewer sentences have too few words to learn subwords from
SHARED_ALPHABET = 0.5  # languages that share more than that of their letters also share subwords
ONE_TOKENIZER = ("share_embeddings", "copy_mechanism")  # options of models that read and write the same tokens
SIZES = ("hidden_size", "num_layers", "num_heads", "ffn_dim", "embedding_dim", "encoder", "decoder")


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for pairs of texts."""
    tokenizer = _tokenizer(profile, tables)
    spelled = _is_spelled(tables["tokenizer"] or tokenizer)
    arch = tables["model"].get("arch") or ("lstm-input-feeding" if spelled else "transformer")
    kind = "single words" if profile.texts[0].is_single_words else f"sentences of {profile.texts[0].mean_words:.0f} words"
    reason = f"{profile.num_examples:,} pairs, {kind}"
    ladder = _words(profile, arch) if spelled else _sentences(profile, arch)
    is_joint = not spelled and "source" not in {**tokenizer, **tables["tokenizer"]}
    joint = {"share_embeddings": True, "tie_embeddings": True} if is_joint else {}
    return [
        step._replace(
            reason=reason, tokenizer=tokenizer, model={**_without_sizes({**step.model, **joint}, tables), "arch": arch}
        )
        for step in ladder
    ]


def _without_sizes(model: Mapping[str, Any], tables: Tables) -> dict[str, Any]:
    """A run file that sets a size gets none of the recommended sizes: they belong together."""
    sets_size = any(name in tables["model"] for name in SIZES)
    return {name: value for name, value in model.items() if not (sets_size and name in SIZES)}


# ---- tokenizers


def _tokenizer(profile: DataProfile, tables: Tables) -> dict[str, Any]:
    """The options of [tokenizer]; of one whose type is given, only the vocabulary size."""
    given = tables["tokenizer"]
    if "file" in given or "source" in given:
        return {}
    if "type" in given:
        return {"vocab_size": bpe_size(profile.num_words)} if given["type"] in ("bpe", "unigram", "wordpiece") else {}
    source, target = (_side(text, profile) for text in profile.texts)
    if any(tables["model"].get(option) for option in ONE_TOKENIZER):
        return source if source == target else {"type": "char"}
    if source["type"] == target["type"] == "bpe" and profile.shared_alphabet < SHARED_ALPHABET:
        return {"source": _subwords(profile, 0), "target": _subwords(profile, 1)}
    return source if source == target else {"source": source, "target": target}


def _side(text: TextProfile, profile: DataProfile) -> dict[str, Any]:
    if text.is_symbols:
        return {"type": "whitespace"}
    if text.is_single_words or profile.num_examples < MIN_SENTENCES:
        return {"type": "char"}
    return {"type": "bpe", "vocab_size": bpe_size(profile.num_words)}


def _subwords(profile: DataProfile, column: int) -> dict[str, Any]:
    return {"type": "bpe", "vocab_size": bpe_size(round(profile.num_examples * profile.texts[column].mean_words))}


def _is_spelled(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the source is read letter by letter."""
    table = tokenizer.get("source", tokenizer)
    return table.get("type", "char") in ("char", "byte")


# ---- models


def _words(profile: DataProfile, arch: str) -> list[Recipe]:
    """Short texts, spelled out."""
    steps = scaled_steps(5000 if arch == "transformer" else 3500, profile.num_examples, WORDS, (1500, 30_000))
    train = {
        "max_steps": steps, "batch_tokens": 1400, "lr": 1e-3, "adam_beta2": 0.98, "lr_schedule": "cosine", "warmup_ratio": 0.08,
        "label_smoothing": 0.1, "weight_decay": 0.1, "ema_decay": 0.998,
    }  # fmt: skip
    if arch == "transformer":
        train |= {**MUON, **early_stopping(profile, "token_error_rate")}
        model = {"position_encoding": "rotary", "hidden_size": 256, "num_layers": 4, "num_heads": 4, "dropout": 0.3}
        best = Recipe("", model, train, flops=training_flops(7.3e6, steps * 1400 / 2))
        small = {**model, "hidden_size": 128, "num_layers": 3}
        return [best, best._replace(model=small, flops=training_flops(1.4e6, steps * 1400 / 2))]
    large: dict[str, Any] = {"embedding_dim": 256, "encoder": {"hidden_size": 1024}} if arch == "lstm-input-feeding" else {}
    # the error rate on few words is too noisy to choose weights by: the last ones were better
    shown = {"num_validations": NUM_VALIDATIONS, "monitor": "token_error_rate"} if profile.has_valid else {}
    train |= {"keep": "last", **shown}
    best = Recipe("", large, train, flops=training_flops(6e6, steps * 1400 / 2))
    return [best, best._replace(model={"hidden_size": 256}, flops=training_flops(1.5e6, steps * 1400 / 2))]


def _sentences(profile: DataProfile, arch: str) -> list[Recipe]:
    """Sentences of subwords."""
    steps = scaled_steps(6000, profile.num_examples, SENTENCES, (2000, 100_000))
    train = {
        "max_steps": steps, "batch_tokens": 4096, "lr_schedule": "cosine", "warmup_ratio": 0.05, "label_smoothing": 0.1,
        "ema_decay": 0.998, **MUON, **early_stopping(profile, "chrf"),
    }  # fmt: skip
    dropout = 0.3 if profile.num_examples < 200_000 else 0.1
    if arch != "transformer":
        model: dict[str, Any] = {"hidden_size": 512, "dropout": min(dropout + 0.1, 0.4)}
        best = Recipe("", model, train, flops=training_flops(8e6, steps * 4096 / 2))
        return [best, best._replace(model={**model, "hidden_size": 256}, flops=training_flops(3e6, steps * 4096 / 2))]
    model = {
        "position_encoding": "rotary", "hidden_size": 256, "num_layers": 4, "num_heads": 4, "ffn_dim": 512, "dropout": dropout,
    }  # fmt: skip
    best = Recipe("", model, {**train, "r_drop": 3.0}, flops=2 * training_flops(7.3e6, steps * 4096 / 2))
    large = best._replace(
        model={**model, "hidden_size": 512, "num_layers": 6, "num_heads": 8, "ffn_dim": 2048},
        train={**train, "batch_tokens": 8192},
        flops=training_flops(50e6, steps * 8192 / 2),
    )
    small = best._replace(
        model={**model, "hidden_size": 128, "num_layers": 3},
        train={**train, "max_steps": steps // 2},
        flops=training_flops(2e6, steps * 4096 / 4),
    )
    return [large, best, small] if profile.num_examples >= 200_000 else [best, small]
