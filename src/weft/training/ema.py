"""Exponential moving average of the weights (Polyak and Juditsky, 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from weft.errors import ModelError


class EMA:
    """The moving average of a set of weights. `names` has each weight once, also if it is tied; buffers are not averaged."""

    def __init__(self, names: Mapping[Tensor, str], *, decay: float) -> None:
        self.decay, self.weights, self.names = decay, list(names), list(names.values())
        self.averages = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after step `step`, counted from 1; faster at first, to forget the initial weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averages, self.weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While the block runs, the weights of the model are the averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # contents, not addresses: optimizers, compiled code and fused recurrent kernels refer to the addresses
        for weight, average in zip(self.weights, self.averages, strict=True):
            copy = weight.clone()
            weight.copy_(average)
            average.copy_(copy)

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, tensors: Mapping[str, Tensor], *, at: str) -> None:
        """Restore the averages from a checkpoint; `at` is its file, for errors."""
        if {name: part.shape for name, part in tensors.items()} != {name: part.shape for name, part in self.tensors().items()}:
            raise ModelError(at, "does not match the model of this run: other names or shapes of weights")
        for name, average in self.tensors().items():
            average.copy_(tensors[name])
