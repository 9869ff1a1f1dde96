"""Attention from a decoder to an encoder's memory: many heads in a Transformer, one head around a recurrent network.

What a decoder is conditioned on is a state: `given(memory)` makes it once for each source, every step reads it. A search
reads with several rows from one source: they look as if they were more queries of one row, and keys are read once.

Shapes: B rows, A sources (as many, but in a search), T queries, S source positions, D width, M width of the memory, H heads,
E size of a head.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.nn.attention import ScaledDotProductAttention
from weft.nn.memory import Memory
from weft.nn.stack import Stack
from weft.nn.state import SharedState, tree_leaves, where

SourceKeysValues = SharedState  # keys (A, H, S, E), values (A, H, S, E or M), keep (A, S)
MAX_ELEMENTS = 1 << 22  # numbers that additive scores hold at once: 16 MB stay in a processor's cache


@runtime_checkable
class Looks(Protocol):
    """Attention to a memory."""

    to_source: bool  # whether its weights say where in the source it looks


class CrossAttention(nn.Module):
    """Multi-head attention to a memory (Vaswani et al. 2017); a mixer whose state is the memory's keys and values."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        memory_size: int | None = None,
        qk_norm: nn.Module | None = None,
        summary_only: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = head_dim or dim // num_heads
        self.num_heads, self.summary_only = num_heads, summary_only  # narrow: only the memory's summary is seen
        self.to_source = not summary_only
        self.qk_norm = qk_norm or nn.Identity()  # of queries and keys
        self.to_q = nn.Linear(dim, num_heads * size)
        self.to_kv = nn.Linear(memory_size or dim, 2 * num_heads * size)
        self.to_out = nn.Linear(num_heads * size, dim)
        self.attend = ScaledDotProductAttention(dropout)

    def init_state(self, memory: Memory) -> SourceKeysValues:
        seen = memory.summary_only() if self.summary_only else memory
        k, v = self.to_kv(seen.values).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return SharedState((self.qk_norm(k), v, seen.token_mask))

    def forward(self, x: Tensor, state: SourceKeysValues, token_mask: Tensor | None = None) -> tuple[Tensor, SourceKeysValues]:
        k, v, real = state.parts
        q = self.to_q(x).view(k.size(0), -1, self.num_heads, k.size(-1)).transpose(1, 2)
        y = self.attend(self.qk_norm(q), k, v, real[:, None, None, :], False)
        return self.to_out(y.transpose(1, 2).reshape(*x.shape[:2], -1)), state


class AdditiveAttention(nn.Module):
    """Weights from w . tanh(q + k) (Bahdanau et al. 2015), for queries and keys that were projected before."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        """(B, 1, T, S)."""
        # T times S vectors at once would leave the cache, and wait for memory
        size = max(1, MAX_ELEMENTS // k.numel())
        scores = [(part[..., None, :] + k[:, :, None]).tanh() @ self.weight.to(q.dtype) for part in torch.split(q, size, dim=2)]
        return torch.cat(scores, dim=2).masked_fill(~mask, float("-inf")).softmax(-1)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        return self.weights(q, k, v, mask, causal).to(v.dtype) @ v


class SourceAttention(nn.Module):
    """What one head finds in a memory (Luong et al. 2015, Bahdanau et al. 2015), by one of four scores of a query and a key:

    dot q.k; scaled-dot q.k / sqrt(D); multiplicative q.Wk; additive w.tanh(Uq + Wk), where w has `size` numbers, D unless
    given.
    """

    def __init__(self, dim: int, *, score: str, memory_size: int, size: int | None = None) -> None:
        super().__init__()
        self.to_source = True
        plain, deep = score in ("dot", "scaled-dot"), size or dim
        self.to_q = nn.Linear(dim, deep) if score == "additive" else nn.Identity()
        self.to_k = nn.Identity() if plain else nn.Linear(memory_size, deep, bias=False)
        self.attend: nn.Module = AdditiveAttention(deep)
        if score != "additive":
            self.attend = ScaledDotProductAttention(scale=dim**-0.5 if score == "scaled-dot" else 1.0)

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return SharedState((self.to_k(memory.values)[:, None], memory.values[:, None], memory.token_mask))

    def forward(self, x: Tensor, seen: SourceKeysValues) -> Tensor:
        """(B, T, D) -> (B, T, M)."""
        k, v, real = seen.parts
        q = self.to_q(x).reshape(k.size(0), 1, -1, k.size(-1))
        found: Tensor = self.attend(q, k, v, real[:, None, None, :], False)
        return found.view(*x.shape[:2], -1)


class AttentionalOutput(nn.Module):
    """tanh(W [a; s]): what the state s finds, beside it: attention after the step. A mixer, for the top of a stack."""

    def __init__(self, attention: SourceAttention, dim: int, *, memory_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.join, self.dropout = attention, nn.Linear(memory_size + dim, dim), nn.Dropout(dropout)

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return self.attention.init_state(memory)

    def forward(self, x: Tensor, state: SourceKeysValues, token_mask: Tensor | None = None) -> tuple[Tensor, SourceKeysValues]:
        return self.dropout(self.join(torch.cat([self.attention(x, state), x], dim=-1)).tanh()), state


class AttentionBeforeStep(nn.Module):
    """Attention before the step: what the state before finds stands beside the step's input (Bahdanau et al. 2015)."""

    def __init__(self, attention: SourceAttention) -> None:
        super().__init__()
        self.attention = attention

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return self.attention.init_state(memory)

    def initial_output(self, state: Any) -> Tensor:
        """What looks before the first step: where the uppermost recurrent layer starts."""
        return tree_leaves(next(part for part in reversed(state[1]) if tree_leaves(part)))[0][:, None]

    def step_input(self, x: Tensor, previous_output: Tensor, seen: SourceKeysValues) -> Tensor:
        return torch.cat([x, self.attention(previous_output.to(x.dtype), seen).to(x.dtype)], dim=-1)

    def step_output(self, y: Tensor, seen: SourceKeysValues) -> Tensor:
        return y


class InputFeeding(nn.Module):
    """Attention after the step; what was read out stands beside the next step's input (Luong et al. 2015, 3.3)."""

    def __init__(self, output: AttentionalOutput) -> None:
        super().__init__()
        self.output = output

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return self.output.init_state(memory)

    def initial_output(self, state: Any) -> Tensor:
        return torch.zeros_like(tree_leaves(next(part for part in reversed(state[1]) if tree_leaves(part)))[0][:, None])

    def step_input(self, x: Tensor, previous_output: Tensor, seen: SourceKeysValues) -> Tensor:
        return torch.cat([x, previous_output.to(x.dtype)], dim=-1)

    def step_output(self, y: Tensor, seen: SourceKeysValues) -> Tensor:
        out: Tensor = self.output(y, seen)[0]
        return out


class StepwiseDecoder(nn.Module):
    """Recurrent layers, run one position at a time, whose input depends on the output before. A mixer; its state is theirs,
    the memory's, and that output (B, 1, D). Their state must not grow: padding holds it still."""

    def __init__(self, inner: Stack, attention: AttentionBeforeStep | InputFeeding) -> None:
        super().__init__()
        self.inner, self.attention = inner, attention

    def init_state(self, memory: Memory) -> tuple[Any, SourceKeysValues, Tensor]:
        _, inner = self.inner.init_state(memory)
        # what padding may hold still has its shape from the start: nothing read is a count of 0
        state = (torch.zeros_like(memory.token_mask[:, :1], dtype=torch.long), inner)
        return state, self.attention.init_state(memory), self.attention.initial_output(state)

    def forward(
        self, x: Tensor, state: tuple[Any, SourceKeysValues, Tensor], token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, SourceKeysValues, Tensor]]:
        inner, seen, previous_output = state
        outputs = []
        for positions, entered in enumerate(torch.split(x, 1, dim=1)):
            y, new = self.inner(self.attention.step_input(entered, previous_output, seen), inner)
            y = self.attention.step_output(y, seen)
            if token_mask is not None:
                new, y = (
                    where(new, inner, token_mask[:, positions]),
                    where(y, previous_output.to(y.dtype), token_mask[:, positions]),
                )
            inner, previous_output = new, y
            outputs.append(y)
        return torch.cat(outputs, dim=1), (inner, seen, previous_output)
