"""The [model] tables of networks that read whole texts, and what each kind of masked language model means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice
from weft.models.config import EmbeddedStackConfig
from weft.nn.choices import POOLS

HEADS = ("linear", "crf")
MASKING_UNITS = ("token", "whole-word", "span")


class TextEncoderConfig(EmbeddedStackConfig):
    """A stack that reads a whole text, from both ends unless told otherwise."""

    bidirectional: bool = True
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # as `dropout`, unless given
    word_dropout: float = Field(0.0, ge=0.0, lt=1.0)  # share of tokens that training reads as <unk>
    embedding_norm: bool = False  # embeddings are normalised before the first layer, as in BERT

    def with_defaults(self) -> Any:
        dropout = self.dropout if self.embedding_dropout is None else self.embedding_dropout
        return super().with_defaults().model_copy(update={"embedding_dropout": dropout})


class ClassifierConfig(TextEncoderConfig):
    """An encoder under a pool and a layer of labels."""

    pooling: Annotated[str, Choice(POOLS)] = "mean"  # how a text becomes one vector
    balanced: bool = False  # in training, every label counts as much as any other, however rare it is

    @model_validator(mode="after")
    def check_pooling(self) -> Self:
        if self.pooling == "first" and not self.bidirectional:
            raise ValueError("pool='first' looks where nothing is read yet, as two_way=false; use pool='last'")
        return self


class CharEncoderConfig(TextEncoderConfig):
    """An encoder of letters: what a word is spelled like, for those that are rare or new."""

    num_layers: int = Field(1, ge=1, le=512)
    hidden_size: int = Field(64, ge=1, le=65536)
    embedding_dim: int | None = Field(32, ge=1, le=65536)
    pooling: Annotated[str, Choice(POOLS)] = "max"

    @model_validator(mode="after")
    def check_pooling(self) -> Self:
        if self.position_encoding == "learned":
            raise ValueError("positions='learned' end somewhere, and a new word may be longer; use 'sinusoidal'")
        return self


class TaggerConfig(TextEncoderConfig):
    """An encoder under a layer of tags."""

    head: Annotated[str, Choice(HEADS)] = "crf"  # each tag by itself, or the sentence's tags together
    char_encoder: CharEncoderConfig | Literal["none"] | None = None  # [model.spelling]: letters beside each word

    def resolved_char_encoder(self) -> CharEncoderConfig | None:
        """The encoder of letters, where there is one."""
        return None if self.char_encoder is None or self.char_encoder == "none" else self.char_encoder.with_defaults()


class QAConfig(TextEncoderConfig):
    """An encoder under two scores of each position."""


class MaskedLMConfig(TextEncoderConfig):
    """An encoder under a head of words, and how gaps are made for it to learn from."""

    tie_embeddings: bool = True  # one matrix for the embedding and the output
    head_transform: bool = False  # a layer of its own before the output, as in BERT
    sentence_pairs: bool = False  # two lines that follow each other are read as one text, <s> a </s> b </s>
    segment_embeddings: bool | None = None  # a vector for each of two texts; as `pairs`, unless given
    mask_prob: float = Field(0.15, gt=0.0, le=1.0)  # of the tokens of each text that are to be predicted
    masking: Annotated[str, Choice(MASKING_UNITS)] = (
        "token"  # what is hidden together: nothing, the pieces of a word, words in a row
    )

    @model_validator(mode="after")
    def check_bidirectional(self) -> Self:
        if not self.bidirectional:
            raise ValueError("two_way=false hides what stands after a gap; a masked language model reads both ways")
        if self.head_transform and self.activation == "swiglu":
            raise ValueError(
                "transform=true has no gate, which activation='gated' is; use another activation, or transform=false"
            )
        if self.tie_embeddings and self.input_dim() != self.hidden_size:
            raise ValueError(
                f"tied=true makes the embedding the output, which reads width={self.hidden_size}, not embedding={self.embedding_dim}; "
                f"add tied=false"
            )
        return self

    def with_defaults(self) -> Self:
        segments = self.sentence_pairs if self.segment_embeddings is None else self.segment_embeddings
        found: Self = super().with_defaults().model_copy(update={"segments": segments})
        return found


BERT: Mapping[str, Any] = {
    "layer_type": "attention",
    "position_encoding": "learned",
    "skip_connection": "post-norm",
    "norm": "layernorm",
    "num_layers": 4,
    "dropout": 0.1,
    "embedding_norm": True,
    "head_transform": True,
}
TRANSFORMER: Mapping[str, Any] = {
    "layer_type": "attention",
    "position_encoding": "rotary",
    "skip_connection": "residual",
    "norm": "rmsnorm",
    "num_layers": 4,
    "qk_norm": True,
    "dropout": 0.1,
}
