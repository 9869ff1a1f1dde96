"""Progress of a comparison for a Python caller."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from weft.runs.callback import CallbackAdapter, TrainCallback

if TYPE_CHECKING:
    from weft.comparison.train import Outcome, State


class _RunsCallback:
    """Reports the progress of runs to a callback."""

    def __init__(self, callback: CallbackAdapter, phase: str) -> None:
        self.callback, self.phase = callback, phase

    def on_note(self, text: str) -> None:
        self.callback.on_note(text)

    def on_runs(self, states: Sequence[State]) -> None:
        done = sum(state.progress.fraction for state in states)
        self.callback.on_progress(self.phase, round(1000 * done), 1000 * len(states))

    def on_run_end(self, outcome: Outcome) -> None:
        result = "trained" if outcome.code == 0 else outcome.reason
        self.callback.on_note(f"{outcome.planned.output_dir.name}: {result}")

    def should_stop(self) -> bool:
        return self.callback.should_stop()


class CallbackObserver:
    """Reports the progress of a comparison to a callback."""

    def __init__(self, callback: CallbackAdapter) -> None:
        self.callback = callback

    def line(self, text: str) -> None:
        self.callback.on_note(text)

    def show(self, phase: str, fraction: float, detail: str = "") -> None:
        self.callback.on_progress(phase, round(1000 * fraction), 1000)

    def clear(self) -> None:
        """Nothing to do: the next phase ends this one."""

    def training(self) -> CallbackAdapter:
        return self.callback

    def runs(self, phase: str) -> _RunsCallback:
        return _RunsCallback(self.callback, phase)

    def saving(self) -> None:
        self.callback.has_stepped = True


def callback_or_bar(callback: TrainCallback | None) -> AbstractContextManager[TrainCallback]:
    """The callback, or a progress bar if there is none."""
    if callback is not None:
        return nullcontext(callback)
    from weft.runs.progress_bar import progress_bar

    return progress_bar()
