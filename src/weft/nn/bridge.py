"""Bridges: initialize a recurrent decoder from an encoder. Without attention, the decoder has no other access to the source.

Shapes: B batch size, T sequence length, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.nn.memory import Memory


class CopyBridge(nn.Module):
    """A recurrent mixer that starts from the final state of the encoder layer with the same index (Sutskever et al. 2014)."""

    def __init__(self, inner: nn.Module, *, layer_index: int) -> None:
        super().__init__()
        self.inner, self.layer_index = inner, layer_index

    def init_state(self, memory: Memory) -> Any:
        return memory.states[self.layer_index]

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.inner(x, state, token_mask)
        return y, state


class ProjectionBridge(nn.Module):
    """A recurrent mixer that starts from tanh(W summary + b) (Cho et al. 2014).

    Its state has `num_state_vectors` vectors: h, or h and c.
    """

    def __init__(self, inner: nn.Module, dim: int, *, memory_size: int, num_state_vectors: int) -> None:
        super().__init__()
        self.inner, self.num_state_vectors = inner, num_state_vectors
        self.start = nn.Linear(memory_size, num_state_vectors * dim)

    def init_state(self, memory: Memory) -> Any:
        vectors = self.start(memory.summary).tanh().chunk(self.num_state_vectors, dim=-1)
        return vectors[0] if self.num_state_vectors == 1 else vectors

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.inner(x, state, token_mask)
        return y, state


class ContextConcat(nn.Module):
    """Append the source summary to every input: [x_t; c] (Cho et al. 2014). A mixer without parameters."""

    def init_state(self, memory: Memory) -> Tensor:
        return memory.summary

    def forward(self, x: Tensor, state: Tensor, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return torch.cat([x, state[:, None].to(x.dtype).expand(-1, x.size(1), -1)], dim=-1), state
