"""What the training loop calls: the log of the run, the copies of weights, and the display of its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

if TYPE_CHECKING:
    from weft.training.loop import Loop


class RunLog(Protocol):
    """Stores logs, checkpoints and weights of a run."""

    def log(self, record: dict[str, Any]) -> int:
        """Append a line to metrics.jsonl; returns the new length of the file in bytes."""

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Append lines to samples.jsonl; returns the new length of the file in bytes."""

    def reserve(self, loop: Loop) -> None:
        """Called after the first step, when all tensors of a checkpoint exist."""

    def save(self, loop: Loop) -> None:
        """Start to write a checkpoint. What is copied meanwhile is appended to `loop.copies`."""

    def keep_best(self, loop: Loop, model: nn.Module) -> None:
        """Start to write the weights of `model`, which has all of them, as the result of the run."""

    def raise_error(self) -> None:
        """Raise the error of a write in the background, if there is one."""

    def finish(self) -> None:
        """Wait until everything is written; raises the error of a write."""


class Copy(Protocol):
    """A copy of weights and optimizer state that is being made."""

    def wait(self) -> None:
        """Wait until they may change."""


class LoopCallback(Protocol):
    """Receives the progress of the loop, such as the progress display of the command line."""

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def on_progress(self, phase: str, done: int, total: int) -> None: ...

    def should_stop(self) -> bool: ...
