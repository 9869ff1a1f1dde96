"""Learning-rate factors of single weights, by name and progress: frozen parts, layer-wise decay, and gradual unfreezing (Howard
and Ruder 2018).

The depth of a weight is 0 for embeddings and positions, then the number of its layer from 1; all other weights are above the
layers. A layer is one of `model.num_layers`: a mixer, its cross-attention and its feed-forward layer have the same depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.errors import ConfigError, suggest
from weft.training.config import TrainConfig

_EMBEDDER = re.compile(r"(?:^|\.)embedder\.")  # includes the layers of a character encoder
_BOTTOM = re.compile(r"(?:^|\.)(?:embedding|positions|input_proj)\.")


class LrFactor(NamedTuple):
    """The factor of the learning rate of a weight: 0 until the progress `start`, then `factor`."""

    factor: float = 1.0
    start: float = 0.0

    def at(self, progress: float) -> float:
        return self.factor if progress >= self.start else 0.0


def layer_depth(name: str, layers: Mapping[str, int]) -> int:
    """The depth of a weight; `layers` has the layer number, from 0, of each part of the model."""
    if _EMBEDDER.search(name):
        return 0
    inside = [number for part, number in layers.items() if name.startswith(f"{part}.")]
    if inside:
        return 1 + inside[-1]
    return 0 if _BOTTOM.search(name) else 2 + max(layers.values(), default=-1)


def _multiplier(name: str, multipliers: dict[str, float]) -> float:
    """The multiplier of the longest prefix of a name."""
    prefixes = [prefix for prefix in multipliers if name == prefix or name.startswith(f"{prefix}.")]
    return multipliers[max(prefixes, key=len)] if prefixes else 1.0


def lr_factors(names: Iterable[str], layers: Mapping[str, int], config: TrainConfig) -> dict[str, LrFactor]:
    """The factor of every weight, by its name; `layers` has the layer number, from 0, of each part of the model."""
    weight_names = list(names)
    parts = {".".join(name.split(".")[:size]) for name in weight_names for size in range(1, name.count(".") + 2)}
    for prefix in config.lr_multipliers:
        if prefix not in parts:
            raise ConfigError("train.lr_multipliers", f"no weight name starts with {prefix!r}", suggest(prefix, sorted(parts)))
    top, factors = 2 + max(layers.values(), default=-1), {}
    for name in weight_names:
        below = top - layer_depth(name, layers)
        factor = _multiplier(name, config.lr_multipliers) * (config.layerwise_lr_decay or 1.0) ** below
        factors[name] = LrFactor(factor, (config.gradual_unfreezing or 0.0) * below / top)
    return factors
