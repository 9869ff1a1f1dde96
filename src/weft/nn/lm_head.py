"""What reads a stack out.

Shapes: B rows, T positions, D width, V words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_ELEMENTS = 1 << 25  # scores held at once where no gradient needs them: 128 MB


class LMHead(nn.Module):
    """Next-token scores, log-probabilities and losses. `weight` may be the embedding's own (tied)."""

    def __init__(self, dim: int, vocab_size: int, *, logit_softcap: float | None = None, weight: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim).normal_(std=dim**-0.5)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.logit_softcap = logit_softcap  # scores stay within +-cap, smoothly (Gemma 2)

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V), not normalised."""
        scores = F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)).float()
        return scores if self.logit_softcap is None else self.logit_softcap * torch.tanh(scores / self.logit_softcap)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> log-probabilities (..., V)."""
        scores = self.logits(x)
        if torch.is_grad_enabled() or scores.device.type != "cpu":
            return scores.log_softmax(-1)
        # over the scores, which nobody else has: fresh memory of that size takes a processor longer than the sum
        return torch.log_softmax(scores, -1, out=scores)

    def loss(self, x: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Nats of each target, (B, T); x (B, T, D), targets (B, T). With smoothing, the target has the share 1 - smoothing
        and all words share the rest (Szegedy et al. 2016)."""
        rows, wanted = x.flatten(0, 1), targets.flatten()
        if torch.is_grad_enabled():
            # the kernel smooths by a sum over the words: no distribution of targets is ever made
            nats = F.cross_entropy(self.logits(rows), wanted, reduction="none", label_smoothing=smoothing)
            return nats.view_as(targets)
        # scoring a whole text reads more positions at once than training does, and a vocabulary is wide
        size = max(1, MAX_ELEMENTS // len(self.weight))
        parts = zip(torch.split(rows, size), torch.split(wanted, size), strict=True)
        found = [F.cross_entropy(self.logits(row), word, reduction="none", label_smoothing=smoothing) for row, word in parts]
        return torch.cat(found).view_as(targets)
