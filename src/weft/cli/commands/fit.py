"""`weft fit`: from a data file to the best model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand, Overrides
from weft.cli.output import finite, format_duration, print_error, status, write, write_json, write_table
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.report.fit import Fit as FitResult
    from weft.report.fit_ensemble import EnsembleScore
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
    minutes: Annotated[float, typer.Option(metavar="N", help="Minutes for everything.")] = 10.0
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Task, if it is not the detected one.")] = None
    valid: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Validation data. Repeatable.  [default: a tenth of the training data]"),
    ] = None
    test: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Test data. Repeatable.  [default: a tenth of the training data]")
    ] = None
    refit: Annotated[
        bool, typer.Option("--refit", help="Train the best model again, on training and validation data, before the test.")
    ] = False
    folds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Compare by cross-validation on N folds of the training data. Implies --refit."),
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
        from weft.config import override, parse_config
        from weft.errors import TrainingInterrupted
        from weft.report.fit import fit_models
        from weft.report.fit_options import FitOptions, default_output_dir, run_file

        if not 0 < self.minutes < math.inf:
            raise UsageError("minutes", f"must be greater than 0, got {self.minutes:g}")
        if self.data[0].suffix == ".toml":
            raise UsageError("fit", f"{self.data[0]} is a run file, not data", f"use weft train {self.data[0]}")
        options = {"valid": _names(self.valid), "test": _names(self.test), "refit": self.refit, "folds": self.folds}
        options |= {"overrides": self.overrides or [], "overwrite": self.overwrite}
        config = parse_config(FitOptions, options, prefix="")
        detection = self._detect(override({}, self.overrides or []))
        values = run_file(self.data, detection, config)
        output_dir = self.output_dir or default_output_dir(self.data)
        with Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                observer = CompareObserver(display, stop)
                result = fit_models(
                    values, output_dir, config, observer, minutes=self.minutes, base=Path().resolve(), command=self._command()
                )
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                display.line(f"Stopped. Saved to {output_dir}. Run the same command to resume.")
                return stop.exit_code
        self._print_json(result) if self.json else self._print(result)
        return 0

    def _command(self) -> str:
        """The command that reproduces the search."""
        words = ["weft", "fit", *map(str, self.data), "--minutes", f"{self.minutes:g}"]
        words += [] if self.task is None else ["--task", self.task]
        words += [word for path in self.valid or () for word in ("--valid", str(path))]
        words += [word for path in self.test or () for word in ("--test", str(path))]
        words += ["--refit"] if self.refit else []
        words += [] if self.folds is None else ["--folds", str(self.folds)]
        words += [word for text in self.overrides or () for word in ("--set", text)]
        return shlex.join(words if self.output_dir is None else [*words, "--output-dir", str(self.output_dir)])

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

    def _print_json(self, result: FitResult) -> None:
        ensemble = result.ensemble
        write_json(
            {
                "task": result.task,
                "run": str(result.best.run),
                "metric": result.metric.name,
                "models": [
                    {
                        "name": row.name,
                        "run": str(row.run),
                        "valid": _finite(row.scores),
                        "standard_deviation": _finite(row.deviations),
                        "seconds": row.seconds,
                    }
                    for row in result.candidates
                ],
                "ensemble": None
                if ensemble is None
                else {"runs": [str(run) for run in ensemble.runs], "valid": _finite({result.metric.name: ensemble.score})},
                "test": _finite({score.name: score.value for score in result.test}),
                "report": str(result.report),
            }
        )

    def _print(self, result: FitResult) -> None:
        from weft.report.fit_summary import describe_test, reason
        from weft.tasks.registry import find_task

        write("\n")
        write_table(_table(result))
        best, task = result.best, find_task(result.task)
        again = " trained again" if self.refit or self.folds else ""
        why, test = reason(result.candidates, result.metric), describe_test(result.test, result.metric)
        write(f"\nBest: {best.name}{again}{f' ({why})' if why else ''}. Test: {test}\n")
        command = f"weft {task.command} {shlex.quote(str(best.run))} {task.example_input}".rstrip()
        lines = [f"Run: {best.run}", f"Report: {result.report}", f"Next: {command}"]
        if (ensemble := _better_ensemble(result)) is not None:
            first, *others = [shlex.quote(str(run)) for run in ensemble.runs]
            words = ["weft", task.command, first, *(f"--ensemble {run}" for run in others)]
            words += ["--ensemble-weights fitted"] if ensemble.is_fitted else []
            lines.append(f"Better on validation data: {' '.join(words)} {task.example_input}")
        print_error("\n".join(lines))


def _better_ensemble(result: FitResult) -> EnsembleScore | None:
    """The ensemble, if it is better than every single model: it costs as much as all of its members."""
    metric, ensemble = result.metric, result.ensemble
    scores = [row.scores[metric.name] for row in result.candidates]
    is_better = ensemble is not None and all(metric.is_better(ensemble.score, score) for score in scores)
    return ensemble if is_better else None


def _table(result: FitResult) -> str:
    """The candidates and an ensemble that is better than all of them, the best first."""
    from weft.text.table_layout import columns

    metric, ensemble = result.metric, _better_ensemble(result)
    has_folds = bool(result.best.deviations)
    head = ["model", f"valid {metric.label}", *(["std"] if has_folds else []), "parameters", "time"]
    rows = []
    for row in result.candidates:
        scores = [metric.format(scores[metric.name]) for scores in (row.scores, row.deviations) if scores]
        rows.append((row.scores[metric.name], [row.name, *scores, f"{row.num_parameters:,}", format_duration(row.seconds)]))
    if ensemble is not None:
        sizes = {row.name: row.num_parameters for row in result.candidates}
        size = sum(sizes[name] for name in ensemble.names)
        rows.append((ensemble.score, [ensemble.name, metric.format(ensemble.score), f"{size:,}", ""]))
    ordered = sorted(rows, key=lambda row: row[0], reverse=metric.higher_is_better)
    return columns([head, *(cells for _, cells in ordered)])


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The scores in JSON, which has no infinity."""
    return {name: finite(value) for name, value in scores.items()}


def _names(paths: list[Path] | None) -> str | list[str] | None:
    """Paths as in a run file."""
    if not paths:
        return None
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]
