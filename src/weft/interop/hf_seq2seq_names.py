"""Names of the weights of encoder-decoders in Hugging Face models, for import and export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.interop.hf_names import WeightMapping


class Seq2SeqNames(NamedTuple):
    """Weight names of an encoder-decoder. Those of sublayers follow the name of their layer."""

    prefix: str  # of the model without its output layer
    layer: str  # of a layer, with its side and index
    self_attention: tuple[str, str, str, str]  # query, key, value, output
    self_norm: str
    cross_attention: tuple[str, str, str, str]
    cross_norm: str
    up_proj: tuple[str, ...]  # two of a gated activation
    down_proj: str
    ffn_norm: str
    encoder_ffn: str = ""  # prefix of the three names above in the encoder
    decoder_ffn: str = ""  # and in the decoder
    final_norm: str | None = None  # after the last layer
    has_bias: bool = True


def _attention(prefix: str, names: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    q, k, v, out = (f"{prefix}.{name}" for name in names)
    return q, k, v, out


BART = Seq2SeqNames(
    prefix="model.",
    layer="{side}.layers.{layer}.",
    self_attention=_attention("self_attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
    self_norm="self_attn_layer_norm",
    cross_attention=_attention("encoder_attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
    cross_norm="encoder_attn_layer_norm",
    up_proj=("fc1",),
    down_proj="fc2",
    ffn_norm="final_layer_norm",
)
PEGASUS = BART._replace(final_norm="layer_norm")
T5 = Seq2SeqNames(
    prefix="transformer.",
    layer="{side}.block.{layer}.layer.",
    self_attention=_attention("0.SelfAttention", ("q", "k", "v", "o")),
    self_norm="0.layer_norm",
    cross_attention=_attention("1.EncDecAttention", ("q", "k", "v", "o")),
    cross_norm="1.layer_norm",
    up_proj=("DenseReluDense.wi",),
    down_proj="DenseReluDense.wo",
    ffn_norm="layer_norm",
    encoder_ffn="1.",
    decoder_ffn="2.",
    final_norm="final_layer_norm",
    has_bias=False,
)
GATED_T5 = T5._replace(up_proj=("DenseReluDense.wi_0", "DenseReluDense.wi_1"))
RELATIVE_BIAS = "{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"  # of T5
EMBEDDING_NORM, POSITIONS = "{side}.layernorm_embedding", "{side}.embed_positions.weight"
SHARED, SIDE_EMBEDDING, HEAD, LOGITS_BIAS = "shared.weight", "{side}.embed_tokens.weight", "lm_head.weight", "final_logits_bias"
SIDES = ("encoder", "decoder")


def sublayers(side: str, layer: int) -> list[str]:
    """The names of our sublayers: self-attention, cross-attention in a decoder, feed-forward."""
    size = 3 if side == "decoder" else 2
    return [f"{side}.stack.layers.{size * layer + index}" for index in range(size)]


def seq2seq_mappings(names: Seq2SeqNames, num_layers: Mapping[str, int]) -> Iterator[WeightMapping]:
    """The weights of both stacks. Embeddings and positions are converted separately."""
    for side in SIDES:
        for layer in range(num_layers[side]):
            yield from _layer(names, side, layer)
        if names.final_norm is not None:
            yield from _linear(names, f"{side}.stack.final_norm", [f"{side}.{names.final_norm}"])


def _layer(names: Seq2SeqNames, side: str, layer: int) -> Iterator[WeightMapping]:
    theirs, ours = names.layer.format(side=side, layer=layer), sublayers(side, layer)
    norm = "connection.norm" if names.final_norm is None else "norm"  # post-norm layers have no final norm
    q, k, v, out = (theirs + name for name in names.self_attention)
    yield from _linear(names, f"{ours[0]}.mixer.to_qkv", [q, k, v])
    yield from _linear(names, f"{ours[0]}.mixer.to_out", [out])
    yield from _linear(names, f"{ours[0]}.{norm}", [theirs + names.self_norm])
    if side == "decoder":
        q, k, v, out = (theirs + name for name in names.cross_attention)
        yield from _linear(names, f"{ours[1]}.mixer.to_q", [q])
        yield from _linear(names, f"{ours[1]}.mixer.to_kv", [k, v])
        yield from _linear(names, f"{ours[1]}.mixer.to_out", [out])
        yield from _linear(names, f"{ours[1]}.{norm}", [theirs + names.cross_norm])
    theirs += names.decoder_ffn if side == "decoder" else names.encoder_ffn
    yield from _linear(names, f"{ours[-1]}.mixer.up_proj", [*(theirs + name for name in names.up_proj)])
    yield from _linear(names, f"{ours[-1]}.mixer.to_out", [theirs + names.down_proj])
    yield from _linear(names, f"{ours[-1]}.{norm}", [theirs + names.ffn_norm])


def _linear(names: Seq2SeqNames, ours: str, theirs: Sequence[str]) -> Iterator[WeightMapping]:
    """The weight and the bias of a linear layer or a norm. An RMS norm has no bias, as the linear layers of T5."""
    for suffix in ("weight", "bias") if names.has_bias else ("weight",):
        yield WeightMapping(f"{ours}.{suffix}", tuple(f"{name}.{suffix}" for name in theirs))
