"""Self-attention with a key-value cache, and the feed-forward layer that goes with it.

Shapes: B rows, T queries, C cached columns, D width, H heads, E size of a head.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.memory import Memory
from weft.nn.positions import PositionEncoding
from weft.nn.state import Grown


class ScaledDotProductAttention(nn.Module):
    """The fused kernel as a leaf without parameters, so that whoever explains can watch its inputs by name."""

    def __init__(self, dropout: float = 0.0, *, scale: float | None = None) -> None:
        super().__init__()
        self.dropout, self.scale = dropout, scale  # of the scores; None: 1 / sqrt(E)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        drop = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop, is_causal=causal, scale=self.scale)

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """What the kernel keeps to itself, from the same inputs: how much each query takes of each key, (B, H, T, C)."""
        scores = q @ k.transpose(-2, -1) * (q.size(-1) ** -0.5 if self.scale is None else self.scale)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        # a query that may see nothing takes nothing, as in the kernel; softmax alone makes it NaN
        return scores.softmax(-1).masked_fill(scores == float("-inf"), 0.0)


class SelfAttention(nn.Module):
    """Multi-head attention of a text to itself (Vaswani et al. 2017); each position sees itself and what was before it, or of
    that the last `window` positions, or, two-way, all of the text. Its state is the keys and values seen so far, and where
    they stand."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        positions: PositionEncoding | None = None,
        qk_norm: nn.Module | None = None,
        context_length: int | Literal["bidirectional"] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = head_dim or dim // num_heads
        self.num_heads, self.bidirectional, self.context_length = (
            num_heads,
            context_length == "bidirectional",
            context_length if isinstance(context_length, int) else None,
        )
        self.positions = positions or PositionEncoding()
        self.qk_norm = qk_norm or nn.Identity()  # of queries and keys
        self.to_qkv = nn.Linear(dim, 3 * num_heads * size)
        self.to_out = nn.Linear(num_heads * size, dim)
        self.attend = ScaledDotProductAttention(dropout)

    def forward(self, x: Tensor, state: Grown | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Grown]:
        if self.bidirectional and state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        qkv = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, H, E)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        positions = torch.arange(x.size(1), device=x.device)[None]
        if state is not None:
            positions = positions + state[2].amax(1, keepdim=True) + 1
        q, k = self.positions.rotate(self.qk_norm(q), positions), self.positions.rotate(self.qk_norm(k), positions)
        key_positions = positions.expand(x.size(0), -1) if token_mask is None else torch.where(token_mask, positions, -1)
        if state is not None:
            k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
            key_positions = torch.cat([state[2], key_positions], dim=1)
        # read whole and without padding, every row has the same triangle: the kernel needs no mask
        short = self.bidirectional or self.context_length is None or x.size(1) <= self.context_length
        whole = state is None and token_mask is None and short
        seen_at = positions if whole else key_positions
        bias = self.positions.attention_bias(q, positions, seen_at)
        mask = None if whole and (bias is None or self.bidirectional) else self._mask(positions, seen_at)
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        y = self.attend(q, k, v, mask, mask is None and not self.bidirectional)
        return self.to_out(y.transpose(1, 2).flatten(2)), self._recent(k, v, key_positions)

    def init_state(self, memory: Memory) -> None:
        """Nothing: a text is read without knowing a source."""

    def _mask(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Which keys each query may see, (B, 1, T or 1, C)."""
        if self.bidirectional:
            return (key_positions >= 0)[:, None, None, :]
        distance = positions[:, None, :, None] - key_positions[:, None, None, :]
        allowed = (distance >= 0) & (key_positions >= 0)[:, None, None, :]
        return allowed if self.context_length is None else allowed & (distance < self.context_length)

    def _recent(self, k: Tensor, v: Tensor, key_positions: Tensor) -> Grown:
        """Forgets what no later query can see. Rarely (at twice the window), because it copies; by position, because rows of
        different age have their padding in different columns."""
        if self.bidirectional or self.context_length is None or key_positions.size(1) < 2 * self.context_length:
            return Grown(k, v, key_positions)
        key_positions, columns = key_positions.topk(self.context_length, dim=1)
        key_positions, columns = key_positions.flip(1), columns.flip(1)  # oldest first
        index = columns[:, None, :, None].expand(-1, k.size(1), -1, k.size(3))
        return Grown(k.gather(2, index), v.gather(2, index), key_positions)


@runtime_checkable
class LostHeads(Protocol):
    """Attention without heads."""

    across: bool | None  # whether it looked at a source; None: at its own text


bidirectional_attention = partial(SelfAttention, context_length="bidirectional")


class PrunedAttention(nn.Module):
    """What is left of attention, to itself or to a memory, when all its heads are cut out: the bias of its outlet, the same at
    every position. A mixer that remembers nothing."""

    def __init__(self, dim: int, *, cross: bool | None = None) -> None:
        super().__init__()
        self.num_heads, self.cross = 0, cross
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, state: tuple[()] = (), token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        return self.bias.expand_as(x), ()

    def init_state(self, memory: Memory) -> tuple[()]:
        return ()


class SwiGLU(nn.Module):
    """silu(a) * b for the two halves of its input (SwiGLU: Shazeer 2020)."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


class SquaredReLU(nn.Module):
    """relu(x)^2 (So et al. 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class TanhGELU(nn.Module):
    """GELU by the formula with tanh, as GPT-2 computes it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": TanhGELU,
    "relu": nn.ReLU,
    "squared-relu": SquaredReLU,
    "swiglu": SwiGLU,
}


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, at each position alone; a mixer that remembers nothing."""

    def __init__(self, dim: int, *, ffn_dim: int, activation: str = "gelu") -> None:
        super().__init__()
        halves = 2 if activation == "swiglu" else 1  # a gate needs as many inputs again
        self.up_proj = nn.Linear(dim, halves * ffn_dim)
        self.activation = ACTIVATIONS[activation]()
        self.to_out = nn.Linear(ffn_dim, dim)

    def forward(self, x: Tensor, state: tuple[()] = (), token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        return self.to_out(self.activation(self.up_proj(x))), ()

    def init_state(self, memory: Memory) -> tuple[()]:
        return ()
