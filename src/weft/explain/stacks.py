"""The layers of a model by name, and which of them begin anew."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from weft.explain.watch import Watched
from weft.nn.state import leaves

LAYER = re.compile(r"(?:^|\.)layers\.\d+$")


def layers_of(model: nn.Module) -> list[str]:
    """The names of the layers that hold no others, in the order they stand in the model."""
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


def remembers(seen: Watched) -> bool:
    """Whether a layer hands on something: feed-forward layers have no state, attention to a source never changes its own."""
    return bool(leaves(seen.output[1])) and seen.output[1] is not seen.inputs[1]
