"""What a task is to the training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weft.metrics.metric import Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

ProgressCallback = Callable[[int, int], None]  # done, in all


class Loss(NamedTuple):
    total: Tensor  # nats, summed over what is counted; gradients flow from here
    count: Tensor  # type: ignore[assignment]  # what is counted; tuples have a method of that name
    carry: Any  # the state that the next batch starts from, detached; None where batches are independent
    tokens: Tensor | None = None  # how many were read, where the loss is averaged over something else; None: what is counted


class Prepare(Protocol):
    """How a batch of the order becomes the one that is learned from, such as prompts with what the model writes to them.

    The model is in eval mode and no gradients are recorded. All that is random follows from `seed`, by generators of its own:
    drawn from torch's default one, a resumed run would differ.
    """

    def __call__(self, model: nn.Module, batch: Any, *, seed: int) -> Any:
        """A tuple of tensors with rows first, as many rows as it likes."""


class Objective(Protocol):
    """What is learned: how batches become losses, and how good a model is."""

    unit: str  # what the loss is the mean over: token, word, example, ...

    @property
    def monitors(self) -> Sequence[Metric]:
        """What validation measures; the first that was measured chooses weights, unless train.monitor names another."""

    @property
    def inner(self) -> int:
        """Updates for each prepared batch; 0: batches come from the order alone."""

    @property
    def prepare(self) -> Prepare | None:
        """None where `inner` is 0."""

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss: ...

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """The values of monitors on the validation data, in their order; None where there is no such data."""
