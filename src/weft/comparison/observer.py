"""Progress reports of a comparison, for the command line or a Python caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weft.comparison.train import ComparisonCallback as RunsCallback
    from weft.runs.job import JobCallback


class Progress(Protocol):
    """Shows the progress of one phase."""

    def show(self, phase: str, fraction: float, detail: str = "") -> None:
        """A fraction of the phase is done."""

    def clear(self) -> None:
        """The phase is over."""


class Observer(Progress, Protocol):
    """Receives the progress of a comparison, and can stop it."""

    def line(self, text: str) -> None:
        """Show one line of text."""

    def training(self) -> JobCallback:
        """The callback for training the tokenizer."""

    def runs(self, phase: str) -> RunsCallback:
        """The callback for training runs in a phase: training or tuning."""

    def saving(self) -> None:
        """From here on, runs save before an interruption takes effect."""
