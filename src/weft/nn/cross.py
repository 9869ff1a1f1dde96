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

from weft.nn.attention import Attend
from weft.nn.memory import Memory
from weft.nn.stack import Stack
from weft.nn.state import Fixed, hold, leaves

Seen = Fixed  # keys (A, H, S, E), values (A, H, S, E or M), keep (A, S)
MOST = 1 << 22  # numbers that additive scores hold at once: 16 MB stay in a processor's cache


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
        heads: int,
        head_size: int | None = None,
        inlet: int | None = None,
        inner_norm: nn.Module | None = None,
        narrow: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = head_size or dim // heads
        self.heads, self.narrow = heads, narrow  # narrow: only the memory's summary is seen
        self.to_source = not narrow
        self.inner_norm = inner_norm or nn.Identity()  # of queries and keys
        self.to_q = nn.Linear(dim, heads * size)
        self.to_kv = nn.Linear(inlet or dim, 2 * heads * size)
        self.to_out = nn.Linear(heads * size, dim)
        self.attend = Attend(dropout)

    def given(self, memory: Memory) -> Seen:
        seen = memory.narrowed() if self.narrow else memory
        k, v = self.to_kv(seen.values).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return Fixed((self.inner_norm(k), v, seen.keep))

    def forward(self, x: Tensor, state: Seen, keep: Tensor | None = None) -> tuple[Tensor, Seen]:
        k, v, real = state.parts
        q = self.to_q(x).view(k.size(0), -1, self.heads, k.size(-1)).transpose(1, 2)
        y = self.attend(self.inner_norm(q), k, v, real[:, None, None, :], False)
        return self.to_out(y.transpose(1, 2).reshape(*x.shape[:2], -1)), state


class AdditiveAttend(nn.Module):
    """Weights from w . tanh(q + k) (Bahdanau et al. 2015), for queries and keys that were projected before."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        """(B, 1, T, S)."""
        # T times S vectors at once would leave the cache, and wait for memory
        size = max(1, MOST // k.numel())
        scores = [(part[..., None, :] + k[:, :, None]).tanh() @ self.weight.to(q.dtype) for part in torch.split(q, size, dim=2)]
        return torch.cat(scores, dim=2).masked_fill(~mask, float("-inf")).softmax(-1)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        return self.weights(q, k, v, mask, causal).to(v.dtype) @ v


class Look(nn.Module):
    """What one head finds in a memory (Luong et al. 2015, Bahdanau et al. 2015), by one of four scores of a query and a key:

    dot q.k; scaled-dot q.k / sqrt(D); multiplicative q.Wk; additive w.tanh(Uq + Wk), where w has `size` numbers, D unless
    given.
    """

    def __init__(self, dim: int, *, score: str, inlet: int, size: int | None = None) -> None:
        super().__init__()
        self.to_source = True
        plain, deep = score in ("dot", "scaled-dot"), size or dim
        self.to_q = nn.Linear(dim, deep) if score == "additive" else nn.Identity()
        self.to_k = nn.Identity() if plain else nn.Linear(inlet, deep, bias=False)
        self.attend: nn.Module = AdditiveAttend(deep)
        if score != "additive":
            self.attend = Attend(scale=dim**-0.5 if score == "scaled-dot" else 1.0)

    def given(self, memory: Memory) -> Seen:
        return Fixed((self.to_k(memory.values)[:, None], memory.values[:, None], memory.keep))

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        """(B, T, D) -> (B, T, M)."""
        k, v, real = seen.parts
        q = self.to_q(x).reshape(k.size(0), 1, -1, k.size(-1))
        found: Tensor = self.attend(q, k, v, real[:, None, None, :], False)
        return found.view(*x.shape[:2], -1)


class ReadOut(nn.Module):
    """tanh(W [a; s]): what the state s finds, beside it: attention after the step. A mixer, for the top of a stack."""

    def __init__(self, look: Look, dim: int, *, inlet: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.look, self.join, self.dropout = look, nn.Linear(inlet + dim, dim), nn.Dropout(dropout)

    def given(self, memory: Memory) -> Seen:
        return self.look.given(memory)

    def forward(self, x: Tensor, state: Seen, keep: Tensor | None = None) -> tuple[Tensor, Seen]:
        return self.dropout(self.join(torch.cat([self.look(x, state), x], dim=-1)).tanh()), state


class Before(nn.Module):
    """Attention before the step: what the state before finds stands beside the step's input (Bahdanau et al. 2015)."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    def given(self, memory: Memory) -> Seen:
        return self.look.given(memory)

    def first(self, state: Any) -> Tensor:
        """What looks before the first step: where the uppermost recurrent layer starts."""
        return leaves(next(part for part in reversed(state[1]) if leaves(part)))[0][:, None]

    def enter(self, x: Tensor, fed: Tensor, seen: Seen) -> Tensor:
        return torch.cat([x, self.look(fed.to(x.dtype), seen).to(x.dtype)], dim=-1)

    def leave(self, y: Tensor, seen: Seen) -> Tensor:
        return y


class InputFeeding(nn.Module):
    """Attention after the step; what was read out stands beside the next step's input (Luong et al. 2015, 3.3)."""

    def __init__(self, read_out: ReadOut) -> None:
        super().__init__()
        self.read_out = read_out

    def given(self, memory: Memory) -> Seen:
        return self.read_out.given(memory)

    def first(self, state: Any) -> Tensor:
        return torch.zeros_like(leaves(next(part for part in reversed(state[1]) if leaves(part)))[0][:, None])

    def enter(self, x: Tensor, fed: Tensor, seen: Seen) -> Tensor:
        return torch.cat([x, fed.to(x.dtype)], dim=-1)

    def leave(self, y: Tensor, seen: Seen) -> Tensor:
        out: Tensor = self.read_out(y, seen)[0]
        return out


class Feed(nn.Module):
    """Recurrent layers, run one position at a time, whose input depends on the output before. A mixer; its state is theirs,
    the memory's, and that output (B, 1, D). Their state must not grow: padding holds it still."""

    def __init__(self, inner: Stack, reader: Before | InputFeeding) -> None:
        super().__init__()
        self.inner, self.reader = inner, reader

    def given(self, memory: Memory) -> tuple[Any, Seen, Tensor]:
        _, inner = self.inner.given(memory)
        # what padding may hold still has its shape from the start: nothing read is a count of 0
        state = (torch.zeros_like(memory.keep[:, :1], dtype=torch.long), inner)
        return state, self.reader.given(memory), self.reader.first(state)

    def forward(
        self, x: Tensor, state: tuple[Any, Seen, Tensor], keep: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, Seen, Tensor]]:
        inner, seen, fed = state
        outputs = []
        for at, entered in enumerate(torch.split(x, 1, dim=1)):
            y, new = self.inner(self.reader.enter(entered, fed, seen), inner)
            y = self.reader.leave(y, seen)
            if keep is not None:
                new, y = hold(new, inner, keep[:, at]), hold(y, fed.to(y.dtype), keep[:, at])
            inner, fed = new, y
            outputs.append(y)
        return torch.cat(outputs, dim=1), (inner, seen, fed)
