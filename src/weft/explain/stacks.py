"""The stacks of a model, its layers by name, and which of them begin anew."""

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

LAYER = re.compile(r"(?:^|\.)layers\.\d+$")
# what holds one mixer or two: where
HOLDS: dict[type[nn.Module], str] = {CopyBridge: "inner", ProjectionBridge: "inner", Bidirectional: "forward_mixer"}
ABOVE = ("cross-attention", "feed-forward")  # what belongs to the layer that it stands on


class Stack(NamedTuple):
    """A stack of layers, and the table of the run file that describes it."""

    part: str  # encoder or decoder, for people
    name: str  # as the model has it
    side: str  # the sequence that it reads, by the name of its side
    config: StackConfig
    keys: tuple[str, ...] = ()  # of the table within [model]
    backwards: bool = False  # it reads from the end
    crosses: bool = False  # it attends to a source after its own sequence

    @property
    def attention(self) -> list[str]:
        """The attention of one of its blocks by part, in order; none where its layers are others."""
        if not self.config.traits.attends:
            return []
        return [self.part, "cross"] if self.crosses else [self.part]


def stack_of(name: str, stacks: Sequence[Stack]) -> Stack | None:
    """The stack that a part of a model belongs to."""
    return next((stack for stack in stacks if name.startswith(f"{stack.name}.")), None)


def layers_of(model: nn.Module) -> list[str]:
    """The names of the innermost layers, in the order of the model."""
    names = [name for name, _ in model.named_modules() if LAYER.search(name)]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def side_of(name: str) -> str:
    """Which stack a part is of: encoder, decoder, or the only one there is."""
    side = name.split(".")[0]
    return side if side in ("encoder", "decoder") else "layer"


def labels(names: Sequence[str]) -> list[str]:
    """Layers by their numbers from 1, those of each stack by themselves: `decoder.stack.layers.0` is decoder 1."""
    sides = [side_of(name) for name in names]
    return [f"{side} {sides[: at + 1].count(side)}" for at, side in enumerate(sides)]


def _kind(model: nn.Module, name: str) -> str:
    """What a layer mixes with: attention, feed-forward, recurrent ..."""
    mixer = model.get_submodule(f"{name}.mixer")
    if isinstance(mixer, WithoutHeads) and mixer.cross is not None:  # attention to a source
        return "cross-attention"
    return part_names().get(type(mixer.get_submodule(HOLDS.get(type(mixer), ""))), "")


def named_parts(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Layers as everybody counts them, attention and the feed-forward layer on top of it as one: `layer 1 attention`,
    `layer 1 feed-forward`; `layer 1` where it has one part alone."""
    kinds, sides = [_kind(model, name) for name in names], [side_of(name) for name in names]
    numbers, count = list[tuple[str, int]](), dict[str, int]()
    for kind, side in zip(kinds, sides, strict=True):
        begins = kind not in ABOVE or side not in count
        count[side] = count.get(side, 0) + begins
        numbers.append((side, count[side]))
    return [
        f"{side} {number}" + (f" {kind}" if numbers.count((side, number)) > 1 else "")
        for (side, number), kind in zip(numbers, kinds, strict=True)
    ]


def is_recurrent(seen: Activation) -> bool:
    """Whether a layer hands on something: feed-forward layers have no state, attention to a source never changes its own."""
    return bool(tree_leaves(seen.output[1])) and seen.output[1] is not seen.inputs[1]
