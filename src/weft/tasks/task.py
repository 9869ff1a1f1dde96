"""What a task is to the training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from weft.metrics.metric import Metric

Watch = Callable[[int, int], None]  # done, in all


class Loss(NamedTuple):
    total: Tensor  # nats, summed over what is counted; gradients flow from here
    count: Tensor  # type: ignore[assignment]  # what is counted; tuples have a method of that name
    carry: Any  # the state that the next batch starts from, detached; None where batches are independent
    tokens: Tensor | None = None  # how many were read, where the loss is averaged over something else; None: what is counted


class Task(Protocol):
    """What is learned: how batches become losses, and how good a model is."""

    unit: str  # what the loss is the mean over: token, word, example, ...

    @property
    def monitors(self) -> Sequence[Metric]:
        """What validation measures; the first that was measured chooses weights, unless train.monitor names another."""

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss: ...

    def validate(self, model: nn.Module, watch: Watch | None = None) -> dict[str, float] | None:
        """The values of monitors on the validation data, in their order; None where there is no such data."""
