"""Errors of a training that diverged: nothing that is NaN or infinite is saved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from weft.errors import DivergedError, ModelError
from weft.parallel.group import Group
from weft.parallel.shards import local
from weft.tensors import not_finite
from weft.training.step_values import StepStart, StepValues

HINT = "lower train.lr or train.max_grad_norm"


def diverged(step: int, problem: str) -> DivergedError:
    return DivergedError(f"step {step}", f"{problem}; the last checkpoint is intact", HINT)


def diverged_step(start: StepStart, values: StepValues, batch: str) -> DivergedError:
    """The error of a step whose loss or gradient is not finite; `batch` describes its batch."""
    name, value = ("gradient norm", values.norm) if math.isfinite(values.total) else ("loss", values.total)
    return diverged(start.step + 1, f"{name} is {value} (epoch {start.epoch}, batch {start.batch_index}: {batch})")


def check_finite(tensors: Mapping[str, Tensor], step: int, group: Group) -> None:
    """Refuse to save NaN or infinite weights: the last step changes them after its check of loss and gradients."""
    parts = {name: local(tensor) for name, tensor in tensors.items()}
    # each process may hold other parts
    if (name := next(filter(None, group.gather(not_finite(parts))), None)) is not None:
        raise diverged(step, f"{name} has NaN or infinite values")


@contextmanager
def detect_divergence(step: int) -> Iterator[None]:
    """Decoding with huge but finite weights can compute NaN."""
    try:
        yield
    except ModelError as error:
        raise diverged(step, error.problem) from error
