"""`weft distill`: train one model on the predictions of others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import FILES, ModelCommand, Overrides
from weft.cli.run_training import RunTraining


@dataclass(kw_only=True)
class Distill(ModelCommand):
    """Distill one or more runs into one model.

    The model learns from the same data and from the mean of the runs' probabilities: one model with much of the quality of an
    ensemble. The same command resumes a run that was stopped.
    """

    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories of the teachers.")]
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Architecture of the model, with recommended options.  [default: as the first network]"
        ),
    ] = None
    overrides: Overrides = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the existing run and start over.")] = False
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.")
    ]

    def run(self) -> int:
        from weft.runs.distill import student_run_file
        from weft.runs.recommend import complete

        values = student_run_file(self.runs, arch=self.arch, overrides=self.overrides or [])
        completed = complete(values, self.output_dir, base=Path(), overwrite=self.overwrite)
        training = RunTraining(Path(), self.output_dir, overwrite=self.overwrite, json=self.json, quiet=self.quiet)
        return training.run(values, completed)
