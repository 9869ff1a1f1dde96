"""How fast each weight learns beside the schedule: one function of its name and of the progress. Frozen parts, slower lower
layers and layers that thaw one after another (Howard & Ruder 2018) are all of it.

The height of a weight: 0 for embeddings and positions, then its layer's number from 1, and above all layers the rest. A layer
is one of `model.num_layers`: a mixer, the attention to a source and the feed-forward part after it have one height.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.errors import ConfigError, suggest
from weft.training.config import TrainConfig

_FRONT = re.compile(r"(?:^|\.)front\.")  # with the layers of letters that may be in it
_BOTTOM = re.compile(r"(?:^|\.)(?:embedding|positions|inlet)\.")


class LrFactor(NamedTuple):
    """What the rate of a weight is multiplied by: 0 until `start`, then `factor`."""

    factor: float = 1.0
    start: float = 0.0

    def at(self, progress: float) -> float:
        return self.factor if progress >= self.start else 0.0


def layer_depth(name: str, layers: Mapping[str, int]) -> int:
    """Where a weight stands in a model whose parts of these names belong to layers of these numbers."""
    if _FRONT.search(name):
        return 0
    inside = [number for part, number in layers.items() if name.startswith(f"{part}.")]
    if inside:
        return 1 + inside[-1]
    return 0 if _BOTTOM.search(name) else 2 + max(layers.values(), default=-1)


def _given(name: str, rates: dict[str, float]) -> float:
    """The factor of the longest name that this one starts with."""
    known = [prefix for prefix in rates if name == prefix or name.startswith(f"{prefix}.")]
    return rates[max(known, key=len)] if known else 1.0


def lr_factors(names: Iterable[str], layers: Mapping[str, int], config: TrainConfig) -> dict[str, LrFactor]:
    """The rate of every weight, by its name; `layers` has the number of the layer that each part belongs to."""
    found = list(names)
    parts = {".".join(name.split(".")[:size]) for name in found for size in range(1, name.count(".") + 2)}
    for prefix in config.lr_multipliers:
        if prefix not in parts:
            raise ConfigError(
                "train.lr_multipliers", f"no weight is called {prefix!r}, or starts so", suggest(prefix, sorted(parts))
            )
    top, rates = 2 + max(layers.values(), default=-1), {}
    for name in found:
        below = top - layer_depth(name, layers)
        factor = _given(name, config.lr_multipliers) * (config.layerwise_lr_decay or 1.0) ** below
        rates[name] = LrFactor(factor, (config.gradual_unfreezing or 0.0) * below / top)
    return rates
