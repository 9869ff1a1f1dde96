"""Where a token stands.

Shapes: B rows (or 1, where all rows stand alike), T queries, C keys, H heads, E size of a head, D width.
Positions are tensors, per row: at (B, T) of what is read, key_at (B, C) of what was read, -1 where no token stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def angles(at: Tensor, rates: Tensor) -> Tensor:
    """at (B, T) times rates (R,): (B, T, R) in float64, for a stream runs on and float32 can't tell far neighbours apart."""
    return at[..., None] * rates.double()


class NoPositions(nn.Module):
    """The three places where a position can come in; each kind fills one of them. (One of the two base classes of the package:
    six kinds with two empty methods each would be longer.)"""

    longest: int | None = None  # how many positions there are

    def enter(self, x: Tensor, at: Tensor) -> Tensor:
        """Added once, at the bottom of the stack; x (B, T, D)."""
        return x

    def turn(self, x: Tensor, at: Tensor) -> Tensor:
        """Queries and keys, (B, H, T, E), turned by where they stand."""
        return x

    def bias(self, q: Tensor, at: Tensor, key_at: Tensor) -> Tensor | None:
        """Added to the scores, (B, H, T, C); q (B, H, T, E)."""
        return None


class Sinusoidal(NoPositions):
    """Sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5)."""

    rates: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("rates", 10000.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def enter(self, x: Tensor, at: Tensor) -> Tensor:
        angle = angles(at, self.rates)
        wave = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # sin, cos, sin, cos, ...
        return x + wave[..., : self.dim].to(x.dtype)


class Learned(NoPositions):
    """One vector a position, up to `longest`."""

    def __init__(self, dim: int, *, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.table = nn.Embedding(longest, dim)
        nn.init.normal_(self.table.weight, std=0.02)  # at first the words are heard, not the places

    def enter(self, x: Tensor, at: Tensor) -> Tensor:
        if x.size(1) > self.table.num_embeddings:  # what can be seen without asking the device; Steps.longest guards the rest
            raise ValueError(f"positions: {x.size(1)} tokens do not fit a table of {self.table.num_embeddings}")
        entered: Tensor = x + self.table(at)
        return entered


class Relative(NoPositions):
    """A learned key vector for each distance, clipped at `reach` (Shaw et al. 2018, the key part: a^K)."""

    def __init__(self, head_size: int, *, reach: int = 32) -> None:
        super().__init__()
        self.reach = reach
        self.keys = nn.Embedding(2 * reach + 1, head_size)
        nn.init.normal_(self.keys.weight, std=0.02)

    def bias(self, q: Tensor, at: Tensor, key_at: Tensor) -> Tensor | None:
        distance = (key_at[:, None, :] - at[:, :, None]).clamp(-self.reach, self.reach) + self.reach  # (B, T, C)
        scores: Tensor = q @ self.keys.weight.T.to(q.dtype)  # (B, H, T, 2 reach + 1)
        index = distance[:, None].expand(q.size(0), q.size(1), -1, -1)
        bias: Tensor = scores.gather(-1, index) * q.size(-1) ** -0.5
        return bias


class Alibi(NoPositions):
    """A penalty that grows with distance, steeper in some heads (Press et al. 2022)."""

    slope: Tensor

    def __init__(self, heads: int, *, slopes: Sequence[float] | None = None) -> None:
        super().__init__()
        steep = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1)) if slopes is None else torch.tensor(slopes)
        self.register_buffer("slope", steep, persistent=False)

    def bias(self, q: Tensor, at: Tensor, key_at: Tensor) -> Tensor | None:
        distance = (at[:, None, :, None] - key_at[:, None, None, :]).abs()
        return (-self.slope[:, None, None] * distance).to(q.dtype)


class Rotary(NoPositions):
    """Pairs of coordinates turned by an angle that grows with the position (Su et al. 2021), so scores see distances only."""

    rates: Tensor

    def __init__(self, head_size: int) -> None:
        super().__init__()
        half = head_size // 2
        self.register_buffer("rates", 10000.0 ** (-torch.arange(half) / half), persistent=False)

    def turn(self, x: Tensor, at: Tensor) -> Tensor:
        angle = angles(at, self.rates)[:, None]  # (B, 1, T, E / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
