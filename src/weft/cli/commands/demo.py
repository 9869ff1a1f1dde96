"""`weft demo`: small models, trained and compared in minutes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from weft.cli import demo_feedback, demo_pronunciation, demo_speech
from weft.cli import demo_lm as demo_language
from weft.cli.options import FILES, ModelCommand
from weft.cli.output import status
from weft.errors import ModelError, UsageError, unknown_name

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.comparison.results import RunResults


class DemoTask(Protocol):
    """One demo: its data, its runs and its result."""

    TITLE: str  # of the report
    INTRO: str  # the first line
    METRIC: str  # the ranking metric

    def write_data(self, output_dir: Path) -> None:
        """Create the directory of the runs, with the data that `run_files` name, unless it exists."""

    def run_files(self) -> Mapping[str, Mapping[str, Any]]:
        """The run files, by the name of the run; all use the tokenizer of the first."""

    def compared(self) -> Sequence[str]:
        """The names of the runs that are compared: all, or those of the last task."""

    def show(self, output_dir: Path, results: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
        """Print the results on the test data, by the name of the run."""


DEMOS: Mapping[str, DemoTask] = {
    "seq2seq": demo_pronunciation,
    "lm": demo_language,
    "speech": demo_speech,
    "feedback": demo_feedback,
}


def _tasks() -> list[str]:
    return list(DEMOS)


@dataclass(kw_only=True)
class Demo(ModelCommand):
    """Train and compare small models (about 5 minutes).

    seq2seq: English pronunciation with an LSTM, an LSTM with attention and a Transformer; then type words of your own.
    lm: the text of Python's help with an n-gram model, an LSTM and a GPT.
    speech: spoken numbers of synthesized voices with GRUs that read forward or in both directions.
    feedback: a language model of reviews learns to be positive, with policy gradients (RLOO and PPO).

    Ctrl-C saves and stops; the same command resumes.
    """

    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_tasks, help="seq2seq, lm, speech or feedback.")] = (
        "seq2seq"
    )
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.  [default: runs/demo/TASK]"
        ),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display

        if self.task not in DEMOS:
            raise UsageError("demo", *unknown_name("task", self.task, DEMOS))
        demo, output_dir = DEMOS[self.task], self.output_dir or Path("runs/demo") / self.task
        demo.write_data(output_dir)
        status(demo.INTRO, quiet=self.quiet)
        with Display(quiet=self.quiet) as display:
            for name, values in demo.run_files().items():
                display.line(f"\nTraining {name} ({output_dir / name})")
                code = self._train(demo, name, values, output_dir, display)
                if code:
                    return code
            results = self._compare(demo, output_dir, display)
        demo.show(output_dir, results, json=self.json, quiet=self.quiet)
        return 0

    def _compare(self, demo: DemoTask, output_dir: Path, display: Display) -> dict[str, RunResults]:
        """Evaluate the runs that have no results yet, and make the directory a comparison with a report."""
        from weft.cli.compare_result import write_results
        from weft.comparison.evaluation import cached_results, evaluate_runs
        from weft.comparison.results import DEFAULT_OPTIONS
        from weft.report.comparison import ComparisonInfo

        command = ["weft", "demo", self.task, *([] if self.output_dir is None else ["--output-dir", str(self.output_dir)])]
        runs = {name: [output_dir / name] for name in demo.compared()}
        results, damaged = evaluate_runs(runs, cached_results(runs, output_dir), display, DEFAULT_OPTIONS)
        if damaged:
            raise ModelError("", damaged[0].reason)
        write_results(results, ComparisonInfo(demo.TITLE, shlex.join(command), demo.METRIC, []), output_dir, display)
        return {name: run for name, (run,) in results.items()}

    def _train(self, demo: DemoTask, name: str, values: Mapping[str, Any], output_dir: Path, display: Display) -> int:
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
            display.line(f"Already trained. Remove {output_dir / name} to train it again.")
            return 0
        with Stop() as stop:
            try:
                train(values, output_dir / name, base=output_dir, callback=TrainProgress(display, stop))
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                display.line("Stopped. Run the same command to resume.")
                return stop.exit_code
        display.clear()
        return 0
