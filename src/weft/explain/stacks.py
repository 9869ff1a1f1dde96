"""The stacks of a model, and the names and labels of their layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from weft.explain.hooks import Activation
from weft.models.config import StackConfig
from weft.models.parts import part_names
from weft.nn.attention import WithoutHeads
from weft.nn.bidirectional import Bidirectional
from weft.nn.bridge import CopyBridge, ProjectionBridge
from weft.nn.state import tree_leaves

LAYER_NAME = re.compile(r"(?:^|\.)layers\.\d+$")
# mixers that wrap another one, and the attribute that has it
WRAPPED_MIXERS: dict[type[nn.Module], str] = {CopyBridge: "inner", ProjectionBridge: "inner", Bidirectional: "forward_mixer"}
UPPER_SUBLAYERS = ("cross-attention", "feed-forward", "experts")  # sublayers of the layer below, not layers of their own


class Stack(NamedTuple):
    """A stack of layers and its options."""

    part: str  # encoder or decoder
    name: str  # of the module
    side: str  # the sequence that it reads: text, source or output
    config: StackConfig
    keys: tuple[str, ...] = ()  # path of its table within [model]
    backwards: bool = False  # reads the sequence from its end
    has_cross_attention: bool = False

    @property
    def attention(self) -> list[str]:
        """The components of the attention sublayers of one layer, in order; empty without attention."""
        if not self.config.traits.attends:
            return []
        return [self.part, "cross"] if self.has_cross_attention else [self.part]


def stack_of(name: str, stacks: Sequence[Stack]) -> Stack | None:
    """The stack that a module belongs to."""
    return next((stack for stack in stacks if name.startswith(f"{stack.name}.")), None)


def layers_of(model: nn.Module) -> list[str]:
    """The names of the layers without inner layers, in the order of the model."""
    names = [name for name, _ in model.named_modules() if LAYER_NAME.search(name)]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def side_of(name: str) -> str:
    """The side of a module: encoder or decoder, or `layer` in models with one stack."""
    side = name.split(".")[0]
    return side if side in ("encoder", "decoder") else "layer"


def labels(names: Sequence[str]) -> list[str]:
    """Side and 1-based index of each layer: `decoder 1` for `decoder.stack.layers.0`."""
    sides = [side_of(name) for name in names]
    return [f"{side} {sides[: i + 1].count(side)}" for i, side in enumerate(sides)]


def _layer_type(model: nn.Module, name: str) -> str:
    """The type of the mixer of a layer: attention, cross-attention, feed-forward, recurrent, ..."""
    mixer = model.get_submodule(f"{name}.mixer")
    if isinstance(mixer, WithoutHeads) and mixer.cross is not None:
        return "cross-attention"
    return part_names().get(type(mixer.get_submodule(WRAPPED_MIXERS.get(type(mixer), ""))), "")


def named_parts(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Labels of sublayers that count attention and feed-forward as one layer: `layer 1 attention`, `layer 1 feed-forward`, or
    `layer 1` if it has no other sublayer."""
    types, sides = [_layer_type(model, name) for name in names], [side_of(name) for name in names]
    layers, num_layers = list[tuple[str, int]](), dict[str, int]()
    for layer_type, side in zip(types, sides, strict=True):
        is_new_layer = layer_type not in UPPER_SUBLAYERS or side not in num_layers
        num_layers[side] = num_layers.get(side, 0) + is_new_layer
        layers.append((side, num_layers[side]))
    return [
        f"{side} {number}" + (f" {layer_type}" if layers.count((side, number)) > 1 else "")
        for (side, number), layer_type in zip(layers, types, strict=True)
    ]


def is_recurrent(call: Activation) -> bool:
    """Whether a layer updates its state: feed-forward layers have none, and cross-attention never changes its own."""
    old_state, new_state = call.inputs[1], call.output[1]
    return bool(tree_leaves(new_state)) and new_state is not old_state
