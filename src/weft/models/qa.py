"""Readers: an encoder of a question and a passage, and where in the passage the answer starts and ends (Devlin et al. 2019).

Shapes: B rows, S positions, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.encoder_config import QAConfig
from weft.text.tokenizers import Tokenizer


class QAHead(nn.Module):
    """Scores of first and last tokens; position 0, <s>, is no answer. Its threshold is how much better than none an answer must
    be to be said: 0 until validation data says better. It is no weight: training does not see it."""

    threshold: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ends = nn.Linear(dim, 2)
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, y: Tensor, answer_mask: Tensor) -> Tensor:
        """(B, S, D) and where an answer may be (B, S) -> (B, S, 2): of the first token, of the last; elsewhere -inf."""
        scores: Tensor = self.ends(y)
        return scores.float().masked_fill(~answer_mask[..., None], -torch.inf)

    def loss(self, scores: Tensor, spans: Tensor) -> Tensor:
        """Nats of each row's first and last token together, (B,); spans (B, 2)."""
        found = scores.log_softmax(1).gather(1, spans[:, None])
        return -found.sum((1, 2))


def answer_mask(text: EncoderInput) -> Tensor:
    """bool (B, S): the tokens of the passage, and <s>."""
    first = torch.zeros_like(text.token_mask)
    first[:, 0] = True
    if text.segments is None:
        return first
    return first | (text.token_mask & (text.segments == 1) & (text.tokens != Tokenizer.eos_id))


class QANetwork(nn.Module):
    """P(first token, last token | question, passage)."""

    def __init__(self, encoder: TextEncoder, head: QAHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = encoder, head, nn.Dropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        """(B, S) -> scores (B, S, 2), not normalised; -inf where no answer can be."""
        y, _ = self.encoder(text)
        scores: Tensor = self.head(self.dropout(y), answer_mask(text))
        return scores


def qa_network(config: QAConfig, *, vocab_size: int, max_positions: int) -> QANetwork:
    """The model of a filled table, freshly initialised from torch's default generator."""
    encoder = text_encoder(config, vocab_size=vocab_size, max_positions=max_positions, segments=True)
    return QANetwork(encoder, QAHead(config.hidden_size), dropout=config.dropout)
