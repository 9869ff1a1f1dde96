"""`weft demo`: three models side by side, in minutes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from weft.cli import demo_lm as demo_language
from weft.cli import demo_pronunciation
from weft.cli.options import FILES, ModelCommand
from weft.errors import ModelError, UsageError, suggest

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.comparison.results import RunResults


class Story(Protocol):
    """What a demo is about."""

    TITLE: str  # of its report
    SCORE: str  # that decides in it, as in the table

    def write_data(self, output_dir: Path) -> None:
        """Make the folder where the runs go, and in it the data that `run_files` name, unless it is there."""

    def run_files(self) -> Mapping[str, Mapping[str, Any]]:
        """What to train, by the name of its folder; the first one's tokenizer is that of all."""

    def show(self, output_dir: Path, found: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
        """Print what came of it: what each model, by the name of its folder, did on the test data."""


DEMOS: Mapping[str, Story] = {"seq2seq": demo_pronunciation, "lm": demo_language}


def _tasks() -> list[str]:
    return list(DEMOS)


@dataclass(kw_only=True)
class Demo(ModelCommand):
    """Train three models on real data and compare them, in a table and a report; it takes about three minutes.

    translate: how English words are pronounced, by an LSTM without attention, one with, and a Transformer; then type words.
    lm: the text of Python's help, by an n-gram, an LSTM and a GPT.

    Ctrl-C saves and stops; the same command goes on.
    """

    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_tasks, help="What to show: translate or lm.")] = (
        "translate"
    )
    output_dir: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="DIR", help="Where the three runs go.  [default: runs/demo/TASK]"),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display

        if self.task not in DEMOS:
            raise UsageError("demo", f"no such task {self.task!r}", suggest(self.task, DEMOS))
        demo, output_dir = DEMOS[self.task], self.output_dir or Path("runs/demo") / self.task
        demo.write_data(output_dir)
        with Display(quiet=self.quiet) as display:
            for name, values in demo.run_files().items():
                display.line(f"{name}: {output_dir / name}")
                code = self._train(demo, name, values, output_dir, display)
                if code:
                    return code
            found = self._compared(demo, output_dir, display)
        demo.show(output_dir, found, json=self.json, quiet=self.quiet)
        return 0

    def _compared(self, demo: Story, output_dir: Path, display: Display) -> dict[str, RunResults]:
        """Measures what was not measured yet, and makes the folder a comparison, its report included."""
        from weft.cli.compare_result import written
        from weft.comparison.evaluation import cached_results, evaluate_runs
        from weft.comparison.results import DEFAULT_OPTIONS
        from weft.report.comparison import ComparisonInfo

        command = ["weft", "demo", self.task, *([] if self.output_dir is None else ["--output-dir", str(self.output_dir)])]
        runs = {name: [output_dir / name] for name in demo.run_files()}
        results, damaged = evaluate_runs(runs, cached_results(runs, output_dir), display, DEFAULT_OPTIONS)
        if damaged:
            raise ModelError("", damaged[0].reason)
        written(results, ComparisonInfo(demo.TITLE, shlex.join(command), demo.SCORE, []), output_dir, display)
        return {name: found for name, (found,) in results.items()}

    def _train(self, demo: Story, name: str, values: Mapping[str, Any], output_dir: Path, display: Display) -> int:
        from weft.cli.progress import TrainProgress
        from weft.cli.signals import Stop
        from weft.errors import TrainingInterrupted
        from weft.runs.finished import is_finished
        from weft.runs.job import train, with_tokenizer_from
        from weft.runs.resolve import resolve

        first = next(iter(demo.run_files()))
        if name != first:
            values = with_tokenizer_from(values, output_dir / first)
        if is_finished(output_dir / name, resolve(values, base=output_dir)):
            display.line("  trained before; remove the folder to train it again")
            return 0
        with Stop() as stop:
            try:
                train(values, output_dir / name, base=output_dir, callback=TrainProgress(display, stop))
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                display.line("weft: stopped; the same command goes on")
                return stop.exit_code
        display.clear()
        return 0
