"""Averaged weights: an exponential moving average kept beside the weights that are trained (Polyak and Juditsky, 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from weft.errors import ModelError


class EMA:
    """Follows weights after each update. `names` has every weight once, tied ones too; buffers are not averaged."""

    def __init__(self, names: Mapping[Tensor, str], *, decay: float) -> None:
        self.decay, self.weights, self.names = decay, list(names), list(names.values())
        self.averages = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights of update `step`, counted from 1; faster at first, to forget where training began."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averages, self.weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model's weights are the averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # what is in them, not where they are: optimisers, compiled code and fused recurrent kernels hold on to addresses
        for weight, average in zip(self.weights, self.averages, strict=True):
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, tensors: Mapping[str, Tensor], *, at: str) -> None:
        """Take the averages from a checkpoint's file."""
        if {name: part.shape for name, part in tensors.items()} != {name: part.shape for name, part in self.tensors().items()}:
            raise ModelError(at, "does not fit the model of this run: it averages weights of other names or shapes")
        for name, average in self.tensors().items():
            average.copy_(tensors[name])
