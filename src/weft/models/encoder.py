"""Encoders: a front that makes vectors of what is read, and a stack that lets them see each other. Under a head they classify,
tag, or fill gaps; whatever stands above, their weights have the same names, so that one task can start from another.

Shapes: B rows, S positions, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder_tables import TextEncoderTable
from weft.nn.stack import Stack
from weft.text.pipelines import SPECIALS, UNK

SEGMENTS = 2  # a text, and another one beside it


class Text(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, tokens, </s>; of two texts <s>, tokens, </s>, tokens, </s>; padded with 0
    keep: Tensor  # bool (B, S), False on padding
    segments: Tensor | None = None  # int64 (B, S): 0 in the first text, 1 in the second; None where there is one


class WordDropout(nn.Module):
    """In training some tokens become <unk>, so that no text is known by one word (Iyyer et al. 2015)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (B, S) -> (B, S)."""
        if not self.training or self.share == 0.0:
            return tokens
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.share
        return tokens.masked_fill(dropped & (tokens >= len(SPECIALS)), SPECIALS.index(UNK))


class TextFront(nn.Module):
    """Tokens as vectors, and which of two texts they are of."""

    def __init__(
        self, embedding: nn.Embedding, *, segments: nn.Embedding | None = None, dropout: float = 0.0, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding, self.segments, self.dropout = embedding, segments, nn.Dropout(dropout)
        self.forget = WordDropout(word_dropout)

    def forward(self, text: Text) -> tuple[Tensor, Tensor]:
        """(B, S, D), and what of it is real, (B, S)."""
        x = self.embedding(self.forget(text.tokens))
        if self.segments is not None:  # a text alone is a first text
            x = x + (self.segments.weight[0] if text.segments is None else self.segments(text.segments))
        return self.dropout(x), text.keep


class TextEncoder(nn.Module):
    """What a front reads, as vectors that know each other."""

    def __init__(self, front: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.front, self.stack = front, stack

    @property
    def longest(self) -> int | None:
        return self.stack.positions.longest

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """(B, S, D), and which positions are real, (B, S)."""
        x, keep = self.front(inputs)
        y, _ = self.stack(x, None, keep)
        return y, keep


def encoder_stack(table: TextEncoderTable, *, longest: int, inlet: int) -> Stack:
    """The stack of an encoder, freshly initialised; `inlet` is how wide the front's vectors are."""
    stack = build.stack(table, window=longest, inlet=inlet)
    if table.embedding_norm:
        stack.inlet = build.norm(table.norm if table.norm != "none" else "layer", inlet, eps=table.norm_eps)
    if table.traits.small_init:
        build.scale_mixers(stack)
    if table.connection == "residual":
        build.quiet_outlets(stack, (2 * table.layers) ** -0.5)
    return stack


def text_front(table: TextEncoderTable, *, words: int, segments: bool) -> TextFront:
    embedding = nn.Embedding(words, table.read())
    # as quiet as learned positions start; else as the first networks of words were: loud ones are learned by heart
    quiet = table.traits.small_init and table.positions == "learned"
    nn.init.normal_(embedding.weight, std=0.02 if quiet else 0.1)
    beside = nn.Embedding(SEGMENTS, table.read()) if segments else None
    if beside is not None:
        nn.init.normal_(beside.weight, std=0.02)
    return TextFront(embedding, segments=beside, dropout=table.embedding_dropout or 0.0, word_dropout=table.word_dropout)


def text_encoder(table: TextEncoderTable, *, words: int, longest: int, segments: bool = False) -> TextEncoder:
    """The encoder of a filled table, freshly initialised from torch's default generator."""
    return TextEncoder(
        text_front(table, words=words, segments=segments), encoder_stack(table, longest=longest, inlet=table.read())
    )
