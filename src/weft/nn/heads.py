"""What reads a stack out.

Shapes: B rows, T positions, D width, V words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenHead(nn.Module):
    """Next-token scores, log-probabilities and losses. `weight` may be the embedding's own (tied)."""

    def __init__(self, dim: int, words: int, *, cap: float | None = None, weight: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(words, dim).normal_(std=dim**-0.5)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(words))
        self.cap = cap  # scores stay within +-cap, smoothly (Gemma 2)

    def scores(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V), not normalised."""
        scores = F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)).float()
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> log-probabilities (..., V)."""
        return self.scores(x).log_softmax(-1)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Nats of each target, (B, T); x (B, T, D), targets (B, T)."""
        scores = self.scores(x)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
