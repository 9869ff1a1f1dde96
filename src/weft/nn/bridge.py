"""How a recurrent decoder starts from an encoder: over the bottleneck that attention goes around.

Shapes: B rows, T positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.nn.memory import Memory


class CopyBridge(nn.Module):
    """A recurrent mixer that starts where the encoder's layer of the same height stopped (Sutskever et al. 2014)."""

    def __init__(self, inner: nn.Module, *, layer_index: int) -> None:
        super().__init__()
        self.inner, self.layer_index = inner, layer_index

    def init_state(self, memory: Memory) -> Any:
        return memory.states[self.layer_index]

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.inner(x, state, token_mask)
        return y, state


class ProjectionBridge(nn.Module):
    """A recurrent mixer that starts at tanh(W summary) (Cho et al. 2014); `parts` tensors make its state."""

    def __init__(self, inner: nn.Module, dim: int, *, memory_size: int, parts: int) -> None:
        super().__init__()
        self.inner, self.parts = inner, parts
        self.start = nn.Linear(memory_size, parts * dim)

    def init_state(self, memory: Memory) -> Any:
        parts = self.start(memory.summary).tanh().chunk(self.parts, dim=-1)
        return parts[0] if self.parts == 1 else parts

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.inner(x, state, token_mask)
        return y, state


class ContextConcat(nn.Module):
    """The summary beside every input: the decoder of Cho et al. (2014) sees it at each step. A mixer without weights."""

    def init_state(self, memory: Memory) -> Tensor:
        return memory.summary

    def forward(self, x: Tensor, state: Tensor, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return torch.cat([x, state[:, None].to(x.dtype).expand(-1, x.size(1), -1)], dim=-1), state
