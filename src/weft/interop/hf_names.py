"""Names of our weights in Hugging Face models, for import and export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Row(NamedTuple):
    """One of our tensors and the tensors of Hugging Face that are concatenated to it; `transposed`: inputs on axis 0."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False


class Encoder(NamedTuple):
    """Names in an encoder of the BERT family; those of a layer follow `layer`."""

    prefix: str  # of the encoder in a model that has a head
    layer: str
    attention: tuple[str, str, str]
    out: str
    out_norm: str
    up_proj: str
    down_proj: str
    ffn_norm: str
    dense: str  # of the head, as are the next three
    norm: str
    bias: str
    decoder: str
    offset: int = 0  # unused positions before the first
    segments: bool = True


TOKENS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
SEGMENTS, EMBEDDING_NORM = "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm"
BERT = Encoder(
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
        offset=2,
    ),
    "distilbert": Encoder(
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
        segments=False,
    ),
}


def _weight_and_bias(ours: str, theirs: str) -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}.weight",))
    yield Row(f"{ours}.bias", (f"{theirs}.bias",))


def encoder_rows(names: Encoder, layers: int) -> Iterator[Row]:
    """The weights of a stack and the norm below it. Embeddings are handled separately: their tokens are in another order."""
    yield from _weight_and_bias("encoder.stack.input_proj", EMBEDDING_NORM)
    for layer in range(layers):
        theirs = f"{names.layer}{layer}."
        attention, ffn = (f"encoder.stack.layers.{2 * layer + part}" for part in (0, 1))
        for end in ("weight", "bias"):
            yield Row(f"{attention}.mixer.to_qkv.{end}", tuple(f"{theirs}{name}.{end}" for name in names.attention))
        yield from _weight_and_bias(f"{attention}.mixer.to_out", theirs + names.out)
        yield from _weight_and_bias(f"{attention}.connection.norm", theirs + names.out_norm)
        yield from _weight_and_bias(f"{ffn}.mixer.up_proj", theirs + names.up_proj)
        yield from _weight_and_bias(f"{ffn}.mixer.to_out", theirs + names.down_proj)
        yield from _weight_and_bias(f"{ffn}.connection.norm", theirs + names.ffn_norm)


def head_rows(names: Encoder) -> Iterator[Row]:
    """The layer before the output of a masked language model."""
    yield from _weight_and_bias("transform.0", names.dense)
    yield from _weight_and_bias("transform.2", names.norm)


def gpt2_rows(layers: int) -> Iterator[Row]:
    """The stack of GPT-2, whose matrices are transposed."""
    for layer in range(layers):
        theirs = f"h.{layer}."
        attention, ffn = (f"stack.layers.{2 * layer + part}" for part in (0, 1))
        yield from _weight_and_bias(f"{attention}.norm", f"{theirs}ln_1")
        yield from _weight_and_bias(f"{ffn}.norm", f"{theirs}ln_2")
        parts = {f"{attention}.mixer.to_qkv": "attn.c_attn", f"{attention}.mixer.to_out": "attn.c_proj"}
        parts |= {f"{ffn}.mixer.up_proj": "mlp.c_fc", f"{ffn}.mixer.to_out": "mlp.c_proj"}
        for ours, name in parts.items():
            yield Row(f"{ours}.weight", (f"{theirs}{name}.weight",), transposed=True)
            yield Row(f"{ours}.bias", (f"{theirs}{name}.bias",))
    yield from _weight_and_bias("stack.final_norm", "ln_f")
