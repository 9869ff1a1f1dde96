"""Who looks at a comparison while it is made: the command line, or a Python caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weft.comparison.train import ComparisonCallback as RunsCallback
    from weft.runs.job import JobCallback


class Progress(Protocol):
    """Where it is shown how far work has come."""

    def show(self, what: str, fraction: float, detail: str = "") -> None:
        """`share` of the work called `what` is done."""

    def clear(self) -> None:
        """The work that was shown is over."""


class Observer(Progress, Protocol):
    """Hears of a comparison, and can stop it."""

    def line(self, text: str) -> None:
        """Something that is worth a line."""

    def training(self) -> JobCallback:
        """Who looks on while the tokenizer is made."""

    def runs(self, what: str) -> RunsCallback:
        """Who looks on while runs are trained, for `what`: training, or tuning."""

    def saving(self) -> None:
        """From here on what asks for an end lets the runs save."""
