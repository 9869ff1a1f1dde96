"""Encoders: a front that makes vectors of what is read, and a stack that lets them see each other. Under a head they classify,
tag, or fill gaps; whatever stands above, their weights have the same names, so that one task can start from another.

Shapes: B rows, S positions, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder_config import TextEncoderConfig
from weft.nn.stack import Stack
from weft.text.pipelines import SPECIALS, UNK

SEGMENTS = 2  # a text, and another one beside it


class EncoderInput(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, tokens, </s>; of two texts <s>, tokens, </s>, tokens, </s>; padded with 0
    token_mask: Tensor  # bool (B, S), False on padding
    segments: Tensor | None = None  # int64 (B, S): 0 in the first text, 1 in the second; None where there is one


class WordDropout(nn.Module):
    """In training some tokens become <unk>, so that no text is known by one word (Iyyer et al. 2015)."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (B, S) -> (B, S)."""
        if not self.training or self.prob == 0.0:
            return tokens
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.prob
        return tokens.masked_fill(dropped & (tokens >= len(SPECIALS)), SPECIALS.index(UNK))


class TextEmbedder(nn.Module):
    """Tokens as vectors, and which of two texts they are of."""

    def __init__(
        self, embedding: nn.Embedding, *, segments: nn.Embedding | None = None, dropout: float = 0.0, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding, self.segments, self.dropout = embedding, segments, nn.Dropout(dropout)
        self.word_dropout = WordDropout(word_dropout)

    def forward(self, text: EncoderInput) -> tuple[Tensor, Tensor]:
        """(B, S, D), and what of it is real, (B, S)."""
        x = self.embedding(self.word_dropout(text.tokens))
        if self.segments is not None:  # a text alone is a first text
            x = x + (self.segments.weight[0] if text.segments is None else self.segments(text.segments))
        return self.dropout(x), text.token_mask


class TextEncoder(nn.Module):
    """What a front reads, as vectors that know each other."""

    def __init__(self, embedder: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.embedder, self.stack = embedder, stack

    @property
    def max_positions(self) -> int | None:
        return self.stack.positions.max_positions

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """(B, S, D), and which positions are real, (B, S)."""
        x, token_mask = self.embedder(inputs)
        y, _ = self.stack(x, None, token_mask)
        return y, token_mask


def encoder_stack(config: TextEncoderConfig, *, max_positions: int, input_size: int) -> Stack:
    """The stack of an encoder, freshly initialised; `inlet` is how wide the front's vectors are."""
    stack = build.stack(config, context_length=max_positions, input_size=input_size)
    if config.embedding_norm:
        stack.input_proj = build.norm(config.norm if config.norm != "none" else "layer", input_size, eps=config.norm_eps)
    if config.traits.small_init:
        build.init_gpt2(stack)
    if config.skip_connection == "residual":
        build.scale_residual_projections(stack, (2 * config.num_layers) ** -0.5)
    return stack


def text_embedder(config: TextEncoderConfig, *, vocab_size: int, segments: bool) -> TextEmbedder:
    embedding = nn.Embedding(vocab_size, config.input_dim())
    # as quiet as learned positions start; else as the first networks of words were: loud ones are learned by heart
    quiet = config.traits.small_init and config.position_encoding == "learned"
    nn.init.normal_(embedding.weight, std=0.02 if quiet else 0.1)
    beside = nn.Embedding(SEGMENTS, config.input_dim()) if segments else None
    if beside is not None:
        nn.init.normal_(beside.weight, std=0.02)
    return TextEmbedder(embedding, segments=beside, dropout=config.embedding_dropout or 0.0, word_dropout=config.word_dropout)


def text_encoder(config: TextEncoderConfig, *, vocab_size: int, max_positions: int, segments: bool = False) -> TextEncoder:
    """The encoder of a filled table, freshly initialised from torch's default generator."""
    return TextEncoder(
        text_embedder(config, vocab_size=vocab_size, segments=segments),
        encoder_stack(config, max_positions=max_positions, input_size=config.input_dim()),
    )
