"""Extractive question answering (Devlin et al. 2019): encode question and passage, predict the start and end of the answer.

Shapes: B batch size, S sequence length, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.encoder_config import QAConfig
from weft.nn.dropout import IntegerDropout
from weft.text.tokenizers import Tokenizer


class QAHead(nn.Module):
    """Linear layer to the logits of the first and the last token of the answer. Position 0, <s>, means "no answer".

    The threshold is the margin by which an answer must beat "no answer". It is 0 until it is fitted on validation data, and is
    not trained.
    """

    threshold: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ends = nn.Linear(dim, 2)
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, y: Tensor, answer_mask: Tensor) -> Tensor:
        """Hidden states (B, S, D) and allowed positions (B, S) to start and end logits (B, S, 2); -inf elsewhere."""
        logits: Tensor = self.ends(y)
        return logits.float().masked_fill(~answer_mask[..., None], -torch.inf)

    def loss(self, logits: Tensor, spans: Tensor) -> Tensor:
        """Sum of the cross-entropies of start and end in nats, (B,); spans (B, 2)."""
        log_probs = logits.log_softmax(1).gather(1, spans[:, None])
        return -log_probs.sum((1, 2))


def answer_mask(text: EncoderInput) -> Tensor:
    """Positions that an answer may start or end at, bool (B, S): the tokens of the passage, and <s>."""
    first = torch.zeros_like(text.token_mask)
    first[:, 0] = True
    if text.segments is None:
        return first
    return first | (text.token_mask & (text.segments == 1) & (text.tokens != Tokenizer.eos_id))


class QANetwork(nn.Module):
    """P(first token, last token | question, passage)."""

    def __init__(self, encoder: TextEncoder, head: QAHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = encoder, head, IntegerDropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        """Start and end logits (B, S, 2); -inf where no answer can be."""
        y, _ = self.encoder(text)
        logits: Tensor = self.head(self.dropout(y), answer_mask(text))
        return logits


def qa_network(config: QAConfig, *, vocab_size: int, max_positions: int) -> QANetwork:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    encoder = text_encoder(config, vocab_size=vocab_size, max_positions=max_positions, segments=True)
    return QANetwork(encoder, QAHead(config.hidden_size), dropout=config.dropout)
