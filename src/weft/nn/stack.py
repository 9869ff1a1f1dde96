"""Layers and stacks of layers.

Shapes: B batch size, T sequence length, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.nn.dropout import IntegerDropout
from weft.nn.experts import expert_layers
from weft.nn.memory import Memory
from weft.nn.packing import is_packed, positions_in_texts
from weft.nn.positions import PositionEncoding
from weft.nn.skip_connections import Connection, Residual, norm_input


@runtime_checkable
class HasLayerIndex(Protocol):
    """A module that may belong to one of the `num_layers` layers of a stack."""

    layer_index: int | None


@runtime_checkable
class Recomputes(Protocol):
    """A layer whose backward pass can compute its activations again, instead of keeping them."""

    recomputes: bool


@runtime_checkable
class HasRegion(Protocol):
    """A module with a part that can be compiled alone, for training."""

    def compile_region(self, compiler: Callable[[Any], Any]) -> None:
        """Use `compiler(function)` in place of a function of this module."""


class Layer(nn.Module):
    """A mixer with norm, dropout and skip connection.

        y = connection(x, dropout(mixer(norm(x))))

    `layer_index` counts from 0 to `num_layers` - 1: attention and the feed-forward layer after it have the same index. None
    if this layer contains other layers, or is above all of them.
    """

    def __init__(
        self,
        mixer: nn.Module,
        connection: Connection,
        *,
        norm: nn.Module,
        dropout: nn.Module | None = None,
        layer_index: int | None = None,
    ) -> None:
        super().__init__()
        self.norm, self.mixer, self.connection, self.dropout = norm, mixer, connection, dropout or nn.Identity()
        self.layer_index = layer_index
        self.recomputes = False  # whether the backward pass computes the activations again, instead of keeping them
        self.compiled: Callable[[Layer, Tensor, Tensor | None], Tensor] | None = None  # `output`, for training without states

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        if not (self.training and torch.is_grad_enabled()):
            return self._forward(x, state, token_mask)
        if self.compiled is not None and state is None:
            return self.compiled(self, x, token_mask), None
        if not self.recomputes:
            return self._forward(x, state, token_mask)
        result: tuple[Tensor, Any] = checkpoint(self._forward, x, state, token_mask, use_reentrant=False)
        return result

    def output(self, x: Tensor, token_mask: Tensor | None) -> Tensor:
        """The output for whole texts, without the state after them: in compiled code, what nobody reads is not computed."""
        return self._forward(x, None, token_mask)[0]

    def _forward(self, x: Tensor, state: Any, token_mask: Tensor | None) -> tuple[Tensor, Any]:
        normed = self.norm(norm_input(self.connection.mixer_input(x), self.norm))
        y, state = self.mixer(normed, state, token_mask)
        if not self.training:
            return self.connection(x, y), state
        if self._adds_in_dropout():
            return self.dropout(y, skip=x), state
        return self.connection(x, self.dropout(y)), state

    def _adds_in_dropout(self) -> bool:
        """Whether dropout computes the sum of the skip connection as well: not if a hook waits for one of the two."""
        is_plain = type(self.connection) is Residual and type(self.dropout) is IntegerDropout
        if not is_plain or torch.compiler.is_compiling():
            return False
        return not (has_hooks(self.connection) or has_hooks(self.dropout))

    def init_state(self, memory: Memory) -> Any:
        """The state of the mixer before the first target token."""
        mixer: Any = self.mixer
        return mixer.init_state(memory)


def in_half_precision(x: Tensor) -> Tensor:
    """The input of the first layer under autocast to bfloat16, in bfloat16: then the sums of skip connections are as well, and
    compiled code, which joins casts with what is around them, moves half of the bytes. float16 could overflow."""
    kind = x.device.type
    is_half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.bfloat16
    return x.bfloat16() if is_half else x


def run_layers(layers: Sequence[Layer], x: Tensor, token_mask: Tensor | None) -> Tensor:
    """The output of the last of these layers for whole texts."""
    for layer in layers:
        x = layer.output(x, token_mask)
    return x


def has_hooks(layer: nn.Module) -> bool:
    """Whether something is done before or after a pass through the layer, such as gathering its weights (FSDP2)."""
    hooks = layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks
    return any(hooks)


def layer_indices(model: nn.Module) -> dict[str, int]:
    """The layer index of each named module that has one."""
    indices = {name: module.layer_index for name, module in model.named_modules() if isinstance(module, HasLayerIndex)}
    return {name: index for name, index in indices.items() if index is not None}


def by_layer_index(layers: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Neighboring layers with the same layer index together, all others alone."""

    def index_or_number(numbered: tuple[int, Any]) -> tuple[int | None, int | None]:
        number, layer = numbered
        return (layer.layer_index, None) if layer.layer_index is not None else (None, number)

    return [tuple(layer for _, layer in group) for _, group in groupby(enumerate(layers), index_or_number)]


class Stack(nn.Module):
    """Position encoding, layers, and a final norm.

    State: (num_read, one state per layer), where num_read (B, 1) counts the tokens read so far.
    """

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
        self.input_proj = input_proj or nn.Identity()  # applied to the sum of embeddings and positions
        self.routes_tokens = bool(expert_layers(self.layers))
        self.compiled: Callable[[Sequence[Layer], Tensor, Tensor | None], Tensor] | None = None  # `run_layers`, for training
        self.regions: list[tuple[Layer, ...]] = []  # the layers that are compiled together

    def padding_mask(self, target_mask: Tensor | None) -> Tensor | None:
        """The token mask (B, T) to train a causal stack with, from the mask of the targets: True up to the last target of each
        row. None without experts: no position sees the padding at the end, and attention is faster without a mask."""
        if target_mask is None or not self.routes_tokens:
            return None
        return target_mask.flip(1).cumsum(1).flip(1) > 0

    def forward(
        self, x: Tensor, state: tuple[Tensor | None, tuple[Any, ...]] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, tuple[Any, ...]]]:
        num_read, layer_states = (None, (None,) * len(self.layers)) if state is None else state
        if num_read is None:  # every text starts at position 0: one row of positions serves the whole batch
            num_read = x.new_zeros(1, 1, dtype=torch.long)
        positions = torch.arange(x.size(1), device=x.device)
        if token_mask is not None and is_packed(token_mask):
            positions = positions_in_texts(token_mask)
        x = self.input_proj(self.positions.add_to(x, num_read + positions))
        trains = self.training and torch.is_grad_enabled()
        if trains and (self.compiled is not None or torch.compiler.is_compiling()):
            x = in_half_precision(x)
        if self.compiled is not None and state is None and trains:
            new_states: list[Any] = [None] * len(self.layers)
            for region in self.regions:
                x = self.compiled(region, x, token_mask)
        else:
            new_states = []
            for layer, layer_state in zip(self.layers, layer_states, strict=True):
                x, layer_state = layer(x, layer_state, token_mask)
                new_states.append(layer_state)
        num_new = x.size(1) if token_mask is None else token_mask.sum(1, keepdim=True)
        return self.final_norm(norm_input(x, self.final_norm)), ((num_read + num_new).expand(x.size(0), 1), tuple(new_states))

    def compile_region(self, compiler: Callable[[Any], Any]) -> None:
        """Compile the layers for training in which nobody reads their states: attention with the feed-forward layer after it,
        or each alone if they have hooks, which stay outside. Functions are compiled, not layers: equal layers only once."""
        layers: Any = list(self.layers)
        if any(map(has_hooks, layers)):
            for layer in layers:
                layer.compiled = compiler(Layer.output)
        else:
            self.compiled, self.regions = compiler(run_layers), by_layer_index(layers)

    def init_state(self, memory: Memory) -> tuple[None, tuple[Any, ...]]:
        """The state of a decoder before the first target token."""
        layers: Any = self.layers
        return None, tuple(layer.init_state(memory) for layer in layers)
