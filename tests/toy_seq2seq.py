"""Small encoder-decoders for the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from toy_models import shaken

from weft.config import parse_config
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.models.seq2seq_config import Seq2SeqConfig, broadcast_to_sides
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.memory import Memory
from weft.nn.mixers import MIXERS, recurrent_mixers

WORDS, LONGEST = 11, 32
BEGIN, END = 1, 2
PLACES: dict[str, dict[str, Any]] = {
    "before": {"attention_placement": "before"},
    "after": {"attention_placement": "after"},
    "feeding": {"attention_placement": "after", "input_feeding": True},
}


def pair_table(**options: Any) -> Seq2SeqConfig:
    """Resolved configuration of a small model; options go to [model]."""
    return parse_config(
        Seq2SeqConfig, broadcast_to_sides({"hidden_size": 8, "num_layers": 1, **options}), prefix="model"
    ).with_defaults()


def pair_model(*, words: int = WORDS, longest: int = LONGEST, seed: int = 0, **options: Any) -> EncoderDecoder:
    """A small model with its initial weights."""
    torch.manual_seed(seed)
    return encoder_decoder(
        pair_table(**options),
        source_vocab_size=words,
        target_vocab_size=words,
        max_positions=longest,
        vocabulary="ab12cd34" * 8,
    ).eval()


def shaken_pair(**options: Any) -> EncoderDecoder:
    """A small model whose weights are large enough that a wrong mask or a lost state shows."""
    return shaken(pair_model(**options))  # type: ignore[return-value]


ATTENDED: dict[str, dict[str, Any]] = {
    "none": {"attention": "none"},
    "every-step": {"attention": "none", "feed_context": True},
    **{f"{score}-{name}": {"attention": score, **place} for score in ATTENTION_SCORES for name, place in PLACES.items()},
}


def _crossed(encoder: str, decoder: str, attended: dict[str, Any]) -> dict[str, Any]:
    # score functions without a matrix need equal sizes; all others get two sizes, so that a mix-up fails
    equal = attended["attention"] in ("dot", "scaled-dot") and decoder != "attention"
    wide = {
        "encoder": {"layer_type": encoder, "hidden_size": 8 if equal else 6},
        "decoder": {"layer_type": decoder, "num_layers": 2},
    }
    for side in wide.values():
        if side["layer_type"] == "attention":
            side |= {"num_heads": 2, "ffn_dim": 16, "skip_connection": "residual", "norm": "layernorm"}
    return {**wide, **attended}


CROSSED: dict[str, dict[str, Any]] = {
    f"{encoder}/{decoder}/{name}": _crossed(encoder, decoder, attended)
    for encoder in MIXERS
    for decoder in recurrent_mixers()
    for name, attended in ATTENDED.items()
} | {
    f"{encoder}/attention/{score}": _crossed(encoder, "attention", {"attention": score})
    for encoder in MIXERS
    for score in ("none", "scaled-dot")
}

ATTENTION: dict[str, Any] = {
    "layer_type": "attention",
    "num_heads": 2,
    "skip_connection": "residual",
    "norm": "layernorm",
    "attention": "scaled-dot",
}
ONE_WAY: dict[str, Any] = {"encoder": {"bidirectional": False}}
VARIED: dict[str, dict[str, Any]] = {
    **{f"copy-{mixer}": {"layer_type": mixer, "num_layers": 2, "bridge": "copy"} for mixer in recurrent_mixers()},
    **{
        f"copy-{mixer}-one-way": {"layer_type": mixer, "num_layers": 2, "bridge": "copy", **ONE_WAY}
        for mixer in recurrent_mixers()
    },
    **{
        f"project-{mixer}": {"layer_type": mixer, "num_layers": 2, "bridge": "project", **ONE_WAY}
        for mixer in recurrent_mixers()
    },
    **{
        f"reverse-{mixer}": {"layer_type": mixer, "encoder": {"bidirectional": False, "reverse_source": True}}
        for mixer in recurrent_mixers()
    },
    **{
        f"one-way-{mixer}": {"encoder": {"layer_type": mixer, "bidirectional": False}, "attention": "additive"}
        for mixer in MIXERS
    },
    "reverse-attention": {"encoder": {"bidirectional": False, "reverse_source": True}, "attention": "multiplicative"},
    **{f"copying-{name}": {"copy_mechanism": True, "attention": "multiplicative", **place} for name, place in PLACES.items()},
    "relu-additive-size": {"layer_type": "rnn", "nonlinearity": "relu", "attention": "additive", "attention_dim": 3},
    "sigmoid-before-size": {
        "layer_type": "rnn",
        "nonlinearity": "sigmoid",
        "attention": "additive",
        "attention_dim": 3,
        "attention_placement": "before",
    },
    "sigmoid-copy": {"layer_type": "rnn", "nonlinearity": "sigmoid", "bridge": "copy"},
    "copying-alone": {"copy_mechanism": True, "layer_type": "gru"},
    "copying-shared-tied": {"copy_mechanism": True, "share_embeddings": True, "tie_embeddings": True, "attention": "additive"},
    "copying-transformer": {"copy_mechanism": True, "share_embeddings": True, "tie_embeddings": True, **ATTENTION},
    **{f"{where}-transformer": {"position_encoding": where, **ATTENTION} for where in ("sinusoidal", "learned")},
    **{f"{where}-transformer": {"position_encoding": where, **ATTENTION} for where in ("relative", "alibi", "rotary")},
    "one-way-transformer": {"position_encoding": "sinusoidal", **ATTENTION, **ONE_WAY},
    "one-way-rotary": {"position_encoding": "rotary", **ATTENTION, **ONE_WAY},
    "bottleneck-transformer": {**ATTENTION, "position_encoding": "rotary", "attention": "none"},
    "post-norm-transformer": {**ATTENTION, "norm_position": "post", "position_encoding": "sinusoidal"},
    "dense-transformer": {**ATTENTION, "skip_connection": "dense", "num_layers": 2},
    "heads": {**ATTENTION, "num_layers": 2, "num_heads": [1, 4], "head_dim": 4, "qk_norm": True, "position_encoding": "alibi"},
    **{
        f"{where}-feeding": {"position_encoding": where, "attention": "dot", "input_feeding": True}
        for where in ("sinusoidal", "learned")
    },
    **{
        f"{where}-before": {"position_encoding": where, "attention": "additive", "attention_placement": "before"}
        for where in ("sinusoidal", "learned")
    },
    **{
        f"{kind}-{name}": {
            "layer_type": "gru",
            "num_layers": 2,
            "skip_connection": "residual" if kind == "post-norm" else kind,
            "norm": "layernorm",
            "norm_position": "post" if kind == "post-norm" else "pre",
            "attention": "additive",
            **place,
        }
        for kind in ("residual", "post-norm", "highway", "dense")
        for name, place in PLACES.items()
    },
    **{
        f"feed-forward-{name}": {"layer_type": "lstm", "num_layers": 2, "ffn_dim": 12, "skip_connection": "residual", **options}
        for name, options in {
            "copy": {"bridge": "copy"},
            "before": {"attention": "dot", "attention_placement": "before"},
            "feeding": {"attention": "dot", "input_feeding": True},
        }.items()
    },
    **{
        f"embedding-{kind}": {
            "layer_type": "lstm",
            "num_layers": 2,
            "embedding_dim": 5,
            "skip_connection": kind,
            "norm": "layernorm",
            "attention": "multiplicative",
        }
        for kind in ("none", "residual", "highway", "dense")
    },
    "embedding-every-step": {
        "layer_type": "lstm",
        "num_layers": 2,
        "embedding_dim": 5,
        "skip_connection": "residual",
        "feed_context": True,
    },
    "lstm-under-transformer": {
        "encoder": {"layer_type": "lstm", "num_layers": 2, "hidden_size": 6},
        "decoder": {
            "layer_type": "attention",
            "num_heads": 2,
            "skip_connection": "residual",
            "norm": "layernorm",
            "position_encoding": "rotary",
        },
        "attention": "scaled-dot",
    },
    "transformer-under-gru": {
        "encoder": {"layer_type": "attention", "position_encoding": "rotary"},
        "decoder": {"layer_type": "gru"},
    },
}
EVERY = CROSSED | VARIED


def representative() -> list[str]:
    """Every attention with two decoders and the encoders in turn, every encoder with a Transformer decoder, and VARIED."""
    kinds = [(decoder, name) for index, name in enumerate(ATTENDED) for decoder in recurrent_mixers()[index % 2 :: 2]]
    encoders = [list(MIXERS)[(number + number // len(MIXERS)) % len(MIXERS)] for number in range(len(kinds))]
    stepwise = [f"{encoder}/{decoder}/{name}" for encoder, (decoder, name) in zip(encoders, kinds, strict=True)]
    return [*stepwise, *(name for name in CROSSED if "/attention/" in name), *VARIED]


@cache
def build(name: str) -> EncoderDecoder:
    """The model of this name. Tests do not change it, so they can share it."""
    return shaken_pair(**EVERY[name])


# ---- sources and targets


def sources(*lengths: int, seed: int = 0, words: int = WORDS) -> tuple[Tensor, Tensor]:
    """Random tokens and </s> in rows of these lengths, with their token mask; padding is 0."""
    generator = torch.Generator().manual_seed(seed + sum(lengths))
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(3, words, token_mask.shape, generator=generator)
    tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return tokens.masked_fill(~token_mask, 0), token_mask


def targets(rows: int, length: int, *, seed: int = 0, words: int = WORDS) -> Tensor:
    """Random tokens after <s>, (rows, length)."""
    generator = torch.Generator().manual_seed(100 + seed + length)
    tokens = torch.randint(3, words, (rows, length), generator=generator)
    tokens[:, 0] = BEGIN
    return tokens


def memory_of(*lengths: int, width: int, seed: int = 0, dtype: torch.dtype = torch.double) -> Memory:
    """A memory of random numbers; its padding is large, so that a missing mask shows."""
    generator = torch.Generator().manual_seed(seed)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = torch.randn(*token_mask.shape, width, generator=generator, dtype=dtype)
    summary = torch.randn(len(lengths), width, generator=generator, dtype=dtype)
    return Memory(torch.where(token_mask[..., None], values, 100.0), token_mask, (), summary)
