"""Which runs CTranslate2 can compute: the option values that it has no equivalent of. This module does not import torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.models.config import LanguageModelConfig, StackConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn.mixers import MIXERS
from weft.runs.config import RunConfig

ATTENTION = tuple(name for name, row in MIXERS.items() if row.module == "weft.nn.attention.SelfAttention")
NORM_EPS: Mapping[str, float] = {"layernorm": 1e-5, "rmsnorm": 2.0**-23}  # the defaults; that of RMS norm is torch's
# the values of options of a stack that CTranslate2 has
STACK: Mapping[str, Sequence[Any]] = {
    "layer_type": ATTENTION,
    "skip_connection": ("residual",),
    "norm": ("layernorm", "rmsnorm"),
    "num_experts": (None,),
    "conv_kernel": (None,),
}


def norm_eps(config: StackConfig) -> float:
    """The epsilon of the norms of a stack."""
    return NORM_EPS[config.norm] if config.norm_eps is None else config.norm_eps


def translates(config: RunConfig) -> bool:
    """Whether a run is an encoder-decoder of texts; those that read sounds or images have classes of their own."""
    return type(config.model) is Seq2SeqConfig


def describe(option: str, value: Any, reason: str = "CTranslate2 has no equivalent") -> str:
    return f"{option} = {json.dumps(value)}: {reason}"


def _head_problems(config: StackConfig, table: str) -> Iterator[str]:
    heads = [config.heads_in_layer(layer) for layer in range(config.num_layers)]
    counts, sizes = {count for count, _ in heads}, {size for _, size in heads}
    if len(sizes) > 1:
        yield describe(f"{table}.head_dim", config.head_dim, "CTranslate2 has one head size in all layers")
    if not max(counts):
        yield describe(f"{table}.num_heads", config.num_heads, "CTranslate2 has at least one head")
    if config.position_encoding == "alibi":
        if config.alibi_slopes is not None:
            yield describe(f"{table}.alibi_slopes", config.alibi_slopes, "CTranslate2 has the slopes of the paper")
        elif len(counts) > 1 or max(counts) & (max(counts) - 1):
            reason = "with alibi, CTranslate2 has these slopes for one power of 2 in all layers"
            yield describe(f"{table}.num_heads", config.num_heads, reason)


def _stack_problems(config: StackConfig, table: str) -> Iterator[str]:
    for option, allowed in STACK.items():
        if (value := getattr(config, option)) not in allowed:
            yield describe(f"{table}.{option}", value)
    if not config.traits.attends:
        return
    if not config.ffn_dim:
        yield describe(f"{table}.ffn_dim", config.ffn_dim, "CTranslate2 has a feed-forward sublayer in each layer")
    yield from _head_problems(config, table)


def _seq2seq_problems(config: Seq2SeqConfig) -> Iterator[str]:
    encoder, decoder = config.encoder, config.decoder
    sides = [list(_stack_problems(side, "model")) for side in (encoder, decoder)]
    yield from (problem for problem in sides[0] if problem in sides[1])
    for name, side, other in (("encoder", sides[0], sides[1]), ("decoder", sides[1], sides[0])):
        yield from (problem.replace("model.", f"model.{name}.", 1) for problem in side if problem not in other)
    for option, value, allowed in (
        ("model.encoder.bidirectional", encoder.bidirectional, True),
        ("model.encoder.reverse_source", encoder.reverse_source, False),
        ("model.attention", config.attention, "scaled-dot"),
        ("model.copy_mechanism", config.copy_mechanism, False),
    ):
        if value != allowed:
            yield describe(option, value)
    if encoder.position_encoding == "alibi":
        yield describe("model.encoder.position_encoding", "alibi", "CTranslate2 has no equivalent in encoders")
    if decoder.qk_norm:
        option = "model.qk_norm" if encoder.qk_norm else "model.decoder.qk_norm"
        yield describe(option, True, "CTranslate2 has no equivalent in encoder-decoders")
    norms = {side.norm for side in (encoder, decoder)}
    if norms <= NORM_EPS.keys() and norm_eps(encoder) != norm_eps(decoder):
        reason = f"CTranslate2 has one epsilon, but that of the decoder is {norm_eps(decoder):g}"
        yield describe("model.encoder.norm_eps", norm_eps(encoder), reason)


def _language_model_problems(config: LanguageModelConfig) -> Iterator[str]:
    yield from _stack_problems(config, "model")
    if config.position_encoding == "relative-bias":
        # its scores are right, but version 4.8.4 adds biases of wrong distances when it continues a prompt
        reason = "CTranslate2 computes it wrongly after a prompt of several tokens"
        yield describe("model.position_encoding", config.position_encoding, reason)


def problems(config: RunConfig) -> list[str]:
    """The option values of a resolved run file that CTranslate2 has no equivalent of, each with its reason."""
    model = config.model
    if translates(config):
        return list(_seq2seq_problems(model))
    if LanguageModelConfig in type(model).__mro__:  # also one that is trained to respond
        return list(_language_model_problems(model))
    reason = "CTranslate2 has language models and encoder-decoders of texts"
    return [f"task = {json.dumps(config.task)} with model.arch = {json.dumps(config.arch)}: {reason}"]
