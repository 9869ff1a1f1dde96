"""The numbers that a training step computes besides gradients.

A GPU computes behind the host: to read a number is to wait for everything that was launched before it. So the numbers are
copied to the host in the background, and read after the forward and backward pass of the next step has been launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.training.train_state import TrainState


class StepValues(NamedTuple):
    """The numbers of a step on the host."""

    total: float  # summed loss in nats
    count: int  # type: ignore[assignment]  # number of items that it is averaged over; tuples have a method of that name
    tokens: int
    norm: float  # of the gradient, before clipping

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.total) and math.isfinite(self.norm)  # an infinite loss may have a finite gradient

    @property
    def loss(self) -> float:
        return self.total / max(1, self.count)

    def add_to(self, train_state: TrainState, max_grad_norm: float) -> None:
        """Count the tokens, and add the rest to the statistics of the next line of metrics.jsonl."""
        train_state.tokens += self.tokens
        train_state.logged, train_state.counted_tokens = (
            train_state.logged + self.total,
            train_state.counted_tokens + self.count,
        )
        train_state.norm_sum, train_state.norm_max = (
            train_state.norm_sum + self.norm,
            max(train_state.norm_max, self.norm),
        )
        train_state.norm_steps += 1
        train_state.clipped += 0 < max_grad_norm < self.norm


class StepStart(NamedTuple):
    """The state before a step: where it is in the data, and what was carried to it."""

    step: int
    epoch: int
    batch_index: int
    carry: Any

    @staticmethod
    def of(train_state: TrainState, carry: Any) -> StepStart:
        return StepStart(train_state.step, train_state.epoch, train_state.batch_index, carry)


class LaunchedStep:
    """A step that a GPU may still be computing, with its total, count, tokens and norm as tensors ()."""

    def __init__(self, start: StepStart, values: Sequence[Tensor]) -> None:
        self.start, self._values = start, list(values)
        self.after: Callable[[], None] = lambda: None  # called when the numbers were read
        self._event: Any = None
        if values[0].is_cuda:
            on_device = torch.stack([value.double() for value in values])
            on_host = torch.empty(len(values), dtype=torch.float64, pin_memory=True)
            self._values = [on_host.copy_(on_device, non_blocking=True)]
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(values[0].device))

    def read(self) -> StepValues:
        """Wait for the numbers, but not for what was launched after them."""
        if self._event is None:
            total, count, tokens, norm = (value.item() for value in self._values)
        else:
            self._event.synchronize()
            total, count, tokens, norm = self._values[0].tolist()
        return StepValues(total, int(count), int(tokens), norm)


class GradientScale(NamedTuple):
    """What turns the gradients of a summed loss into clipped means, in one pass over them. On a GPU the optimizers do it,
    without waiting for a number."""

    divisor: Tensor  # float32 (): turns sums into clipped means
    skips: Tensor  # float32 (): 1 if the loss or the gradient is NaN or infinite, so that no weight changes; 0 otherwise
    norm: Tensor  # float32 (): of the mean gradient, before clipping

    @staticmethod
    def of(total: Tensor, factor: Tensor, summed_norm: Tensor, max_norm: float) -> GradientScale:
        """`factor` turns sums into means; 0 as `max_norm` means no clipping."""
        norm = factor * summed_norm
        is_finite = torch.isfinite(total) & torch.isfinite(norm)
        clipped = factor * (max_norm / (norm + 1e-6)).clamp(max=1.0) if max_norm > 0 else factor
        return GradientScale(clipped.reciprocal().float(), 1.0 - is_finite.float(), norm)
