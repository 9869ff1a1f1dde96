"""Output layers of encoder-decoders: a token is generated from the vocabulary, or copied from the source.

Both know the source by a state that `given` makes once.
Shapes: B rows, A sources (as many, but in a search), T positions, S source positions, D width, V words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.lm_head import LMHead
from weft.nn.memory import Memory
from weft.nn.state import SharedState

CopyState = SharedState  # keys (A, S, D), keep (A, S), the source's tokens (A, S)


def _mix(generated: Tensor, copied: Tensor, gate: Tensor) -> Tensor:
    """log(g P + (1 - g) C) of the head's log P, the share C of a word's places and the gate before its sigmoid."""
    # a share of 0 would have an infinite gradient
    return torch.logaddexp(F.logsigmoid(gate) + generated, copied.clamp(min=1e-30).log() + F.logsigmoid(-gate))


class VocabularyOutput(nn.Module):
    """Tokens of the vocabulary alone."""

    def __init__(self, head: LMHead) -> None:
        super().__init__()
        self.head = head

    def init_state(self, memory: Memory, source: Tensor) -> tuple[()]:
        return ()

    def forward(self, x: Tensor, seen: tuple[()]) -> Tensor:
        """(B, D) -> log-probabilities (B, V)."""
        log_probs: Tensor = self.head(x)
        return log_probs

    def loss(self, x: Tensor, targets: Tensor, seen: tuple[()], smoothing: float = 0.0) -> Tensor:
        """Nats of each target, (B, T)."""
        return self.head.loss(x, targets, smoothing)


class PointerGeneratorOutput(nn.Module):
    """g P(word) + (1 - g) P(position), the gate g and the position both read off x (See et al. 2017). One vocabulary for both
    sides: a position stands for the token that is there."""

    def __init__(self, head: LMHead, dim: int, *, memory_size: int) -> None:
        super().__init__()
        self.head, self.to_k, self.gate = head, nn.Linear(memory_size, dim, bias=False), nn.Linear(dim, 1)

    def init_state(self, memory: Memory, source: Tensor) -> CopyState:
        return SharedState((self.to_k(memory.values), memory.token_mask, source))

    def _copy_distribution(self, x: Tensor, seen: CopyState) -> Tensor:
        """The share of each source position, (B, T, S)."""
        keys, token_mask, _ = seen.parts
        scores: Tensor = (x @ keys.transpose(1, 2)).float() * x.size(-1) ** -0.5
        return scores.masked_fill(~token_mask[:, None], float("-inf")).softmax(-1)

    def forward(self, x: Tensor, seen: CopyState) -> Tensor:
        gate = self.gate(x).float()
        fraction = self._copy_distribution(x.view(len(seen.parts[0]), -1, x.size(-1)), seen)
        generated = self.head(x) + F.logsigmoid(gate)
        tokens = (
            seen.parts[2].clamp(min=0)[:, None].expand_as(fraction)
        )  # joined states are filled up with -1, which has no share
        copied = torch.zeros_like(generated).scatter_add(1, tokens.flatten(0, 1), fraction.flatten(0, 1))
        return torch.logaddexp(generated, copied.log() + F.logsigmoid(-gate))

    def loss(self, x: Tensor, targets: Tensor, seen: CopyState, smoothing: float = 0.0) -> Tensor:
        """Nats of each target, (B, T). With smoothing, the target has the share 1 - smoothing and all words share the rest, as
        in a head alone; the nats of every word are those of the mixture, so the loss is a cross-entropy and bounded below."""
        gate = self.gate(x)[..., 0].float()
        fraction = self._copy_distribution(x, seen)
        copied = (fraction * (seen.parts[2][:, None] == targets[..., None])).sum(-1)
        if not smoothing:
            return -_mix(-self.head.loss(x, targets), copied, gate)
        generated = self.head(x)
        right = _mix(generated.gather(2, targets[..., None])[..., 0], copied, gate)
        return -(1 - smoothing) * right - smoothing * self._mean(generated, fraction, gate, seen)

    def _mean(self, generated: Tensor, fraction: Tensor, gate: Tensor, seen: CopyState) -> Tensor:
        """The mean log-probability over all words, (B, T), from those of the head (B, T, V). Only a word of the source differs
        from what is generated: each is corrected once, at its first position, and no second (B, T, V) is made."""
        _, token_mask, tokens = seen.parts
        same = (tokens[:, :, None] == tokens[:, None]) & token_mask[:, None]  # (B, S, S): the places of each place's word
        first = token_mask & ~same.tril(-1).any(-1)
        theirs = generated.gather(2, tokens.clamp(min=0)[:, None].expand_as(fraction))
        copied = fraction @ same.transpose(1, 2).to(fraction.dtype)
        alone = F.logsigmoid(gate)
        more = (_mix(theirs, copied, gate[..., None]) - theirs - alone[..., None]) * first[:, None]
        return alone + (generated.sum(-1) + more.sum(-1)) / generated.size(-1)
