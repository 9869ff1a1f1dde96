"""Small encoder-decoders that the tests of them run over."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from parts import shaken
from torch import Tensor

from weft.config import read_table
from weft.models.pair_tables import Seq2SeqTable, spread
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.nn.memory import Memory
from weft.nn.mixers import MIXERS, recurrent
from weft.nn.names import SCORES

WORDS, LONGEST = 11, 32
BEGIN, END = 1, 2
PLACES: dict[str, dict[str, Any]] = {
    "before": {"place": "before"},
    "after": {"place": "after"},
    "feeding": {"place": "after", "feeding": True},
}


def pair_table(**options: Any) -> Seq2SeqTable:
    """A filled table of small stacks; options stand at [model]."""
    return read_table(Seq2SeqTable, spread({"width": 8, "layers": 1, **options}), at="model").filled()


def pair_model(*, words: int = WORDS, longest: int = LONGEST, seed: int = 0, **options: Any) -> EncoderDecoder:
    """A small model as it begins."""
    torch.manual_seed(seed)
    return encoder_decoder(
        pair_table(**options), source_words=words, target_words=words, longest=longest, vocabulary="ab12cd34" * 8
    ).eval()


def shaken_pair(**options: Any) -> EncoderDecoder:
    """A small model whose weights are large enough that a wrong mask or a lost state shows."""
    return shaken(pair_model(**options))  # type: ignore[return-value]


ATTENDED: dict[str, dict[str, Any]] = {
    "none": {"attention": "none"},
    "every-step": {"attention": "none", "every_step": True},
    **{f"{score}-{name}": {"attention": score, **place} for score in SCORES for name, place in PLACES.items()},
}


def _crossed(encoder: str, decoder: str, attended: dict[str, Any]) -> dict[str, Any]:
    # scores without a matrix need one width; all others get two, so that none is taken for the other
    equal = attended["attention"] in ("dot", "scaled-dot") and decoder != "attention"
    wide = {"encoder": {"mixer": encoder, "width": 8 if equal else 6}, "decoder": {"mixer": decoder, "layers": 2}}
    for side in wide.values():
        if side["mixer"] == "attention":
            side |= {"heads": 2, "feed_forward": 16, "connection": "residual", "norm": "layer"}
    return {**wide, **attended}


CROSSED: dict[str, dict[str, Any]] = {
    f"{encoder}/{decoder}/{name}": _crossed(encoder, decoder, attended)
    for encoder in MIXERS
    for decoder in recurrent()
    for name, attended in ATTENDED.items()
} | {
    f"{encoder}/attention/{score}": _crossed(encoder, "attention", {"attention": score})
    for encoder in MIXERS
    for score in ("none", "scaled-dot")
}

ATTENTION: dict[str, Any] = {
    "mixer": "attention",
    "heads": 2,
    "connection": "residual",
    "norm": "layer",
    "attention": "scaled-dot",
}
ONE_WAY: dict[str, Any] = {"encoder": {"two_way": False}}
VARIED: dict[str, dict[str, Any]] = {
    **{f"copy-{mixer}": {"mixer": mixer, "layers": 2, "bridge": "copy"} for mixer in recurrent()},
    **{f"copy-{mixer}-one-way": {"mixer": mixer, "layers": 2, "bridge": "copy", **ONE_WAY} for mixer in recurrent()},
    **{f"project-{mixer}": {"mixer": mixer, "layers": 2, "bridge": "project", **ONE_WAY} for mixer in recurrent()},
    **{f"reverse-{mixer}": {"mixer": mixer, "encoder": {"two_way": False, "reverse": True}} for mixer in recurrent()},
    **{f"one-way-{mixer}": {"encoder": {"mixer": mixer, "two_way": False}, "attention": "additive"} for mixer in MIXERS},
    "reverse-attention": {"encoder": {"two_way": False, "reverse": True}, "attention": "multiplicative"},
    **{f"copying-{name}": {"copying": True, "attention": "multiplicative", **place} for name, place in PLACES.items()},
    "relu-additive-size": {"mixer": "rnn", "nonlinearity": "relu", "attention": "additive", "attention_size": 3},
    "sigmoid-before-size": {
        "mixer": "rnn",
        "nonlinearity": "sigmoid",
        "attention": "additive",
        "attention_size": 3,
        "place": "before",
    },
    "sigmoid-copy": {"mixer": "rnn", "nonlinearity": "sigmoid", "bridge": "copy"},
    "copying-alone": {"copying": True, "mixer": "gru"},
    "copying-shared-tied": {"copying": True, "shared": True, "tied": True, "attention": "additive"},
    "copying-transformer": {"copying": True, "shared": True, "tied": True, **ATTENTION},
    **{f"{where}-transformer": {"positions": where, **ATTENTION} for where in ("sinusoidal", "learned")},
    **{f"{where}-transformer": {"positions": where, **ATTENTION} for where in ("relative", "alibi", "rotary")},
    "one-way-transformer": {"positions": "sinusoidal", **ATTENTION, **ONE_WAY},
    "one-way-rotary": {"positions": "rotary", **ATTENTION, **ONE_WAY},
    "bottleneck-transformer": {**ATTENTION, "positions": "rotary", "attention": "none"},
    "post-norm-transformer": {**ATTENTION, "connection": "post-norm", "positions": "sinusoidal"},
    "dense-transformer": {**ATTENTION, "connection": "dense", "layers": 2},
    "heads": {**ATTENTION, "layers": 2, "heads": [1, 4], "head_size": 4, "qk_norm": True, "positions": "alibi"},
    **{f"{where}-feeding": {"positions": where, "attention": "dot", "feeding": True} for where in ("sinusoidal", "learned")},
    **{
        f"{where}-before": {"positions": where, "attention": "additive", "place": "before"}
        for where in ("sinusoidal", "learned")
    },
    **{
        f"{kind}-{name}": {"mixer": "gru", "layers": 2, "connection": kind, "norm": "layer", "attention": "additive", **place}
        for kind in ("residual", "post-norm", "highway", "dense")
        for name, place in PLACES.items()
    },
    **{
        f"feed-forward-{name}": {"mixer": "lstm", "layers": 2, "feed_forward": 12, "connection": "residual", **options}
        for name, options in {
            "copy": {"bridge": "copy"},
            "before": {"attention": "dot", "place": "before"},
            "feeding": {"attention": "dot", "feeding": True},
        }.items()
    },
    **{
        f"embedding-{kind}": {
            "mixer": "lstm",
            "layers": 2,
            "embedding": 5,
            "connection": kind,
            "norm": "layer",
            "attention": "multiplicative",
        }
        for kind in ("plain", "residual", "highway", "dense")
    },
    "embedding-every-step": {"mixer": "lstm", "layers": 2, "embedding": 5, "connection": "residual", "every_step": True},
    "lstm-under-transformer": {
        "encoder": {"mixer": "lstm", "layers": 2, "width": 6},
        "decoder": {"mixer": "attention", "heads": 2, "connection": "residual", "norm": "layer", "positions": "rotary"},
        "attention": "scaled-dot",
    },
    "transformer-under-gru": {"encoder": {"mixer": "attention", "positions": "rotary"}, "decoder": {"mixer": "gru"}},
}
EVERY = CROSSED | VARIED


def representative() -> list[str]:
    """Every attention with two decoders, under each encoder in turn; every encoder under a Transformer; all that varies."""
    kinds = [(decoder, name) for at, name in enumerate(ATTENDED) for decoder in recurrent()[at % 2 :: 2]]
    encoders = [list(MIXERS)[(number + number // len(MIXERS)) % len(MIXERS)] for number in range(len(kinds))]
    stepwise = [f"{encoder}/{decoder}/{name}" for encoder, (decoder, name) in zip(encoders, kinds, strict=True)]
    return [*stepwise, *(name for name in CROSSED if "/attention/" in name), *VARIED]


@cache
def build(name: str) -> EncoderDecoder:
    """The model of a name; it is read only, so one is enough for all tests."""
    return shaken_pair(**EVERY[name])


# ---- sources and targets


def sources(*lengths: int, seed: int = 0, words: int = WORDS) -> tuple[Tensor, Tensor]:
    """Random tokens and </s> in rows of these lengths, and what of them to keep; padding is 0."""
    generator = torch.Generator().manual_seed(seed + sum(lengths))
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(3, words, keep.shape, generator=generator)
    tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return tokens.masked_fill(~keep, 0), keep


def targets(rows: int, length: int, *, seed: int = 0, words: int = WORDS) -> Tensor:
    """Random tokens behind <s>, (rows, length)."""
    generator = torch.Generator().manual_seed(100 + seed + length)
    tokens = torch.randint(3, words, (rows, length), generator=generator)
    tokens[:, 0] = BEGIN
    return tokens


def memory_of(*lengths: int, width: int, seed: int = 0, dtype: torch.dtype = torch.double) -> Memory:
    """A memory of random numbers, with padding that would be seen."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = torch.randn(*keep.shape, width, generator=generator, dtype=dtype)
    summary = torch.randn(len(lengths), width, generator=generator, dtype=dtype)
    return Memory(torch.where(keep[..., None], values, 100.0), keep, (), summary)
