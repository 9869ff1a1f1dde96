"""Callbacks of training: they report progress to a Python caller and can stop a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weft.training.loop import Loop


class TrainProgress(NamedTuple):
    """The position in training after a step.

    Attributes:
        step: Number of steps so far.
        total_steps: Number of steps in the budget; None if the budget is in tokens or minutes.
        epoch: Number of complete epochs.
        tokens: Number of training tokens so far.
        seconds: Training time in seconds, over all calls that worked on the run.
        progress: Fraction of the budget that is used, from 0 to 1.
        best: Best value of the monitored metric so far; None before the first validation.
        best_step: The step of that value.
    """

    step: int
    total_steps: int | None
    epoch: int
    tokens: int
    seconds: float
    progress: float
    best: float | None
    best_step: int


class TrainCallback:
    """Receives the progress of a training run. All methods do nothing by default: override those that you need.

    Example:
        >>> class StopEarly(weft.TrainCallback):
        ...     def on_validation(self, state, metrics):
        ...         print(state.step, metrics)
        >>> weft.train("run.toml", callback=StopEarly())
    """

    def on_note(self, text: str) -> None:
        """Called with remarks on the data or the run.

        Args:
            text: One or more lines.
        """

    def on_progress(self, phase: str, done: int, total: int) -> None:
        """Called during work other than training steps: reading, tokenizing, validating.

        Args:
            phase: The kind of work, such as "validating".
            done: The amount of work that is done.
            total: The total amount of work.
        """

    def on_step(self, state: TrainProgress, loss: float) -> None:
        """Called after each training step.

        Args:
            state: The position in training.
            loss: The mean training loss of the batch.
        """

    def on_validation(self, state: TrainProgress, metrics: Mapping[str, float]) -> None:
        """Called after each validation.

        Args:
            state: The position in training.
            metrics: The values of the validation metrics, by name.
        """

    def on_fit(self, num_parameters: int, metrics: Mapping[str, float]) -> None:
        """Called after a model without training steps, such as an n-gram model, was fitted.

        Args:
            num_parameters: The number of parameters of the model.
            metrics: The values of the validation metrics, by name; empty without validation data.
        """

    def should_stop(self) -> bool:
        """Called after each training step.

        Returns:
            True to save a checkpoint and stop: `weft.train` then raises `weft.errors.TrainingInterrupted`.
        """
        return False


def _progress(loop: Loop) -> TrainProgress:
    state = loop.train_state
    return TrainProgress(
        state.step,
        loop.total_steps(),
        state.epoch,
        state.tokens,
        state.seconds,
        min(1.0, loop.progress()),
        state.best,
        state.best_step,
    )


class CallbackAdapter:
    """Passes the events of a run to a `TrainCallback`. If an interrupt occurs inside the callback, the run can still save."""

    def __init__(self, callback: TrainCallback) -> None:
        self.callback = callback
        self.interrupted = False
        self.has_stepped = False  # whether there is something to save

    @contextmanager
    def _catch_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            if not self.has_stepped:
                raise
            self.interrupted = True

    def on_note(self, text: str) -> None:
        self.callback.on_note(text)

    def on_data(self, summary: str) -> None:
        self.callback.on_note(summary)

    def on_progress(self, phase: str, done: int, total: int) -> None:
        self.callback.on_progress(phase, done, total)

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.has_stepped = True
        with self._catch_interrupt():
            self.callback.on_step(_progress(loop), loss)

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        with self._catch_interrupt():
            self.callback.on_validation(_progress(loop), scores)

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None:
        self.callback.on_fit(num_parameters, scores)

    def should_stop(self) -> bool:
        with self._catch_interrupt():
            self.interrupted = self.callback.should_stop() or self.interrupted
        return self.interrupted


@contextmanager
def interruptible(callback: CallbackAdapter) -> Iterator[None]:
    """While the block runs, the first interrupt (Ctrl-C, a notebook's stop button) makes a run that has made a step save and
    stop; the second stops at once. Python handles signals in the main thread only, so other threads are unaffected; so is a
    program with its own handler."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if callback.interrupted or not callback.has_stepped:
            raise KeyboardInterrupt
        callback.interrupted = True

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
