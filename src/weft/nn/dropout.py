"""Dropout for recurrent language models, and the penalties on their activations (Merity et al. 2018, "AWD-LSTM").

Shapes: B batch size, T sequence length, D hidden size, V vocabulary size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VariationalDropout(nn.Module):
    """Dropout with one mask for all positions of a row (Gal and Ghahramani 2016)."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.prob == 0.0:
            return x
        return x * F.dropout(torch.ones_like(x[:, :1]), self.prob)


class WordTypeDropout(nn.Module):
    """Set the embeddings of random words to zero wherever they occur in the batch (Gal and Ghahramani 2016)."""

    def __init__(self, vocab_size: int, prob: float) -> None:
        super().__init__()
        self.vocab_size, self.prob = vocab_size, prob

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The embeddings x (B, T, D) of the tokens (B, T)."""
        if not self.training or self.prob == 0.0:
            return x
        mask = F.dropout(x.new_ones(self.vocab_size), self.prob)
        return x * mask[tokens][..., None]


class ActivationPenalty(nn.Module):
    """Activation regularization and temporal activation regularization (Merity et al. 2017) at each position, (B, T).

        activation / D * |m * h_t|^2 + temporal / D * |h_t - h_{t-1}|^2

    h is the output of the top layer, m * h the same after dropout. The first position of a row has no temporal term.
    """

    def __init__(self, *, activation: float = 0.0, temporal: float = 0.0) -> None:
        super().__init__()
        self.activation, self.temporal = activation, temporal

    def forward(self, h: Tensor, dropped: Tensor) -> Tensor:
        penalty = self.activation * dropped.float().square().mean(-1)
        if self.temporal:
            change = h.float().diff(dim=1).square().mean(-1)
            penalty = penalty + self.temporal * F.pad(change, (1, 0))
        return penalty
