"""Position encodings.

Shapes: B batch size (1 if all rows have the same positions), T queries, C keys, H heads, E head size, D hidden size.
Positions are tensors, per row: positions (B, T) of the tokens that are read, key_positions (B, C) of the keys, -1 for columns
without a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.nn.choices import ROPE_THETA

MAX_TABLE = 1 << 14  # positions whose rotations are stored, in every layer
MIN_TABLE = 64  # positions in a table of sinusoids


def angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """positions (B, T) times frequencies (F,): (B, T, F). In float64, because neighboring positions of a long text have equal
    angles in float32."""
    return positions[..., None] * frequencies.double()


def cos_and_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of angles in float64. On a GPU, whole turns are removed in float64 and the rest is computed in float32:
    compiled code computes them again in every row and head, and in float64 that takes longer than attention."""
    if angle.is_cuda:
        angle = remove_turns(angle).float()
    return angle.cos(), angle.sin()


def remove_turns(angle: Tensor) -> Tensor:
    """The same angles between -pi and pi."""
    return angle - (angle / math.tau).round() * math.tau


@runtime_checkable
class HasPositions(Protocol):
    """Attention, or another module with a position encoding. Methods alone: since Python 3.12, isinstance does not see the
    submodules of a module."""

    def position_encoding(self) -> PositionEncoding: ...

    def share_positions(self, positions: PositionEncoding) -> None:
        """Use the position encoding of another layer."""


@runtime_checkable
class AddsPositions(Protocol):
    """A position encoding of any kind."""

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor: ...


class PositionEncoding(nn.Module):
    """The base class, which encodes nothing. A position can enter a model in three ways; each encoding overrides one method
    (and `stepper`, if that is `add_to`).

    (A base class, because the alternative is seven classes with two empty methods each.)
    """

    max_positions: int | None = None  # None: unlimited
    is_shared = False  # whether all layers of a stack use one instance

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add to the input of a stack; x (B, T, D)."""
        return x

    def stepper(self) -> Callable[[Tensor], Tensor] | None:
        """A function of positions (N,) that returns what `add_to` adds to an input, (N, D); None if it adds nothing. The
        positions of several steps are encoded at once; see `weft.nn.decode_step`."""
        if type(self).add_to is not PositionEncoding.add_to:
            raise NotImplementedError(f"{type(self).__name__} overrides add_to, but not stepper")
        return None

    def rotate(self, x: Tensor, positions: Tensor, bound: int | None = None) -> Tensor:
        """Rotate queries or keys, (..., B, H, T, E). All positions are below `bound`, if it is given."""
        return x

    @property
    def rotates(self) -> bool:
        """Whether `rotate` changes its input."""
        return type(self).rotate is not PositionEncoding.rotate

    def stored_rotations(self, bound: int | None) -> Tensor | None:
        """The factors of `rotation` for the positions below `bound` and others, (2, P, E), if they are stored."""
        return None

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """The factors of `rotate` for positions (B, T), both (B, T, E): x becomes cos * x + sin * (x with swapped halves)."""
        return None

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Bias that is added to the attention scores, (B, H, T, C); q (B, H, T, E)."""
        return None


class SinusoidalPositions(PositionEncoding):
    """Sines and cosines of geometrically decreasing frequency (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i/D)),  PE(p, 2i+1) = cos(p / 10000^(2i/D))
    """

    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = cos_and_sin(angles(positions, self.frequencies))
        encoding = torch.stack([sin, cos], dim=-1).flatten(-2)  # sin, cos, sin, cos, ...
        return x + encoding[..., : self.dim].to(x.dtype)

    def stepper(self) -> Callable[[Tensor], Tensor]:
        table: Tensor | None = None  # of the first positions: all rows of all steps read the same ones

        def encode(positions: Tensor) -> Tensor:
            nonlocal table
            num_positions = int(positions.max()) + 1
            if table is None or len(table) < num_positions:
                size = max(MIN_TABLE, 2 * num_positions)
                zeros = torch.zeros(1, size, self.dim, dtype=self.frequencies.dtype)
                table = self.add_to(zeros, torch.arange(size)[None])[0]
            return table.index_select(0, positions)

        return encode


class LearnedPositions(PositionEncoding):
    """A learned vector for each position up to `max_positions` (Gehring et al. 2017; BERT, GPT-2)."""

    def __init__(self, dim: int, *, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.table = nn.Embedding(max_positions, dim)
        nn.init.normal_(self.table.weight, std=0.02)  # small, so that token embeddings dominate at first

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        # only the length can be checked without a device sync; decoders check max_positions before the first step
        if x.size(1) > self.table.num_embeddings:
            raise ValueError(f"positions: {x.size(1)} tokens exceed the table of {self.table.num_embeddings} positions")
        y: Tensor = x + self.table(positions)
        return y

    def stepper(self) -> Callable[[Tensor], Tensor]:
        table = self.table.weight
        return lambda positions: table.index_select(0, positions)


class RelativePositions(PositionEncoding):
    """Relative position representations (Shaw et al. 2018, the key part): a learned vector for each distance.

    score(q_i, k_j) = q_i . (k_j + a_{clip(j - i, max_distance)}) / sqrt(E)
    """

    def __init__(self, head_dim: int, *, max_distance: int = 32) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.keys = nn.Embedding(2 * max_distance + 1, head_dim)
        nn.init.normal_(self.keys.weight, std=0.02)

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = key_positions[:, None, :] - positions[:, :, None]  # (B, T, C)
        clipped = distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
        scores: Tensor = q @ self.keys.weight.T.to(q.dtype)  # (B, H, T, 2 * max_distance + 1)
        index = clipped[:, None].expand(q.size(0), q.size(1), -1, -1)
        bias: Tensor = scores.gather(-1, index) * q.size(-1) ** -0.5
        return bias


class RelativeBias(PositionEncoding):
    """A learned bias of each head for each bucket of distances (Raffel et al. 2020, T5). The layers of a stack share one.

    Half of the buckets are single distances; the others grow logarithmically up to `max_distance`, and the last one is for all
    larger distances. With `bidirectional`, keys to the left and to the right have half of the buckets each.
    """

    is_shared = True

    def __init__(self, num_heads: int, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        self.bidirectional, self.max_distance = bidirectional, max_distance
        self.table = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance from a query to a key, which is negative for keys to the left."""
        num_buckets = self.table.num_embeddings // (2 if self.bidirectional else 1)
        length = distance.abs() if self.bidirectional else (-distance).clamp_min(0)
        num_exact = num_buckets // 2
        ratio = torch.log(length.clamp_min(1).float() / num_exact) / math.log(self.max_distance / num_exact)
        logarithmic = (num_exact + (ratio * (num_buckets - num_exact)).long()).clamp_max(num_buckets - 1)
        bucket = torch.where(length < num_exact, length, logarithmic)
        return bucket + num_buckets * (distance > 0) if self.bidirectional else bucket

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = key_positions[:, None, :] - positions[:, :, None]  # (B, T, C)
        bias: Tensor = self.table(self.bucket(distance)).permute(0, 3, 1, 2)
        return bias.to(q.dtype)


class AlibiBias(PositionEncoding):
    """Attention with linear biases (Press et al. 2022): -slope_h * |i - j|, with a slope per head."""

    slope: Tensor

    def __init__(self, num_heads: int, *, slopes: Sequence[float] | None = None) -> None:
        super().__init__()
        slope = 2.0 ** (-8.0 / num_heads * torch.arange(1, num_heads + 1)) if slopes is None else torch.tensor(slopes)
        self.register_buffer("slope", slope, persistent=False)

    def attention_bias(self, q: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        distance = (positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
        return (-self.slope[:, None, None] * distance).to(q.dtype)


class RotaryEmbedding(PositionEncoding):
    """Rotary position embedding (RoPE; Su et al. 2021): coordinates i and i + E/2 of queries and keys are rotated by the angle
    p / theta^(2i/E), so that their dot products depend on distances only.

    The factors of the first `num_stored` positions, (2, num_stored, E), are stored: compiled code would compute them again in
    every row and head.
    """

    frequencies: Tensor
    table: Tensor

    def __init__(self, head_dim: int, *, theta: float = ROPE_THETA, num_stored: int = 0) -> None:
        super().__init__()
        half = head_dim // 2
        # on a CPU, also for the meta device, where torch imports its compiler for arithmetic
        frequencies = theta ** (-torch.arange(half, device="cpu") / half)
        angle = angles(torch.arange(min(num_stored, MAX_TABLE), device="cpu"), frequencies)
        table, device = torch.stack(_factors(angle.cos(), angle.sin())).float(), torch.get_default_device()
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)
        self.register_buffer("table", table.to(device), persistent=False)

    def stored_rotations(self, bound: int | None) -> Tensor | None:
        return self.table if bound is not None and bound <= self.table.size(1) else None

    def rotate(self, x: Tensor, positions: Tensor, bound: int | None = None) -> Tensor:
        table = self.stored_rotations(bound)
        if table is not None and x.dtype != torch.float64:
            cos, sin = table[:, positions]  # (B, T, E)
        else:
            cos, sin = _factors(*cos_and_sin(angles(positions, self.frequencies)))
        cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        swapped: Tensor = (
            torch.unflatten(x, -1, (2, -1)).flip(-2).flatten(-2)
        )  # one load in compiled code; concatenated halves are two
        rotated: Tensor = x * cos + swapped * sin
        return rotated

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        angle = angles(positions, self.frequencies)
        return _factors(angle.cos(), angle.sin())


def _factors(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of x and of x with swapped halves, (..., E), from cosines and sines (..., E / 2)."""
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
