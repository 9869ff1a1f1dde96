"""Output layers of encoder-decoders: a token is generated from the vocabulary, or copied from the source.

Both know the source by a state that `given` makes once.
Shapes: B rows, A sources (as many, but in a search), T positions, S source positions, D width, V words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.heads import TokenHead
from weft.nn.memory import Memory
from weft.nn.state import Fixed

Pointed = Fixed  # keys (A, S, D), keep (A, S), the source's tokens (A, S)


class Generate(nn.Module):
    """Tokens of the vocabulary alone."""

    def __init__(self, head: TokenHead) -> None:
        super().__init__()
        self.head = head

    def given(self, memory: Memory, source: Tensor) -> tuple[()]:
        return ()

    def forward(self, x: Tensor, seen: tuple[()]) -> Tensor:
        """(B, D) -> log-probabilities (B, V)."""
        log_probs: Tensor = self.head(x)
        return log_probs

    def loss(self, x: Tensor, targets: Tensor, seen: tuple[()], smoothing: float = 0.0) -> Tensor:
        """Nats of each target, (B, T)."""
        return self.head.loss(x, targets, smoothing)


class GenerateOrCopy(nn.Module):
    """g P(word) + (1 - g) P(position), the gate g and the position both read off x (See et al. 2017). One vocabulary for both
    sides: a position stands for the token that is there."""

    def __init__(self, head: TokenHead, dim: int, *, inlet: int) -> None:
        super().__init__()
        self.head, self.to_k, self.gate = head, nn.Linear(inlet, dim, bias=False), nn.Linear(dim, 1)

    def given(self, memory: Memory, source: Tensor) -> Pointed:
        return Fixed((self.to_k(memory.values), memory.keep, source))

    def _pointed(self, x: Tensor, seen: Pointed) -> Tensor:
        """The share of each source position, (B, T, S)."""
        keys, keep, _ = seen.parts
        scores: Tensor = (x @ keys.transpose(1, 2)).float() * x.size(-1) ** -0.5
        return scores.masked_fill(~keep[:, None], float("-inf")).softmax(-1)

    def forward(self, x: Tensor, seen: Pointed) -> Tensor:
        gate = self.gate(x).float()
        share = self._pointed(x.view(len(seen.parts[0]), -1, x.size(-1)), seen)
        generated = self.head(x) + F.logsigmoid(gate)
        tokens = seen.parts[2].clamp(min=0)[:, None].expand_as(share)  # joined states are filled up with -1, which has no share
        copied = torch.zeros_like(generated).scatter_add(1, tokens.flatten(0, 1), share.flatten(0, 1))
        return torch.logaddexp(generated, copied.log() + F.logsigmoid(-gate))

    def loss(self, x: Tensor, targets: Tensor, seen: Pointed, smoothing: float = 0.0) -> Tensor:
        """Nats of each target, (B, T); smoothing spreads its share over what is generated."""
        gate = self.gate(x)[..., 0].float()
        share = self._pointed(x, seen)
        copied = (share * (seen.parts[2][:, None] == targets[..., None])).sum(-1)
        plain = self.head.loss(x, targets)
        # a share of 0 would have an infinite gradient
        nats = -torch.logaddexp(F.logsigmoid(gate) - plain, copied.clamp(min=1e-30).log() + F.logsigmoid(-gate))
        return nats + self.head.loss(x, targets, smoothing) - plain if smoothing else nats
