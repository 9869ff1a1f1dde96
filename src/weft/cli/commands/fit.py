"""`weft fit`: from a data file to the best model."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand, Overrides
from weft.cli.output import format_duration, print_error, status, write, write_json, write_table
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.report.fit import Fit as FitResult
    from weft.tasks.detection import Detection


@dataclass(kw_only=True)
class Fit(ModelCommand):
    """Find the best model for a data file.

    Detects the task, trains baselines and the most promising models with recommended settings, chooses one on validation data
    and tests it once. The same command resumes a search that was stopped.
    """

    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help="A file or directory with training data, or two parallel files."),
    ]
    minutes: Annotated[float, typer.Option(metavar="N", help="Minutes of training, in total.")] = 10.0
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Task, if it is not the detected one.")] = None
    valid: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Validation data. Repeatable.  [default: a tenth of the training data]"),
    ] = None
    test: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Test data. Repeatable.  [default: a tenth of the training data]")
    ] = None
    overrides: Overrides = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the existing search and start over.")] = False
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.  [default: runs/fit-NAME]"
        ),
    ] = None

    def run(self) -> int:
        from weft.cli.compare_progress import CompareObserver
        from weft.cli.display import Display
        from weft.cli.signals import Stop
        from weft.config import override
        from weft.errors import TrainingInterrupted
        from weft.report.fit import FitOptions, fit_models, with_splits

        if not 0 < self.minutes < math.inf:
            raise UsageError("minutes", f"must be greater than 0, got {self.minutes:g}")
        if self.data[0].suffix == ".toml":
            raise UsageError("fit", f"{self.data[0]} is a run file, not data", f"use weft train {self.data[0]}")
        given = override({}, self.overrides or [])
        detection = self._detect(given)
        values = override({"task": detection.task, "data": self._data(detection)}, self.overrides or [])
        values = with_splits(values, _names(self.valid), _names(self.test))
        output_dir = self.output_dir or Path("runs") / f"fit-{_stem(self.data[0])}"
        with Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                observer = CompareObserver(display, stop)
                result = fit_models(
                    values, output_dir, FitOptions(self.minutes, self.overwrite), observer, base=Path().resolve()
                )
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                display.line(f"Stopped. Saved to {output_dir}. Run the same command to resume.")
                return stop.exit_code
        self._print(result, detection)
        return 0

    def _detect(self, given: dict[str, Any]) -> Detection:
        from weft.tasks.detect import detect

        task = self.task or given.get("task")
        detection = detect(self.data, task=task, data=given.get("data"))
        others = [" ".join(f"--set {shlex.quote(text)}" for text in other.settings()) for other in detection.alternatives]
        names = ", ".join(map(str, self.data))
        status(f"{names}: {detection.task}: {detection.reason}", quiet=self.quiet)
        if others:
            status(f"If not: {others[0]}", quiet=self.quiet)
        return detection

    def _data(self, detection: Detection) -> dict[str, Any]:
        return {**detection.data, "train": _names(self.data)}

    def _print(self, result: FitResult, detection: Detection) -> None:
        from weft.metrics.score_table import default_scores, score_rows
        from weft.tasks.registry import find_task
        from weft.text.table_layout import columns

        metric, best, task = result.metric, result.best, find_task(detection.task)
        scores = default_scores(list(result.test))
        if self.json:
            write_json(
                {
                    "task": detection.task,
                    "run": str(best.run),
                    "metric": metric.name,
                    "models": [
                        {"name": row.name, "run": str(row.run), "valid": dict(row.scores), "seconds": row.seconds}
                        for row in result.candidates
                    ],
                    "test": {score.name: score.value for score in result.test},
                    "report": str(result.report),
                }
            )
            return
        head = ["model", f"valid {metric.label}", "parameters", "time"]
        rows = [
            [row.name, metric.format(row.scores[metric.name]), f"{row.num_parameters:,}", format_duration(row.seconds)]
            for row in result.candidates
        ]
        write("\n")
        write_table(columns([head, *rows]))
        test = ", ".join(" ".join(row) for row in score_rows(scores[:2]))
        write(f"\nBest: {best.name}. Test: {test}\n")
        run = shlex.quote(str(best.run))
        print_error(f"Run: {best.run}\nReport: {result.report}\nNext: weft {task.command} {run} {task.example_input}")


def _names(paths: list[Path] | None) -> str | list[str] | None:
    """Paths as in a run file."""
    if not paths:
        return None
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


def _stem(path: Path) -> str:
    """The name of a file up to its first dot, as part of the name of a directory."""
    return re.sub(r"[^\w-]", "_", path.resolve().name.partition(".")[0])[:80] or "data"
