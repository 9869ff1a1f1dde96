"""Layers, one above the other.

Shapes: B rows, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.nn.memory import Memory
from weft.nn.positions import PositionEncoding
from weft.nn.skip_connections import Connection


@runtime_checkable
class Numbered(Protocol):
    """A part that may belong to a layer of the run file."""

    number: int | None


class Layer(nn.Module):
    """A mixer with what stands before it (norm) and around it (connection). Its `number` is that of the layer of the run file
    that it is a part of: attention and the feed-forward part after it have one. None: it holds layers, or stands above them."""

    def __init__(
        self, mixer: nn.Module, connection: Connection, *, norm: nn.Module, dropout: float = 0.0, number: int | None = None
    ) -> None:
        super().__init__()
        self.norm, self.mixer, self.connection, self.number = norm, mixer, connection, number
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.mixer(self.norm(self.connection.mixer_input(x)), state, token_mask)
        return self.connection(x, self.dropout(y)), state

    def init_state(self, memory: Memory) -> Any:
        """What the mixer knows of a source before it reads."""
        known: Any = self.mixer
        return known.init_state(memory)


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """The number, from 0, of the layer that each named part of a model belongs to."""
    found = {name: part.number for name, part in model.named_modules() if isinstance(part, Numbered)}
    return {name: number for name, number in found.items() if number is not None}


class Stack(nn.Module):
    """Positions and an inlet at the bottom, layers, an outlet on top. Its state is (seen, one state a layer), seen (B, 1) a
    count."""

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        positions: PositionEncoding,
        final_norm: nn.Module,
        input_proj: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.positions, self.layers, self.final_norm = positions, nn.ModuleList(layers), final_norm
        self.input_proj = input_proj or nn.Identity()  # what embeddings and positions go through together

    def forward(
        self, x: Tensor, state: tuple[Tensor | None, tuple[Any, ...]] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, tuple[Any, ...]]]:
        seen, past = (None, (None,) * len(self.layers)) if state is None else state
        if seen is None:  # one row for all: where every text starts, positions are computed once
            seen = x.new_zeros(1, 1, dtype=torch.long)
        x = self.input_proj(self.positions.add_to(x, seen + torch.arange(x.size(1), device=x.device)))
        states = []
        for layer, inner in zip(self.layers, past, strict=True):
            x, inner = layer(x, inner, token_mask)
            states.append(inner)
        read = x.size(1) if token_mask is None else token_mask.sum(1, keepdim=True)
        return self.final_norm(x), ((seen + read).expand(x.size(0), 1), tuple(states))

    def init_state(self, memory: Memory) -> tuple[None, tuple[Any, ...]]:
        """The state of a decoder that has read nothing but a source."""
        layers: Any = self.layers
        return None, tuple(layer.init_state(memory) for layer in layers)
