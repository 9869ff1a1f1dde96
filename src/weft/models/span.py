"""Readers: an encoder of a question and a passage, and where in the passage the answer starts and ends (Devlin et al. 2019).

Shapes: B rows, S positions, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import Text, TextEncoder, text_encoder
from weft.models.encoder_tables import SpanTable
from weft.text.tokenizers import Tokenizer


class SpanHead(nn.Module):
    """Scores of first and last tokens; position 0, <s>, is no answer. Its threshold is how much better than none an answer must
    be to be said: 0 until validation data says better. It is no weight: training does not see it."""

    threshold: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ends = nn.Linear(dim, 2)
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, y: Tensor, may: Tensor) -> Tensor:
        """(B, S, D) and where an answer may be (B, S) -> (B, S, 2): of the first token, of the last; elsewhere -inf."""
        scores: Tensor = self.ends(y)
        return scores.float().masked_fill(~may[..., None], -torch.inf)

    def loss(self, scores: Tensor, spans: Tensor) -> Tensor:
        """Nats of each row's first and last token together, (B,); spans (B, 2)."""
        found = scores.log_softmax(1).gather(1, spans[:, None])
        return -found.sum((1, 2))


def answerable(text: Text) -> Tensor:
    """bool (B, S): the tokens of the passage, and <s>."""
    first = torch.zeros_like(text.keep)
    first[:, 0] = True
    if text.segments is None:
        return first
    return first | (text.keep & (text.segments == 1) & (text.tokens != Tokenizer.end))


class SpanModel(nn.Module):
    """P(first token, last token | question, passage)."""

    def __init__(self, encoder: TextEncoder, head: SpanHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = encoder, head, nn.Dropout(dropout)

    @property
    def longest(self) -> int | None:
        return self.encoder.longest

    def matrices(self) -> set[str]:
        return build.matrices(self.encoder.stack, "encoder.stack")

    def forward(self, text: Text) -> Tensor:
        """(B, S) -> scores (B, S, 2), not normalised; -inf where no answer can be."""
        y, _ = self.encoder(text)
        scores: Tensor = self.head(self.dropout(y), answerable(text))
        return scores


def span_model(table: SpanTable, *, words: int, longest: int) -> SpanModel:
    """The model of a filled table, freshly initialised from torch's default generator."""
    encoder = text_encoder(table, words=words, longest=longest, segments=True)
    return SpanModel(encoder, SpanHead(table.width), dropout=table.dropout)
