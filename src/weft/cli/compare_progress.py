"""Terminal progress of the runs of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.cli.display import Display
from weft.cli.output import format_duration
from weft.cli.progress import TrainProgress, show_note
from weft.cli.signals import Stop
from weft.cli.usage import with_flags
from weft.metrics.labels import format_score, label_of
from weft.runs.status import read_run_status

if TYPE_CHECKING:
    from weft.comparison.train import Outcome, State

MAX_LISTED_RUNS = 12


def _describe(state: State, width: int) -> str:
    """'lstm-0   45%  valid loss 2.103'."""
    valid = state.progress.valid
    score = ""
    if valid is not None:
        label = label_of(valid[0])
        score = f"  valid {label.text} {format_score(valid[1], label.style)}"
    return f"{state.planned.output_dir.name:<{width}}  {state.progress.fraction:4.0%}{score}"


class ComparisonProgress:
    """Shows all runs in one display; a finished run becomes a line above it."""

    def __init__(self, display: Display, stop: Stop, phase: str) -> None:
        self.display, self.stop, self.phase = display, stop, phase
        self._has_header, self._width = False, 0

    def on_note(self, text: str) -> None:
        show_note(self.display, text)

    def on_runs(self, states: Sequence[State]) -> None:
        if not self._has_header:
            self._has_header = True
            self._width = max((len(state.planned.output_dir.name) for state in states), default=0)
            self.display.line(f"{self.phase.capitalize()} {len(states)} run{'' if len(states) == 1 else 's'}")
        fraction = sum(state.progress.fraction for state in states) / max(1, len(states))
        done = sum(state.progress.fraction >= 1.0 and not state.running for state in states)
        running = [state for state in states if state.running][:MAX_LISTED_RUNS]
        count = f"{done}/{len(states)} runs"
        if self.display.live:
            # the display appends the ETA of all runs to the last line
            lines = [count, *(_describe(state, self._width) for state in running), "total"]
            self.display.show(self.phase, fraction, "\n".join(lines))
        else:
            details = "  ".join([count, *(_describe(state, 0) for state in running)])
            self.display.show(self.phase, fraction, details, title="")

    def on_run_end(self, outcome: Outcome) -> None:
        name = outcome.planned.output_dir.name.ljust(self._width)
        if outcome.code:
            self.display.line(f"  {name}   failed: {outcome.reason}")
            return
        status = read_run_status(outcome.planned.output_dir)
        seconds = "" if status.seconds is None else f"   {format_duration(status.seconds):>6}"
        if status.best is None:
            self.display.line(f"  {name}   trained{seconds}")
            return
        metric, value = status.best
        self.display.line(f"  {name}   valid {metric.label} {metric.format(value)}{seconds}")

    def should_stop(self) -> bool:
        return self.stop.is_requested


class CompareObserver:
    """Shows a comparison on the terminal; a signal stops it."""

    def __init__(self, display: Display, stop: Stop) -> None:
        self.display, self.stop = display, stop

    def line(self, text: str) -> None:
        show_note(self.display, with_flags(text))

    def show(self, phase: str, fraction: float, detail: str = "") -> None:
        self.display.show(phase, fraction, detail)

    def clear(self) -> None:
        self.display.clear()

    def training(self) -> TrainProgress:
        return TrainProgress(self.display, self.stop)

    def runs(self, phase: str) -> ComparisonProgress:
        return ComparisonProgress(self.display, self.stop, phase)

    def saving(self) -> None:
        self.stop.saves = True
