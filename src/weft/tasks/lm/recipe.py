"""Recommended settings of language models: words, one per line, are read letter by letter; so is a text of a few megabytes;
longer texts are split into subwords.

The numbers were found on 25,600 names and on Tiny Shakespeare (1.1 million characters), see docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.data.profile import DataProfile
from weft.nn.mixers import recurrent_mixers
from weft.tasks.recipe import Recipe, Tables, bpe_size, early_stopping, scaled, training_flops

NAMES, CHARACTERS = 25_600, 1_000_000  # of the data that the numbers were found on
SUBWORDS_PER_WORD = 1.3
MAX_SPELLED = 5_000_000  # characters of a text that is read letter by letter
CPU_EPOCHS = (8.0, 3.0)
SIZES = ("hidden_size", "num_layers")


class Size(NamedTuple):
    """The size of a model of running text, and of its batches."""

    num_layers: int
    hidden_size: int
    batch_tokens: int
    num_parameters: float


LARGE, SMALL = Size(6, 384, 16_384, 11e6), Size(4, 192, 4096, 2e6)
TINY = Size(4, 128, 1024, 8e5)  # the CPU size of nanoGPT, for a few minutes
WORDS_GPT: Mapping[str, Any] = {"num_layers": 6, "hidden_size": 96, "dropout": 0.25, "embedding_dropout": 0.0}
WORDS_RECURRENT: Mapping[str, Any] = {"num_layers": 2, "hidden_size": 192, "dropout": 0.3}


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for a text."""
    arch = tables["model"].get("arch", "gpt")
    is_words = profile.texts[0].is_single_words and tables["tokenizer"].get("type", "char") == "char"
    ladder = _words(profile, arch) if is_words else _text(profile, arch, tables["train"])
    tokenizer = _tokenizer(profile, tables["tokenizer"])
    sets_size = any(name in tables["model"] for name in SIZES)
    return [
        step._replace(
            tokenizer=tokenizer,
            model={name: value for name, value in {**step.model, "arch": arch}.items() if not (sets_size and name in SIZES)},
        )
        for step in ladder
    ]


def _tokenizer(profile: DataProfile, given: Mapping[str, Any]) -> dict[str, Any]:
    if "file" in given or ("type" in given and given["type"] not in ("bpe", "unigram", "wordpiece")):
        return {}
    size = {"vocab_size": bpe_size(profile.num_words)}
    if "type" in given:
        return size
    is_spelled = profile.texts[0].is_single_words or profile.num_chars <= MAX_SPELLED
    return {"type": "char"} if is_spelled else {"type": "bpe", **size}


def _words(profile: DataProfile, arch: str) -> list[Recipe]:
    """A list of words, such as names."""
    reason = f"{profile.num_examples:,} lines of single words"
    data = {"read_as": "lines", "context_length": max(32, profile.texts[0].max_chars + 2)}
    tokens_per_epoch = profile.num_chars + profile.num_examples
    if arch in recurrent_mixers():
        epochs = round(scaled(20, profile.num_examples, NAMES, -0.3, (5, 60)))
        train = {"max_epochs": float(epochs), "batch_tokens": 1024, "lr": 3e-3, "weight_decay": 0.05, **early_stopping(profile)}
        return [Recipe(reason, WORDS_RECURRENT, train, data=data, flops=training_flops(6e5, epochs * tokens_per_epoch))]
    if arch not in ("gpt", "transformer"):
        return [Recipe(reason, {}, early_stopping(profile), data=data)]
    epochs = round(scaled(60, profile.num_examples, NAMES, -0.3, (10, 100)))
    train = {
        "max_epochs": float(epochs), "batch_tokens": 2048, "ema_decay": 0.995, "optimizer": "muon", "muon_lr": 0.01, "lr": 4e-3,
        "weight_decay": 0.1, **early_stopping(profile),
    }  # fmt: skip
    model = {**WORDS_GPT, **_modern(arch)}
    best = Recipe(reason, model, train, data=data, flops=training_flops(9e5, epochs * tokens_per_epoch))
    fast = best._replace(model={**model, "num_layers": 4, "hidden_size": 64}, flops=best.flops / 3)
    return [best, fast]


def _text(profile: DataProfile, arch: str, given: Mapping[str, Any]) -> list[Recipe]:
    """Running text. `given` are the options of [train] that the run file sets."""
    is_spelled = profile.num_chars <= MAX_SPELLED
    num_tokens = profile.num_chars if is_spelled else round(SUBWORDS_PER_WORD * profile.num_words)
    reason = f"a text of {num_tokens:,} {'characters' if is_spelled else 'subwords'}"
    stop = early_stopping(profile)
    if arch not in ("gpt", "transformer"):
        return [Recipe(reason, {"dropout": 0.2} if arch in recurrent_mixers() else {}, stop)]
    given_epochs = _given_epochs(given, num_tokens)
    epochs = given_epochs or scaled(22, num_tokens, CHARACTERS, -0.5, (1, 30))
    fewer = [epochs] if given_epochs else [min(epochs, limit) for limit in CPU_EPOCHS]
    ladder = [(LARGE, epochs), *((SMALL, number) for number in fewer), (TINY, fewer[-1])]
    return [_sized(size, number, num_tokens, Recipe(reason, _modern(arch), stop)) for size, number in ladder]


def _sized(size: Size, epochs: float, num_tokens: int, common: Recipe) -> Recipe:
    """The settings of a model of this size that sees the text this often; `common` has those of all sizes."""
    steps = max(500, 100 * round(epochs * num_tokens / size.batch_tokens / 100))
    regularization = _regularization(epochs)
    return common._replace(
        model={"num_layers": size.num_layers, "hidden_size": size.hidden_size, **common.model, **regularization["model"]},
        train={"max_steps": steps, "batch_tokens": size.batch_tokens, **regularization["train"], **common.train},
        flops=training_flops(size.num_parameters, steps * size.batch_tokens),
    )


def _modern(arch: str) -> dict[str, str]:
    """`transformer` is that of GPT-2; `gpt` is what works best."""
    return {"activation": "swiglu"} if arch == "gpt" else {}


def _regularization(epochs: float) -> Tables:
    """A text that is read often is learned by heart; one that is read once or twice is not."""
    dropout = next((rate for limit, rate in ((2, 0.0), (6, 0.1), (12, 0.2)) if epochs <= limit), 0.35)
    return {"model": {"dropout": dropout}, "train": {"weight_decay": 0.3 if dropout > 0.2 else 0.1 if dropout else 0.02}}


def _given_epochs(given: Mapping[str, Any], num_tokens: int) -> float | None:
    """How often the budget of the run file passes over the text; None if it has no budget, or one in minutes."""
    if "max_epochs" in given:
        return float(given["max_epochs"])
    if "max_steps" in given:
        return float(given["max_steps"] * given.get("batch_tokens", 4096) / num_tokens)
    return float(given["max_tokens"] / num_tokens) if "max_tokens" in given else None
