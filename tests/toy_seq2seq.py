"""Toy encoder-decoders: every combination of encoder, decoder and attention, and variants of single options."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from toy_models import enlarge_weights

from weft.config import parse_config
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.models.seq2seq_config import Seq2SeqConfig, broadcast_to_sides
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.memory import Memory
from weft.nn.mixers import MIXERS, recurrent_mixers

VOCAB_SIZE, MAX_POSITIONS = 11, 32
BOS, EOS = 1, 2
PLACEMENTS: dict[str, dict[str, Any]] = {
    "before": {"attention_placement": "before"},
    "after": {"attention_placement": "after"},
    "feeding": {"attention_placement": "after", "input_feeding": True},
}


def seq2seq_config(**options: Any) -> Seq2SeqConfig:
    """Resolved configuration of a small model; options go to [model]."""
    return parse_config(
        Seq2SeqConfig, broadcast_to_sides({"hidden_size": 8, "num_layers": 1, **options}), prefix="model"
    ).with_defaults()


def seq2seq_model(
    *, vocab_size: int = VOCAB_SIZE, max_positions: int = MAX_POSITIONS, seed: int = 0, **options: Any
) -> EncoderDecoder:
    """A small model with random initial weights."""
    torch.manual_seed(seed)
    return encoder_decoder(
        seq2seq_config(**options),
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        max_positions=max_positions,
        vocabulary="ab12cd34" * 8,
    ).eval()


def large_weight_model(**options: Any) -> EncoderDecoder:
    """A small model with weights so large that a wrong mask or a lost state changes the output."""
    return enlarge_weights(seq2seq_model(**options))  # type: ignore[return-value]


ATTENTION_OPTIONS: dict[str, dict[str, Any]] = {
    "none": {"attention": "none"},
    "every-step": {"attention": "none", "feed_context": True},
    **{
        f"{score}-{name}": {"attention": score, **placement}
        for score in ATTENTION_SCORES
        for name, placement in PLACEMENTS.items()
    },
}


def _options(encoder: str, decoder: str, attention: dict[str, Any]) -> dict[str, Any]:
    # score functions without a matrix need equal sizes; all others get two sizes, so that a mix-up fails
    equal = attention["attention"] in ("dot", "scaled-dot") and decoder != "attention"
    options = {
        "encoder": {"layer_type": encoder, "hidden_size": 8 if equal else 6},
        "decoder": {"layer_type": decoder, "num_layers": 2},
    }
    for side in options.values():
        if side["layer_type"] == "attention":
            side |= {"num_heads": 2, "ffn_dim": 16, "skip_connection": "residual", "norm": "layernorm"}
    return {**options, **attention}


GRID: dict[str, dict[str, Any]] = {
    f"{encoder}/{decoder}/{name}": _options(encoder, decoder, attention)
    for encoder in MIXERS
    for decoder in recurrent_mixers()
    for name, attention in ATTENTION_OPTIONS.items()
} | {
    f"{encoder}/attention/{score}": _options(encoder, "attention", {"attention": score})
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
UNIDIRECTIONAL: dict[str, Any] = {"encoder": {"bidirectional": False}}
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"copy-{mixer}": {"layer_type": mixer, "num_layers": 2, "bridge": "copy"} for mixer in recurrent_mixers()},
    **{
        f"copy-{mixer}-one-way": {"layer_type": mixer, "num_layers": 2, "bridge": "copy", **UNIDIRECTIONAL}
        for mixer in recurrent_mixers()
    },
    **{
        f"project-{mixer}": {"layer_type": mixer, "num_layers": 2, "bridge": "project", **UNIDIRECTIONAL}
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
    **{
        f"copying-{name}": {"copy_mechanism": True, "attention": "multiplicative", **placement}
        for name, placement in PLACEMENTS.items()
    },
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
    **{f"{encoding}-transformer": {"position_encoding": encoding, **ATTENTION} for encoding in ("sinusoidal", "learned")},
    **{f"{encoding}-transformer": {"position_encoding": encoding, **ATTENTION} for encoding in ("relative", "alibi", "rotary")},
    "relative-bias-transformer": {
        **ATTENTION,
        "position_encoding": "relative-bias",
        "num_layers": 2,
        "bias": False,
        "head_bias": False,
        "norm": "rmsnorm",
        "activation": "geglu-tanh",
    },
    "embedding-norm-transformer": {
        **ATTENTION,
        "position_encoding": "learned",
        "norm_position": "post",
        "embedding_norm": True,
        "scale_embeddings": False,
        "share_embeddings": True,
        "tie_embeddings": True,
        "activation": "silu",
    },
    "embedding-norm-before": {"layer_type": "gru", "embedding_norm": True, "attention": "dot", "attention_placement": "before"},
    "one-way-transformer": {"position_encoding": "sinusoidal", **ATTENTION, **UNIDIRECTIONAL},
    "one-way-rotary": {"position_encoding": "rotary", **ATTENTION, **UNIDIRECTIONAL},
    "bottleneck-transformer": {**ATTENTION, "position_encoding": "rotary", "attention": "none"},
    "post-norm-transformer": {**ATTENTION, "norm_position": "post", "position_encoding": "sinusoidal"},
    "dense-transformer": {**ATTENTION, "skip_connection": "dense", "num_layers": 2},
    "heads": {**ATTENTION, "num_layers": 2, "num_heads": [1, 4], "head_dim": 4, "qk_norm": True, "position_encoding": "alibi"},
    **{
        f"{encoding}-feeding": {"position_encoding": encoding, "attention": "dot", "input_feeding": True}
        for encoding in ("sinusoidal", "learned")
    },
    **{
        f"{encoding}-before": {"position_encoding": encoding, "attention": "additive", "attention_placement": "before"}
        for encoding in ("sinusoidal", "learned")
    },
    **{
        f"{connection}-{name}": {
            "layer_type": "gru",
            "num_layers": 2,
            "skip_connection": "residual" if connection == "post-norm" else connection,
            "norm": "layernorm",
            "norm_position": "post" if connection == "post-norm" else "pre",
            "attention": "additive",
            **placement,
        }
        for connection in ("residual", "post-norm", "highway", "dense")
        for name, placement in PLACEMENTS.items()
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
        f"embedding-{connection}": {
            "layer_type": "lstm",
            "num_layers": 2,
            "embedding_dim": 5,
            "skip_connection": connection,
            "norm": "layernorm",
            "attention": "multiplicative",
        }
        for connection in ("none", "residual", "highway", "dense")
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
ALL_MODELS = GRID | VARIANTS


def representative() -> list[str]:
    """A subset of ALL_MODELS: each attention with two decoders and alternating encoders, each encoder with a Transformer
    decoder, and VARIANTS."""
    step = len(recurrent_mixers()) // 2
    decoders = [
        (decoder, name) for index, name in enumerate(ATTENTION_OPTIONS) for decoder in recurrent_mixers()[index % step :: step]
    ]
    encoders = [list(MIXERS)[(index + index // len(MIXERS)) % len(MIXERS)] for index in range(len(decoders))]
    stepwise = [f"{encoder}/{decoder}/{name}" for encoder, (decoder, name) in zip(encoders, decoders, strict=True)]
    return [*stepwise, *(name for name in GRID if "/attention/" in name), *VARIANTS]


@cache
def build(name: str) -> EncoderDecoder:
    """The model of this name, cached: tests must not change it."""
    return large_weight_model(**ALL_MODELS[name])


# ---- sources and targets


def sources(*lengths: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> tuple[Tensor, Tensor]:
    """Random tokens and </s> in rows of these lengths, with their token mask; padding is 0."""
    generator = torch.Generator().manual_seed(seed + sum(lengths))
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(3, vocab_size, token_mask.shape, generator=generator)
    tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = EOS
    return tokens.masked_fill(~token_mask, 0), token_mask


def targets(rows: int, length: int, *, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """Random tokens after <s>, (rows, length)."""
    generator = torch.Generator().manual_seed(100 + seed + length)
    tokens = torch.randint(3, vocab_size, (rows, length), generator=generator)
    tokens[:, 0] = BOS
    return tokens


def random_memory(*lengths: int, hidden_size: int, seed: int = 0, dtype: torch.dtype = torch.double) -> Memory:
    """Random encoder output. Its padding is large, so that a missing mask changes the result."""
    generator = torch.Generator().manual_seed(seed)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = torch.randn(*token_mask.shape, hidden_size, generator=generator, dtype=dtype)
    summary = torch.randn(len(lengths), hidden_size, generator=generator, dtype=dtype)
    return Memory(torch.where(token_mask[..., None], values, 100.0), token_mask, (), summary)
