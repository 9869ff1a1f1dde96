"""`weft demo`: three models side by side, in minutes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from weft.cli import demo_language, demo_pronunciation
from weft.cli.options import FILES, Shared
from weft.errors import ModelError, UsageError, nearest

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.compare.evidence import Evidence


class Story(Protocol):
    """What a demo is about."""

    TITLE: str  # of its report
    SCORE: str  # that decides in it, as in the table

    def write_data(self, out: Path) -> None:
        """Make the folder where the runs go, and in it the data that `run_files` name, unless it is there."""

    def run_files(self) -> Mapping[str, Mapping[str, Any]]:
        """What to train, by the name of its folder; the first one's tokenizer is that of all."""

    def show(self, out: Path, found: Mapping[str, Evidence], *, json: bool, quiet: bool) -> None:
        """Print what came of it: what each model, by the name of its folder, did on the test data."""


STORIES: Mapping[str, Story] = {"translate": demo_pronunciation, "lm": demo_language}


def _tasks() -> list[str]:
    return list(STORIES)


@dataclass(kw_only=True)
class Demo(Shared):
    """Train three models on real data and compare them, in a table and a report; it takes about three minutes.

    translate: how English words are pronounced, by an LSTM without attention, one with, and a Transformer; then type words.
    lm: the text of Python's help, by an n-gram, an LSTM and a GPT.

    Ctrl-C saves and stops; the same command goes on.
    """

    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_tasks, help="What to show: translate or lm.")] = (
        "translate"
    )
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="DIR", help="Where the three runs go.  [default: runs/demo/TASK]"),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display

        if self.task not in STORIES:
            raise UsageError(f"demo: no such task {self.task!r}{nearest(self.task, STORIES)}")
        story, out = STORIES[self.task], self.out or Path("runs/demo") / self.task
        story.write_data(out)
        with Display(quiet=self.quiet) as display:
            for name, values in story.run_files().items():
                display.line(f"{name}: {out / name}")
                code = self._train(story, name, values, out, display)
                if code:
                    return code
            found = self._compared(story, out, display)
        story.show(out, found, json=self.json, quiet=self.quiet)
        return 0

    def _compared(self, story: Story, out: Path, display: Display) -> dict[str, Evidence]:
        """Measures what was not measured yet, and makes the folder a comparison, its report included."""
        from weft.cli.compare_result import written
        from weft.compare.evidence import HOW
        from weft.compare.measuring import kept_in, measured
        from weft.report.comparison import Facts

        command = ["weft", "demo", self.task, *([] if self.out is None else ["--out", str(self.out)])]
        runs = {name: [out / name] for name in story.run_files()}
        evidence, damaged = measured(runs, kept_in(runs, out), display, HOW)
        if damaged:
            raise ModelError(damaged[0].reason)
        written(evidence, Facts(story.TITLE, shlex.join(command), story.SCORE, []), out, display)
        return {name: found for name, (found,) in evidence.items()}

    def _train(self, story: Story, name: str, values: Mapping[str, Any], out: Path, display: Display) -> int:
        from weft.cli.progress import TrainWatcher
        from weft.cli.signals import Stop
        from weft.errors import TrainingInterrupted
        from weft.runs.finished import is_finished
        from weft.runs.job import borrow_tokenizer, train
        from weft.runs.resolve import resolve

        first = next(iter(story.run_files()))
        if name != first:
            values = borrow_tokenizer(values, out / first)
        if is_finished(out / name, resolve(values, base=out)):
            display.line("  trained before; remove the folder to train it again")
            return 0
        with Stop() as stop:
            try:
                train(values, out / name, base=out, watcher=TrainWatcher(display, stop))
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                display.line("weft: stopped; the same command goes on")
                return stop.exit_code
        display.clear()
        return 0
