"""The [model] tables of text encoders, and the presets of masked language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice, invalid
from weft.models.config import EmbeddedStackConfig
from weft.nn.choices import GATED_ACTIVATIONS, POOLINGS

TAG_HEADS = ("linear", "crf")
MASKING_UNITS = ("token", "whole-word", "span")
CLASS_WEIGHTS = ("none", "balanced")


class TextEncoderConfig(EmbeddedStackConfig):
    """A stack that reads a whole text, in both directions by default."""

    bidirectional: bool = True
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)
    """Dropout on the embeddings. Default: dropout."""
    word_dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Fraction of tokens replaced by <unk> in training."""

    def with_defaults(self) -> Any:
        dropout = self.dropout if self.embedding_dropout is None else self.embedding_dropout
        return super().with_defaults().model_copy(update={"embedding_dropout": dropout})


class ClassifierConfig(TextEncoderConfig):
    """An encoder with pooling and a linear layer that scores the labels."""

    pooling: Annotated[str, Choice(POOLINGS)] = "mean"
    """How token vectors become one vector."""
    class_weight: Annotated[str, Choice(CLASS_WEIGHTS)] = "none"
    """balanced: weight classes inversely to their frequency."""
    temperature: float | None = Field(None, gt=0.0)
    """Divisor of the logits, which calibrates probabilities. Default: fitted on validation data; 1 without any."""

    @model_validator(mode="after")
    def check_pooling(self) -> Self:
        if self.pooling == "first" and not self.bidirectional:
            raise invalid("pooling", "'first' requires bidirectional = true", "use 'last'")
        return self


class CharEncoderConfig(TextEncoderConfig):
    """An encoder that reads the characters of each word, for words that are rare or not in the training data."""

    num_layers: int = Field(1, ge=1, le=512)
    hidden_size: int = Field(64, ge=1, le=65536)
    embedding_dim: int | None = Field(32, ge=1, le=65536)
    pooling: Annotated[str, Choice(POOLINGS)] = "max"
    """How token vectors become one vector."""

    @model_validator(mode="after")
    def check_positions(self) -> Self:
        if self.position_encoding == "learned":
            raise invalid("position_encoding", "'learned' limits the length of a word", "use 'sinusoidal'")
        return self


class TaggerConfig(TextEncoderConfig):
    """An encoder with a layer that scores the tags."""

    head: Annotated[str, Choice(TAG_HEADS)] = "crf"
    """crf: score the tags of a sentence jointly. linear: score each tag alone."""
    char_encoder: CharEncoderConfig | Literal[False] | None = None
    """A character encoder for words. Set to false for none."""

    def resolved_char_encoder(self) -> CharEncoderConfig | None:
        """The character encoder with all defaults; None if the tagger has none."""
        return self.char_encoder.with_defaults() if self.char_encoder else None


class QAConfig(TextEncoderConfig):
    """An encoder with a layer that scores each position as the start and the end of the answer."""


class MaskedLMConfig(TextEncoderConfig):
    """An encoder with an output layer that predicts masked tokens, and the masking."""

    tie_embeddings: bool = True
    """Share the weights of the embedding and the output layer."""
    head_transform: bool = False
    """Add a dense layer before the output, as in BERT."""
    sentence_pairs: bool = False
    """Train on pairs of consecutive lines. Requires read_as = "lines"."""
    segment_embeddings: bool | None = None
    """Learn an embedding for each of two segments. Default: sentence_pairs."""
    mask_prob: float = Field(0.15, gt=0.0, le=1.0)
    """Fraction of tokens to mask."""
    masking: Annotated[str, Choice(MASKING_UNITS)] = "token"
    """What to mask as a unit: single tokens, whole words, or spans of words."""

    @model_validator(mode="after")
    def check_masked_lm(self) -> Self:
        if not self.bidirectional:
            raise invalid("bidirectional", "must be true for a masked language model")
        if self.head_transform and self.activation in GATED_ACTIVATIONS:
            raise invalid("head_transform", f"not possible with activation {self.activation!r}", "change one of them")
        if self.tie_embeddings and self.input_dim() != self.hidden_size:
            problem = f"requires embedding_dim ({self.embedding_dim}) to equal hidden_size ({self.hidden_size})"
            raise invalid("tie_embeddings", problem, "set tie_embeddings = false")
        return self

    def with_defaults(self) -> Self:
        segments = self.sentence_pairs if self.segment_embeddings is None else self.segment_embeddings
        resolved: Self = super().with_defaults().model_copy(update={"segment_embeddings": segments})
        return resolved


BERT: Mapping[str, Any] = {
    "layer_type": "attention",
    "position_encoding": "learned",
    "skip_connection": "residual",
    "norm": "layernorm",
    "norm_position": "post",
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
