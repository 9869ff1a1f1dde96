"""A progress bar for training in terminals and notebooks, drawn by rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from weft.runs.callback import TrainCallback, TrainProgress

BAR_STEPS = 10_000


def is_visible(console: Console) -> bool:
    """Whether the console can show a progress bar; in notebooks, rich needs ipywidgets."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


class ProgressBar(TrainCallback):
    """One bar for all phases of training; it disappears at the end."""

    def __init__(self, progress: Progress) -> None:
        self.bar, self._metrics, self._phase = progress, "", ""
        self._task = progress.add_task("", total=BAR_STEPS, detail="")

    def _show(self, phase: str, part: float, detail: str = "") -> None:
        if phase != self._phase:  # estimate the remaining time of the new phase only
            self.bar.reset(self._task, completed=round(BAR_STEPS * part))
            self._phase = phase
        self.bar.update(self._task, description=phase, completed=round(BAR_STEPS * part), detail=detail)

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
    """A progress bar while the block runs; a callback that does nothing if the console cannot show one."""
    console = console or Console(stderr=True)
    if not is_visible(console):
        yield TrainCallback()
        return
    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(
        *columns, TextColumn("{task.fields[detail]}"), TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        yield ProgressBar(progress)
