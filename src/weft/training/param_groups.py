"""Groups of weights for the optimizers, and learning-rate factors per weight: frozen weights, layer-wise decay, and gradual
unfreezing (Howard and Ruder 2018).

The depth of a weight is 0 for embeddings and positions, then 1 for the first layer and so on; all other weights are above the
layers. A layer is one of `model.num_layers`: a mixer, its cross-attention and its feed-forward layer have the same depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from weft.errors import ConfigError, suggest
from weft.training.config import TrainConfig

_EMBEDDER = re.compile(r"(?:^|\.)embedder\.")  # includes the layers of a character encoder
_BOTTOM = re.compile(r"(?:^|\.)(?:embedding|positions|input_proj)\.")


class LrFactor(NamedTuple):
    """The learning-rate factor of a weight: 0 until the progress reaches `start`, then `factor`."""

    factor: float = 1.0
    start: float = 0.0

    def at(self, progress: float) -> float:
        return self.factor if progress >= self.start else 0.0


CONSTANT = LrFactor()


@dataclass
class ParamGroup:
    """Weights with the same learning rate and weight decay."""

    weights: list[Tensor]
    peak_lr: float
    weight_decay: float
    lr_factor: LrFactor = CONSTANT
    lr: float = field(init=False)  # of the next step

    def __post_init__(self) -> None:
        self.lr = self.peak_lr

    def with_gradients(self) -> list[Tensor]:
        """The weights that have a gradient."""
        return [weight for weight in self.weights if weight.grad is not None]


def layer_depth(name: str, layers: Mapping[str, int]) -> int:
    """The depth of a weight; `layers` contains the layer index, from 0, of each module that has one."""
    if _EMBEDDER.search(name):
        return 0
    indices = [index for module, index in layers.items() if name.startswith(f"{module}.")]
    if indices:
        return 1 + indices[-1]  # of the innermost module
    return 0 if _BOTTOM.search(name) else 2 + max(layers.values(), default=-1)


def _multiplier(name: str, multipliers: dict[str, float]) -> float:
    """The multiplier of the longest matching prefix of a weight name."""
    prefixes = [prefix for prefix in multipliers if name == prefix or name.startswith(f"{prefix}.")]
    return multipliers[max(prefixes, key=len)] if prefixes else 1.0


def lr_factors(names: Iterable[str], layers: Mapping[str, int], config: TrainConfig) -> dict[str, LrFactor]:
    """The factor of each weight by its name; `layers` contains the layer index, from 0, of each module that has one."""
    weight_names = list(names)
    prefixes = {".".join(name.split(".")[:size]) for name in weight_names for size in range(1, name.count(".") + 2)}
    for prefix in config.lr_multipliers:
        if prefix not in prefixes:
            raise ConfigError(
                "train.lr_multipliers", f"no weight name starts with {prefix!r}", suggest(prefix, sorted(prefixes))
            )
    top, factors = 2 + max(layers.values(), default=-1), {}
    for name in weight_names:
        distance = top - layer_depth(name, layers)  # from the top
        factor = _multiplier(name, config.lr_multipliers) * (config.layerwise_lr_decay or 1.0) ** distance
        factors[name] = LrFactor(factor, (config.gradual_unfreezing or 0.0) * distance / top)
    return factors
