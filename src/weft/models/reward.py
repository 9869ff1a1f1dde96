"""Reward models: an encoder, pooling, and a linear layer to one number.

Shapes: B batch size, S sequence length, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.reward_config import RewardConfig
from weft.nn.dropout import IntegerDropout


class RewardHead(nn.Module):
    """A linear layer to one number. Rewards of equal texts do not depend on a bias, which would cancel in every pair."""

    def __init__(self, dim: int, *, length_feature: bool) -> None:
        super().__init__()
        self.scores = nn.Linear(dim, 1, bias=False)
        self.length = nn.Parameter(torch.zeros(1)) if length_feature else None

    def forward(self, x: Tensor, token_mask: Tensor) -> Tensor:
        """Pooled vectors (B, D) and token mask (B, S) to rewards (B,)."""
        rewards: Tensor = self.scores(x)[:, 0].float()
        return rewards if self.length is None else rewards + self.length * token_mask.sum(1).to(rewards.dtype).log()


class RewardModel(nn.Module):
    """A number for a text, or for a prompt and a response: higher is better."""

    def __init__(self, encoder: TextEncoder, pooling: nn.Module, head: RewardHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head, self.dropout = encoder, pooling, head, IntegerDropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        """Rewards (B,)."""
        y, token_mask = self.encoder(text)
        rewards: Tensor = self.head(self.dropout(self.pooling(y, token_mask)), token_mask)
        return rewards


def reward_model(config: RewardConfig, *, vocab_size: int, max_positions: int, segments: bool) -> RewardModel:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    encoder = text_encoder(config, vocab_size=vocab_size, max_positions=max_positions, segments=segments)
    head = RewardHead(config.hidden_size, length_feature=config.length_feature)
    return RewardModel(encoder, build.build_pooling(config.pooling, config), head, dropout=config.dropout)
