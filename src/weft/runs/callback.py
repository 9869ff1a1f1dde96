"""Callbacks of training: what a Python caller hears of a run while it is trained, and how it stops it."""

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
    """How far training has come, after a step.

    Attributes:
        step: Updates so far.
        total_steps: Updates in all; None where the budget is a number of tokens or minutes.
        epoch: Passes over the training data that are complete.
        tokens: Tokens read so far.
        seconds: Seconds spent training, over all calls that worked on the run.
        progress: The part of the budget that is spent, from 0 to 1.
        best: The best validation score so far; None before the first validation.
        best_step: The step it was found at.
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
    """Hears of a run while it is trained. Every method does nothing by default: override those that you need.

    Example:
        >>> class StopEarly(weft.TrainCallback):
        ...     def on_validation(self, state, metrics):
        ...         print(state.step, metrics)
        >>> weft.train("run.toml", callback=StopEarly())
    """

    def on_note(self, text: str) -> None:
        """Something about the data or the run that is worth a line.

        Args:
            text: One or several lines.
        """

    def on_progress(self, phase: str, done: int, total: int) -> None:
        """Work other than training steps goes on: reading, tokenizing, validating.

        Args:
            phase: What is going on, such as "validating".
            done: How much of it is done.
            total: How much of it there is.
        """

    def on_step(self, state: TrainProgress, loss: float) -> None:
        """An update was made.

        Args:
            state: How far training has come.
            loss: The mean training loss of the batch.
        """

    def on_validation(self, state: TrainProgress, metrics: Mapping[str, float]) -> None:
        """The validation data was evaluated.

        Args:
            state: How far training has come.
            metrics: Values by the name of the metric.
        """

    def on_fit(self, num_parameters: int, metrics: Mapping[str, float]) -> None:
        """A model without training steps, such as an n-gram model, was estimated.

        Args:
            num_parameters: How many parameters it has.
            metrics: Values on the validation data by the name of the metric; empty without such data.
        """

    def should_stop(self) -> bool:
        """Asked after every step.

        Returns:
            True to save and stop: `weft.training` then raises `weft.errors.TrainingInterrupted`.
        """
        return False


def _progress(loop: Loop) -> TrainProgress:
    cursor = loop.train_state
    return TrainProgress(
        cursor.step,
        loop.total_steps(),
        cursor.epoch,
        cursor.tokens,
        cursor.seconds,
        min(1.0, loop.progress()),
        cursor.best,
        cursor.best_step,
    )


class CallbackAdapter:
    """A callback as the watcher of a run. An interrupt, which may come in the middle of a callback, lets the run save."""

    def __init__(self, callback: TrainCallback) -> None:
        self.callback = callback
        self.interrupted = False
        self.saves = False  # whether there is something to save: a step was made

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            if not self.saves:
                raise
            self.interrupted = True

    def on_note(self, text: str) -> None:
        self.callback.on_note(text)

    def on_data(self, summary: str) -> None:
        self.callback.on_note(summary)

    def on_progress(self, name: str, done: int, total: int) -> None:
        self.callback.on_progress(name, done, total)

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.saves = True
        with self._heard():
            self.callback.on_step(_progress(loop), loss)

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        with self._heard():
            self.callback.on_validation(_progress(loop), scores)

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None:
        self.callback.on_fit(num_parameters, scores)

    def should_stop(self) -> bool:
        with self._heard():
            self.interrupted = self.callback.should_stop() or self.interrupted
        return self.interrupted


@contextmanager
def interruptible(callback: CallbackAdapter) -> Iterator[None]:
    """While the block runs, the first interrupt (Ctrl-C, a notebook's stop button) lets a run save and stop, once it has made a
    step; the second stops at once. Python hears signals in its main thread only, so that elsewhere nothing is changed, and
    neither where somebody else has taken the signal over."""

    def heard(number: int, frame: FrameType | None) -> None:
        if callback.interrupted or not callback.saves:
            raise KeyboardInterrupt
        callback.interrupted = True

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
