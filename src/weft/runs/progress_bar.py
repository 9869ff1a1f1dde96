"""The progress of training as a single line: in a terminal or a notebook, by rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from weft.runs.callback import TrainCallback, TrainProgress

WHOLE = 10_000  # steps of the bar


def visible(console: Console) -> bool:
    """Whether somebody sees a line that is drawn over; rich draws in notebooks by ipywidgets."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


class ProgressBar(TrainCallback):
    """A bar that becomes that of each piece of work in turn; it goes when all is done."""

    def __init__(self, progress: Progress) -> None:
        self.bar, self._metrics, self._phase = progress, "", ""
        self._task = progress.add_task("", total=WHOLE, detail="")

    def _show(self, phase: str, part: float, detail: str = "") -> None:
        if phase != self._phase:  # the time that is left is that of new work
            self.bar.reset(self._task, completed=round(WHOLE * part))
            self._phase = phase
        self.bar.update(self._task, description=phase, completed=round(WHOLE * part), detail=detail)

    def on_progress(self, phase: str, done: int, total: int) -> None:
        self._show(phase, done / max(1, total))

    def on_step(self, state: TrainProgress, loss: float) -> None:
        steps = f"{state.step:,}" if state.total_steps is None else f"{state.step:,}/{state.total_steps:,}"
        self._show("training", state.progress, f"{steps}  loss {loss:.4f}{self._metrics}")

    def on_validation(self, state: TrainProgress, metrics: Mapping[str, float]) -> None:
        name, value = next(iter(metrics.items()))
        self._metrics = f"  {name} {value:.4f}"


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[TrainCallback]:
    """A bar while the block runs; one that does nothing where nobody would see it."""
    console = console or Console(stderr=True)
    if not visible(console):
        yield TrainCallback()
        return
    parts = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(
        *parts, TextColumn("{task.fields[detail]}"), TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        yield ProgressBar(progress)
