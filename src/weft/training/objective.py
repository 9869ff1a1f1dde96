"""The training objective, which turns batches into losses: the interface between a task and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weft.metrics.metric import Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

ProgressCallback = Callable[[int, int], None]  # done, total


class Loss(NamedTuple):
    total: Tensor  # summed loss in nats, for backpropagation
    count: Tensor  # type: ignore[assignment]  # number of items in the sum; tuples have a method of that name
    carry: Any  # detached state, carried over to the next batch; None if batches are independent
    tokens: Tensor | None = None  # number of tokens, if items are something else; None: `count`
    penalty: Tensor | None = None  # further summed terms that are minimized, but not part of the reported loss
    expert_counts: tuple[Tensor, ...] = ()  # of each mixture-of-experts layer: number of tokens of each expert, (E,)
    balance_loss: Tensor | None = None  # load-balancing loss, the mean of these layers; a part of `penalty`

    def without_rows(self) -> Loss:
        """The same loss, counting nothing: for a process that has no rows of its own, but must take part in exchanges."""
        penalty = None if self.penalty is None else 0 * self.penalty
        tokens = None if self.tokens is None else 0 * self.tokens
        counts = tuple(0 * counts for counts in self.expert_counts)
        return Loss(0 * self.total, 0 * self.count, None, tokens, penalty, counts, self.balance_loss)

    def to_minimize(self) -> Tensor:
        """The sum whose gradient is computed."""
        return self.total if self.penalty is None else self.total + self.penalty


class Prepare(Protocol):
    """Turns a batch of the sampler into a training batch, such as prompts into prompts with the model's continuations.

    The model is in eval mode and no gradients are recorded. All randomness must come from `seed`, with generators of its own:
    with torch's default generator, a resumed run would differ.
    """

    def __call__(self, model: nn.Module, batch: Any, *, seed: int) -> Any:
        """A tuple of tensors with rows first, with any number of rows."""


class Augment(Protocol):
    """Changes a batch at random before it is divided into micro-batches, such as masking tokens, so that the result does not
    depend on how it is divided. Randomness comes from torch's default generator, which is seeded for each step."""

    def __call__(self, batch: Any) -> Any:
        """A tuple of tensors with the same rows."""


class Objective(Protocol):
    """Computes losses of batches, and metrics of a model on the validation data."""

    unit: str  # the items that the loss is averaged over: token, word, example, ...

    @property
    def monitors(self) -> Sequence[Metric]:
        """The validation metrics. The first that was computed selects the weights, unless train.monitor names another."""

    @property
    def inner_steps(self) -> int:
        """The number of optimizer steps per prepared batch; 0: batches are not prepared."""

    @property
    def prepare(self) -> Prepare | None:
        """Prepares batches; None if `inner_steps` is 0."""

    @property
    def augment(self) -> Augment | None:
        """Changes batches at random; None if nothing is random but what happens inside the model."""

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss:
        """The loss of a batch, or of one that `augment` has changed; `carry` is the state after the batch before, or None."""

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """The values of `monitors` on the validation data, in that order; None without validation data."""


def monitored_metric(objective: Objective, name: str | None, scores: Mapping[str, float]) -> Metric:
    """The metric that selects weights: the one of this name (train.monitor), or the first that was computed."""
    for metric in objective.monitors:
        if metric.name == name:
            return metric
    return next(metric for metric in objective.monitors if metric.name in scores)
