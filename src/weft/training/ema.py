"""Exponential moving average of the weights (Polyak and Juditsky, 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.parallel.shards import local, shard_like


class EMA:
    """The moving average of a set of weights. `names` contains tied weights once; buffers are not averaged. The average of a
    sharded weight is sharded in the same way."""

    def __init__(self, names: Mapping[Tensor, str], *, decay: float) -> None:
        self.decay, self.weights, self.names = decay, list(names), list(names.values())
        self.averages = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after step `step`, counted from 1; faster at first, to forget the initial weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, weights = [local(average) for average in self.averages], [local(weight) for weight in self.weights]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager in which the weights of the model are the averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # swap values, not tensors: optimizers, compiled code and fused recurrent kernels refer to the addresses of the weights
        for whole_weight, whole_average in zip(self.weights, self.averages, strict=True):
            weight, average = local(whole_weight), local(whole_average)
            copy = weight.clone()
            weight.copy_(average)
            average.copy_(copy)

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, tensors: Mapping[str, Tensor], *, path: Path) -> None:
        """Restore the averages from a checkpoint; `path` is the file that they were read from, for error messages."""
        shapes, expected = ({name: tensor.shape for name, tensor in part.items()} for part in (tensors, self.tensors()))
        if shapes != expected:
            raise ModelError(path, "does not match the model of this run: other names or shapes of weights")
        for name, average in self.tensors().items():
            average.copy_(shard_like(tensors[name], average))
