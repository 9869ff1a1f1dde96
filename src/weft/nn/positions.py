"""Where a token stands.

Shapes: B rows (or 1, where all rows stand alike), T queries, C keys, H heads, E size of a head, D width.
Positions are tensors, per row: at (B, T) of what is read, key_at (B, C) of what was read, -1 where no token stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def angles(positions: Tensor, rates: Tensor) -> Tensor:
    """at (B, T) times rates (R,): (B, T, R) in float64, for a stream runs on and float32 can't tell far neighbours apart."""
    return positions[..., None] * rates.double()


class PositionEncoding(nn.Module):
    """The three places where a position can come in; each kind fills one of them. (One of the two base classes of the package:
    six kinds with two empty methods each would be longer.)"""

    max_positions: int | None = None  # how many positions there are

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        """Added once, at the bottom of the stack; x (B, T, D)."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries and keys, (B, H, T, E), turned by where they stand."""
        return x

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Added to the scores, (B, H, T, C); q (B, H, T, E)."""
        return None


class SinusoidalPositions(PositionEncoding):
    """Sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5)."""

    rates: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("rates", 10000.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = angles(positions, self.rates)
        wave = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # sin, cos, sin, cos, ...
        return x + wave[..., : self.dim].to(x.dtype)


class LearnedPositions(PositionEncoding):
    """One vector a position, up to `longest`."""

    def __init__(self, dim: int, *, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.table = nn.Embedding(max_positions, dim)
        nn.init.normal_(self.table.weight, std=0.02)  # at first the words are heard, not the places

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        if x.size(1) > self.table.num_embeddings:  # what can be seen without asking the device; Steps.longest guards the rest
            raise ValueError(f"positions: {x.size(1)} tokens do not fit a table of {self.table.num_embeddings}")
        entered: Tensor = x + self.table(positions)
        return entered


class RelativePositions(PositionEncoding):
    """A learned key vector for each distance, clipped at `reach` (Shaw et al. 2018, the key part: a^K)."""

    def __init__(self, head_dim: int, *, max_distance: int = 32) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.keys = nn.Embedding(2 * max_distance + 1, head_dim)
        nn.init.normal_(self.keys.weight, std=0.02)

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = (key_positions[:, None, :] - positions[:, :, None]).clamp(
            -self.max_distance, self.max_distance
        ) + self.max_distance  # (B, T, C)
        scores: Tensor = q @ self.keys.weight.T.to(q.dtype)  # (B, H, T, 2 reach + 1)
        index = distance[:, None].expand(q.size(0), q.size(1), -1, -1)
        bias: Tensor = scores.gather(-1, index) * q.size(-1) ** -0.5
        return bias


class AlibiBias(PositionEncoding):
    """A penalty that grows with distance, steeper in some heads (Press et al. 2022)."""

    slope: Tensor

    def __init__(self, num_heads: int, *, slopes: Sequence[float] | None = None) -> None:
        super().__init__()
        steep = 2.0 ** (-8.0 / num_heads * torch.arange(1, num_heads + 1)) if slopes is None else torch.tensor(slopes)
        self.register_buffer("slope", steep, persistent=False)

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = (positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
        return (-self.slope[:, None, None] * distance).to(q.dtype)


class RotaryEmbedding(PositionEncoding):
    """Pairs of coordinates turned by an angle that grows with the position (Su et al. 2021), so scores see distances only."""

    rates: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        half = head_dim // 2
        self.register_buffer("rates", 10000.0 ** (-torch.arange(half) / half), persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = angles(positions, self.rates)[:, None]  # (B, 1, T, E / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
