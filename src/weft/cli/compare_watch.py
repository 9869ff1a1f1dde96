"""The runs of a comparison while they are trained, as the terminal sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.cli.display import Display
from weft.cli.output import score_name
from weft.cli.progress import TrainWatcher
from weft.cli.signals import Stop
from weft.runs.story import best

if TYPE_CHECKING:
    from weft.compare.train import Outcome, State

MOST = 12  # runs that are shown at once


def _said(state: State, width: int) -> str:
    """'lstm-0   45%  nats/token 2.1032'."""
    valid = state.progress.valid
    score = "" if valid is None else f"  {score_name(valid[0])} {valid[1]:.4f}"
    return f"{state.planned.out.name:<{width}}  {state.progress.share:4.0%}{score}"


class RunsWatcher:
    """All runs in one display; what ended stays above it as a line."""

    def __init__(self, display: Display, stop: Stop, what: str) -> None:
        self.display, self.stop, self.what = display, stop, what

    def note(self, text: str) -> None:
        self.display.line(text)

    def runs(self, states: Sequence[State]) -> None:
        share = sum(state.progress.share for state in states) / max(1, len(states))
        done = sum(state.progress.share >= 1.0 and not state.running for state in states)
        running = [state for state in states if state.running][:MOST]
        count = f"{done} of {len(states)} runs"
        if self.display.live:
            width = max((len(state.planned.out.name) for state in running), default=0)
            # the last line is the one that the display adds what is left of all to
            lines = [count, *(_said(state, width) for state in running), "all of them"]
            self.display.show(self.what, share, "\n".join(lines))
        else:
            self.display.show(self.what, share, "  ".join([count, *(_said(state, 0) for state in running)]))

    def ended(self, outcome: Outcome) -> None:
        name = outcome.planned.out.name
        if outcome.code:
            self.display.line(f"{name}: {outcome.reason}")
            return
        found = best(outcome.planned.out)
        self.display.line(f"{name}: trained" if found is None else f"{name}: valid {score_name(found[0].name)} {found[1]:.4f}")

    def stopping(self) -> bool:
        return self.stop.asked


class CompareObserver:
    """A comparison as the terminal sees it; a signal stops it."""

    def __init__(self, display: Display, stop: Stop) -> None:
        self.display, self.stop = display, stop

    def line(self, text: str) -> None:
        self.display.line(text)

    def show(self, what: str, share: float, detail: str = "") -> None:
        self.display.show(what, share, detail)

    def clear(self) -> None:
        self.display.clear()

    def training(self) -> TrainWatcher:
        return TrainWatcher(self.display, self.stop)

    def runs(self, what: str) -> RunsWatcher:
        return RunsWatcher(self.display, self.stop, what)

    def saving(self) -> None:
        self.stop.saves = True
