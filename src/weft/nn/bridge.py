"""How a recurrent decoder starts from an encoder: over the bottleneck that attention goes around.

Shapes: B rows, T positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.nn.memory import Memory


class Copied(nn.Module):
    """A recurrent mixer that starts where the encoder's layer of the same height stopped (Sutskever et al. 2014)."""

    def __init__(self, inner: nn.Module, *, height: int) -> None:
        super().__init__()
        self.inner, self.height = inner, height

    def given(self, memory: Memory) -> Any:
        return memory.states[self.height]

    def forward(self, x: Tensor, state: Any = None, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.inner(x, state, keep)
        return y, state


class Projected(nn.Module):
    """A recurrent mixer that starts at tanh(W summary) (Cho et al. 2014); `parts` tensors make its state."""

    def __init__(self, inner: nn.Module, dim: int, *, inlet: int, parts: int) -> None:
        super().__init__()
        self.inner, self.parts = inner, parts
        self.start = nn.Linear(inlet, parts * dim)

    def given(self, memory: Memory) -> Any:
        parts = self.start(memory.summary).tanh().chunk(self.parts, dim=-1)
        return parts[0] if self.parts == 1 else parts

    def forward(self, x: Tensor, state: Any = None, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.inner(x, state, keep)
        return y, state


class Reminder(nn.Module):
    """The summary beside every input: the decoder of Cho et al. (2014) sees it at each step. A mixer without weights."""

    def given(self, memory: Memory) -> Tensor:
        return memory.summary

    def forward(self, x: Tensor, state: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return torch.cat([x, state[:, None].to(x.dtype).expand(-1, x.size(1), -1)], dim=-1), state
