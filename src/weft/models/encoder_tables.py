"""The [model] tables of networks that read whole texts, and what each kind of masked language model means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import OneOf
from weft.models.tables import EmbeddedTable
from weft.nn.names import POOLS

HEADS = ("linear", "crf")
MASKINGS = ("token", "word", "span")


class TextEncoderTable(EmbeddedTable):
    """A stack that reads a whole text, from both ends unless told otherwise."""

    two_way: bool = True
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # as `dropout`, unless given
    word_dropout: float = Field(0.0, ge=0.0, lt=1.0)  # share of tokens that training reads as <unk>
    embedding_norm: bool = False  # embeddings are normalised before the first layer, as in BERT

    def filled(self) -> Any:
        dropout = self.dropout if self.embedding_dropout is None else self.embedding_dropout
        return super().filled().model_copy(update={"embedding_dropout": dropout})


class ClassifierTable(TextEncoderTable):
    """An encoder under a pool and a layer of labels."""

    pool: Annotated[str, OneOf(POOLS)] = "mean"  # how a text becomes one vector
    balanced: bool = False  # in training, every label counts as much as any other, however rare it is

    @model_validator(mode="after")
    def pools(self) -> Self:
        if self.pool == "first" and not self.two_way:
            raise ValueError("pool='first' looks where nothing is read yet, as two_way=false; use pool='last'")
        return self


class SpellingTable(TextEncoderTable):
    """An encoder of letters: what a word is spelled like, for those that are rare or new."""

    layers: int = Field(1, ge=1, le=512)
    width: int = Field(64, ge=1, le=65536)
    embedding: int | None = Field(32, ge=1, le=65536)
    pool: Annotated[str, OneOf(POOLS)] = "max"

    @model_validator(mode="after")
    def spells(self) -> Self:
        if self.positions == "learned":
            raise ValueError("positions='learned' end somewhere, and a new word may be longer; use 'sinusoidal'")
        return self


class TaggerTable(TextEncoderTable):
    """An encoder under a layer of tags."""

    head: Annotated[str, OneOf(HEADS)] = "crf"  # each tag by itself, or the sentence's tags together
    spelling: SpellingTable | Literal["none"] | None = None  # [model.spelling]: letters beside each word

    def letters(self) -> SpellingTable | None:
        """The encoder of letters, where there is one."""
        return None if self.spelling is None or self.spelling == "none" else self.spelling.filled()


class SpanTable(TextEncoderTable):
    """An encoder under two scores of each position."""


class MaskedTable(TextEncoderTable):
    """An encoder under a head of words, and how gaps are made for it to learn from."""

    tied: bool = True  # one matrix for the embedding and the output
    transform: bool = False  # a layer of its own before the output, as in BERT
    pairs: bool = False  # two lines that follow each other are read as one text, <s> a </s> b </s>
    segments: bool | None = None  # a vector for each of two texts; as `pairs`, unless given
    share: float = Field(0.15, gt=0.0, le=1.0)  # of the tokens of each text that are to be predicted
    masking: Annotated[str, OneOf(MASKINGS)] = "token"  # what is hidden together: nothing, the pieces of a word, words in a row

    @model_validator(mode="after")
    def two_sided(self) -> Self:
        if not self.two_way:
            raise ValueError("two_way=false hides what stands after a gap; a masked language model reads both ways")
        if self.transform and self.activation == "gated":
            raise ValueError(
                "transform=true has no gate, which activation='gated' is; use another activation, or transform=false"
            )
        if self.tied and self.read() != self.width:
            raise ValueError(
                f"tied=true makes the embedding the output, which reads width={self.width}, not embedding={self.embedding}; "
                f"add tied=false"
            )
        return self

    def filled(self) -> Self:
        segments = self.pairs if self.segments is None else self.segments
        found: Self = super().filled().model_copy(update={"segments": segments})
        return found


BERT: Mapping[str, Any] = {
    "mixer": "attention",
    "positions": "learned",
    "connection": "post-norm",
    "norm": "layer",
    "layers": 4,
    "dropout": 0.1,
    "embedding_norm": True,
    "transform": True,
}
TRANSFORMER: Mapping[str, Any] = {
    "mixer": "attention",
    "positions": "rotary",
    "connection": "residual",
    "norm": "rms",
    "layers": 4,
    "qk_norm": True,
    "dropout": 0.1,
}
