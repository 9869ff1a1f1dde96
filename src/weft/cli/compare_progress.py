"""The runs of a comparison while they are trained, as the terminal sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.cli.display import Display
from weft.cli.output import score_name
from weft.cli.progress import TrainProgress
from weft.cli.signals import Stop
from weft.runs.status import best

if TYPE_CHECKING:
    from weft.comparison.train import Outcome, State

MAX_RUNS = 12  # runs that are shown at once


def _said(state: State, width: int) -> str:
    """'lstm-0   45%  nats/token 2.1032'."""
    valid = state.progress.valid
    score = "" if valid is None else f"  {score_name(valid[0])} {valid[1]:.4f}"
    return f"{state.planned.output_dir.name:<{width}}  {state.progress.fraction:4.0%}{score}"


class ComparisonProgress:
    """All runs in one display; what ended stays above it as a line."""

    def __init__(self, display: Display, stop: Stop, what: str) -> None:
        self.display, self.stop, self.what = display, stop, what

    def on_note(self, text: str) -> None:
        self.display.line(text)

    def on_runs(self, states: Sequence[State]) -> None:
        fraction = sum(state.progress.fraction for state in states) / max(1, len(states))
        done = sum(state.progress.fraction >= 1.0 and not state.running for state in states)
        running = [state for state in states if state.running][:MAX_RUNS]
        count = f"{done} of {len(states)} runs"
        if self.display.live:
            width = max((len(state.planned.output_dir.name) for state in running), default=0)
            # the last line is the one that the display adds what is left of all to
            lines = [count, *(_said(state, width) for state in running), "all of them"]
            self.display.show(self.what, fraction, "\n".join(lines))
        else:
            self.display.show(self.what, fraction, "  ".join([count, *(_said(state, 0) for state in running)]))

    def on_run_end(self, outcome: Outcome) -> None:
        name = outcome.planned.output_dir.name
        if outcome.code:
            self.display.line(f"{name}: {outcome.reason}")
            return
        found = best(outcome.planned.output_dir)
        self.display.line(f"{name}: trained" if found is None else f"{name}: valid {score_name(found[0].name)} {found[1]:.4f}")

    def should_stop(self) -> bool:
        return self.stop.is_requested


class CompareObserver:
    """A comparison as the terminal sees it; a signal stops it."""

    def __init__(self, display: Display, stop: Stop) -> None:
        self.display, self.stop = display, stop

    def line(self, text: str) -> None:
        self.display.line(text)

    def show(self, what: str, fraction: float, detail: str = "") -> None:
        self.display.show(what, fraction, detail)

    def clear(self) -> None:
        self.display.clear()

    def training(self) -> TrainProgress:
        return TrainProgress(self.display, self.stop)

    def runs(self, what: str) -> ComparisonProgress:
        return ComparisonProgress(self.display, self.stop, what)

    def saving(self) -> None:
        self.stop.saves = True
