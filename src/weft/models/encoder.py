"""Text encoders: an embedder and a stack. Classifiers, taggers, masked language models and QA models add an output layer.

The weights of an encoder have the same names in all of them, so that one task can be fine-tuned from another.
Shapes: B batch size, S sequence length, D hidden size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder_config import TextEncoderConfig
from weft.nn.dropout import IntegerDropout
from weft.nn.stack import Stack
from weft.text.pipelines import SPECIALS, UNK

NUM_SEGMENTS = 2  # first and second text of a pair


class EncoderInput(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s> tokens </s>, or <s> tokens </s> tokens </s> for a pair; padded with 0
    token_mask: Tensor  # bool (B, S), False on padding
    segments: Tensor | None = None  # int64 (B, S): 0 in the first text, 1 in the second; None for single texts


class WordDropout(nn.Module):
    """Replace random tokens by <unk> during training, so that no prediction rests on one word (Iyyer et al. 2015)."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens, int64 (B, S), to tokens (B, S)."""
        if not self.training or self.prob == 0.0:
            return tokens
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.prob
        return tokens.masked_fill(dropped & (tokens >= len(SPECIALS)), SPECIALS.index(UNK))


class TextEmbedder(nn.Module):
    """Token embeddings plus segment embeddings."""

    def __init__(
        self, embedding: nn.Embedding, *, segments: nn.Embedding | None = None, dropout: float = 0.0, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding, self.segments, self.dropout = embedding, segments, IntegerDropout(dropout)
        self.word_dropout = WordDropout(word_dropout)

    def forward(self, text: EncoderInput) -> tuple[Tensor, Tensor]:
        """Embeddings (B, S, D) and token mask (B, S)."""
        x = self.embedding(self.word_dropout(text.tokens))
        if self.segments is not None:  # a single text is a first text
            x = x + (self.segments.weight[0] if text.segments is None else self.segments(text.segments))
        return self.dropout(x), text.token_mask


class TextEncoder(nn.Module):
    """Contextual representations: an embedder, then a stack."""

    def __init__(self, embedder: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.embedder, self.stack = embedder, stack

    @property
    def max_positions(self) -> int | None:
        return self.stack.positions.max_positions

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Hidden states (B, S, D) and token mask (B, S)."""
        x, token_mask = self.embedder(inputs)
        y, _ = self.stack(x, None, token_mask)
        return y, token_mask


def encoder_stack(config: TextEncoderConfig, *, max_positions: int, input_size: int) -> Stack:
    """The initialized stack of an encoder; `input_size` is the size of the embedder's vectors."""
    stack = build.stack(config, context_length=max_positions, input_size=input_size)
    if config.embedding_norm:
        stack.input_proj = build.norm(config.norm if config.norm != "none" else "layernorm", input_size, eps=config.norm_eps)
    if config.traits.small_init:
        build.init_gpt2(stack)
    if config.skip_connection == "residual" and not config.is_post_norm:
        build.scale_residual_projections(stack, (2 * config.num_layers) ** -0.5)
    return stack


def text_embedder(config: TextEncoderConfig, *, vocab_size: int, segments: bool) -> TextEmbedder:
    embedding = nn.Embedding(vocab_size, config.input_dim())
    # the scale of learned positions, or 0.1: larger embeddings overfit
    matches_positions = config.traits.small_init and config.position_encoding == "learned"
    nn.init.normal_(embedding.weight, std=0.02 if matches_positions else 0.1)
    segment_embedding = nn.Embedding(NUM_SEGMENTS, config.input_dim()) if segments else None
    if segment_embedding is not None:
        nn.init.normal_(segment_embedding.weight, std=0.02)
    dropout = config.embedding_dropout or 0.0
    return TextEmbedder(embedding, segments=segment_embedding, dropout=dropout, word_dropout=config.word_dropout)


def text_encoder(config: TextEncoderConfig, *, vocab_size: int, max_positions: int, segments: bool = False) -> TextEncoder:
    """The encoder of a resolved configuration, initialized with torch's default random generator."""
    return TextEncoder(
        text_embedder(config, vocab_size=vocab_size, segments=segments),
        encoder_stack(config, max_positions=max_positions, input_size=config.input_dim()),
    )
