"""Names of our weights in Hugging Face models, for import and export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class WeightMapping(NamedTuple):
    """The name of one of our tensors, and the names of the tensors of Hugging Face that are concatenated to it."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False  # their matrices are (inputs, outputs)


class EncoderNames(NamedTuple):
    """Weight names of an encoder of the BERT family."""

    prefix: str  # of the encoder in a model that has a head
    layer: str  # prefix of the layers; followed by the index of the layer and one of the next six names
    attention: tuple[str, str, str]  # query, key, value
    out: str
    out_norm: str
    up_proj: str
    down_proj: str
    ffn_norm: str
    dense: str  # this and the next three names belong to the MLM head
    norm: str
    bias: str
    decoder: str
    position_offset: int = 0  # number of unused position embeddings before the first
    has_segments: bool = True


TOKENS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
SEGMENTS, EMBEDDING_NORM = "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm"
BERT = EncoderNames(
    prefix="bert.",
    layer="encoder.layer.",
    attention=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    out_norm="attention.output.LayerNorm",
    up_proj="intermediate.dense",
    down_proj="output.dense",
    ffn_norm="output.LayerNorm",
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias",
    decoder="cls.predictions.decoder.weight",
)
ENCODERS = {
    "bert": BERT,
    "roberta": BERT._replace(
        prefix="roberta.",
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        bias="lm_head.bias",
        decoder="lm_head.decoder.weight",
        position_offset=2,
    ),
    "distilbert": EncoderNames(
        prefix="distilbert.",
        layer="transformer.layer.",
        attention=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        out="attention.out_lin",
        out_norm="sa_layer_norm",
        up_proj="ffn.lin1",
        down_proj="ffn.lin2",
        ffn_norm="output_layer_norm",
        dense="vocab_transform",
        norm="vocab_layer_norm",
        bias="vocab_projector.bias",
        decoder="vocab_projector.weight",
        has_segments=False,
    ),
}


def _weight_and_bias(ours: str, theirs: str) -> Iterator[WeightMapping]:
    yield WeightMapping(f"{ours}.weight", (f"{theirs}.weight",))
    yield WeightMapping(f"{ours}.bias", (f"{theirs}.bias",))


def encoder_mappings(names: EncoderNames, num_layers: int) -> Iterator[WeightMapping]:
    """The weights of a stack and the embedding norm. Embeddings are converted separately: their rows are in another order."""
    yield from _weight_and_bias("encoder.stack.input_proj", EMBEDDING_NORM)
    for layer in range(num_layers):
        theirs = f"{names.layer}{layer}."
        attention, ffn = (f"encoder.stack.layers.{2 * layer + part}" for part in (0, 1))
        for suffix in ("weight", "bias"):
            their_names = tuple(f"{theirs}{name}.{suffix}" for name in names.attention)
            yield WeightMapping(f"{attention}.mixer.to_qkv.{suffix}", their_names)
        yield from _weight_and_bias(f"{attention}.mixer.to_out", theirs + names.out)
        yield from _weight_and_bias(f"{attention}.connection.norm", theirs + names.out_norm)
        yield from _weight_and_bias(f"{ffn}.mixer.up_proj", theirs + names.up_proj)
        yield from _weight_and_bias(f"{ffn}.mixer.to_out", theirs + names.down_proj)
        yield from _weight_and_bias(f"{ffn}.connection.norm", theirs + names.ffn_norm)


def head_mappings(names: EncoderNames) -> Iterator[WeightMapping]:
    """The dense layer and the norm of the MLM head."""
    yield from _weight_and_bias("transform.0", names.dense)
    yield from _weight_and_bias("transform.2", names.norm)


def gpt2_mappings(num_layers: int) -> Iterator[WeightMapping]:
    """The weights of the stack of GPT-2, whose matrices are transposed."""
    for layer in range(num_layers):
        theirs = f"h.{layer}."
        attention, ffn = (f"stack.layers.{2 * layer + part}" for part in (0, 1))
        yield from _weight_and_bias(f"{attention}.norm", f"{theirs}ln_1")
        yield from _weight_and_bias(f"{ffn}.norm", f"{theirs}ln_2")
        parts = {f"{attention}.mixer.to_qkv": "attn.c_attn", f"{attention}.mixer.to_out": "attn.c_proj"}
        parts |= {f"{ffn}.mixer.up_proj": "mlp.c_fc", f"{ffn}.mixer.to_out": "mlp.c_proj"}
        for ours, name in parts.items():
            yield WeightMapping(f"{ours}.weight", (f"{theirs}{name}.weight",), transposed=True)
            yield WeightMapping(f"{ours}.bias", (f"{theirs}{name}.bias",))
    yield from _weight_and_bias("stack.final_norm", "ln_f")
